package observer

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Times are milliseconds; the linger time is 1 s.
func TestVerdictFindsViolations(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*1e6) }
	rule := func(ms int, added, forwards bool) tableEvent {
		return tableEvent{at: at(ms), node: "n1", changes: []change{
			{in: vips, key: frontendKey{vip: vip}, added: added},
			{in: frontends, key: frontendKey{vip, 6, 80}, added: added, forwards: forwards},
		}}
	}
	unserved := func(ms int) tableEvent {
		return tableEvent{at: at(ms), node: "n1", changes: rule(ms, false, false).changes[1:]}
	}
	deleted := func(ms int) tableEvent { return tableEvent{at: at(ms), node: "n1", deleted: true} }
	update := func(ms int, withdrawn bool) updateEvent {
		return updateEvent{at: at(ms), node: "n1", vip: vip, withdrawn: withdrawn}
	}
	route := func(ms int, via ...string) routeEvent { return routeEvent{at(ms), vip, via} }

	for name, c := range map[string]struct {
		r    eventLog
		want string // text of the only violation; empty: none
	}{
		"in order": {r: eventLog{
			tables:  []tableEvent{rule(10, true, true), rule(1200, false, false)},
			updates: []updateEvent{update(20, false), update(100, true)},
			routes:  []routeEvent{route(30, "n1"), route(150)},
		}},
		"announced too early": {r: eventLog{
			tables:  []tableEvent{rule(21, true, true)},
			updates: []updateEvent{update(20, false)},
		}, want: "1ms before it was forwarded"},
		"claimed too early": {r: eventLog{
			tables: []tableEvent{rule(21, true, true)},
			claims: []claimEvent{{at(20), "n1", vip}, {at(40), "n1", vip}},
		}, want: "claimed over layer 2, but not forwarded"},
		"claimed and removed in order": {r: eventLog{
			tables: []tableEvent{rule(10, true, true), rule(1100, false, false)},
			claims: []claimEvent{{at(20), "n1", vip}, {at(40), "n1", vip}},
		}},
		"removed too early after a claim": {r: eventLog{
			tables: []tableEvent{rule(10, true, true), rule(900, false, false)},
			claims: []claimEvent{{at(20), "n1", vip}, {at(40), "n1", vip}},
		}, want: "removed 860ms after it was last claimed"},
		"forwarded to allowed sources": {r: eventLog{
			tables: []tableEvent{{at: at(10), node: "n1", changes: []change{
				{in: frontends, key: frontendKey{vip, 6, 80}, added: true, sourceRanges: true},
				{in: inRange, key: frontendKey{vip, 6, 80}, added: true, forwards: true}}}},
			updates: []updateEvent{update(20, false)},
		}},
		"refused to allowed sources": {r: eventLog{
			tables: []tableEvent{{at: at(10), node: "n1", changes: []change{
				{in: frontends, key: frontendKey{vip, 6, 80}, added: true, sourceRanges: true},
				{in: inRange, key: frontendKey{vip, 6, 80}, added: true}}}},
			updates: []updateEvent{update(20, false)},
		}, want: "never forwarded"},
		"announced and refused": {r: eventLog{
			tables:  []tableEvent{rule(10, true, false)},
			updates: []updateEvent{update(20, false)},
		}, want: "never forwarded"},
		"routed and not forwarded": {r: eventLog{
			tables: []tableEvent{rule(40, true, true)},
			routes: []routeEvent{route(30, "n1")},
		}, want: "routes it here, but it is not forwarded"},
		"last backends removed, withdrawal in flight": {r: eventLog{
			tables:  []tableEvent{rule(10, true, true), unserved(30)},
			updates: []updateEvent{update(20, false), update(70, true)},
			routes:  []routeEvent{route(60, "n1"), route(100)},
		}},
		"last backends removed before the announcement": {r: eventLog{
			tables:  []tableEvent{rule(10, true, true), unserved(30)},
			updates: []updateEvent{update(40, false), update(50, true)},
		}, want: "never forwarded"},
		"last backends removed, withdrawal late": {r: eventLog{
			tables:  []tableEvent{rule(10, true, true), unserved(30)},
			updates: []updateEvent{update(20, false), update(90, true)},
			routes:  []routeEvent{route(60, "n1"), route(100)},
		}, want: "routes it here, but it is not forwarded"},
		"removed while routed": {r: eventLog{
			tables:  []tableEvent{rule(10, true, true), rule(1300, false, false)},
			updates: []updateEvent{update(20, false), update(100, true)},
			routes:  []routeEvent{route(30, "n1"), route(1400)},
		}, want: "still routes it here"},
		"removed too early": {r: eventLog{
			tables:  []tableEvent{rule(10, true, true), rule(1000, false, false)},
			updates: []updateEvent{update(20, false), update(100, true)},
			routes:  []routeEvent{route(30, "n1"), route(150)},
		}, want: "removed 900ms after it was withdrawn"},
		"announced again within the linger time": {r: eventLog{
			tables:  []tableEvent{rule(10, true, true), rule(2000, false, false)},
			updates: []updateEvent{update(20, false), update(100, true), update(200, false), update(900, true)},
			routes:  []routeEvent{route(30, "n1"), route(150), route(250, "n1"), route(950)},
		}},
		"announced while the table is restored": {r: eventLog{
			tables:  []tableEvent{rule(10, true, true), deleted(100), rule(180, true, true)},
			updates: []updateEvent{update(20, false), update(150, false)},
			routes:  []routeEvent{route(30, "n1")},
		}},
		"replaced in one transaction": {r: eventLog{
			tables: []tableEvent{rule(10, true, true),
				{at: at(50), node: "n1", deleted: true, changes: rule(50, true, true).changes}},
			updates: []updateEvent{update(20, false), update(60, false)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			v := c.r.checker([]string{"n1", "n2", "n3"}, time.Second, time.Second, SendDelay)
			if c.want == "" && len(v.Violations) > 0 ||
				c.want != "" && (len(v.Violations) != 1 || !strings.Contains(v.Violations[0].Text, c.want)) {
				t.Errorf("want one violation with %q, or none if that is empty; got:\n%s", c.want, v)
			}
		})
	}
}

func TestVerdictReportsMissedEvents(t *testing.T) {
	r := eventLog{errs: []error{errTest}}
	if v := r.checker([]string{"n1"}, 0, 0, 0); len(v.Violations) != 1 ||
		!strings.Contains(v.Violations[0].Text, errTest.Error()) {
		t.Errorf("an observer that missed an event: %v: want a violation", v)
	}
}

const errTest = testError("missed")

type testError string

func (e testError) Error() string { return string(e) }
