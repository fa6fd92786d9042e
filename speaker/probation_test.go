package speaker

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/bubble"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
)

// Who comes to others that answer for something is on probation, the longer the more often
// it died; who begins with the others, or is alone, is not.
func TestProbation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		vip := netip.MustParseAddr("192.0.2.1")
		both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
		begin := func(deaths []time.Time, died bool) *links {
			h := newHoldings("n1", nil, slog.New(slog.DiscardHandler))
			return &links{holds: h, probation: probation{deaths: deaths, died: died}, reach: &reach{list: []l2.Interface{{Name: "eth0"}}}}
		}
		lasts := func(what string, k *links, m *membership.Members, want time.Duration) {
			t.Helper()
			decided := k.returning(m, time.Now())
			if k.offer(m, decided, time.Now()) != (want > 0) || decided != (want > 0) {
				t.Errorf("%s: on probation %t, and told as %t", what, decided, want == 0)
			}
			if got := max(0, time.Until(k.probation.until)); got != want {
				t.Errorf("%s: for %s, want %s", what, got, want)
			}
			time.Sleep(want)
			if k.returning(m, time.Now()) || k.offer(m, false, time.Now()) {
				t.Errorf("%s: still on probation", what)
			}
		}
		k := begin(nil, false)
		greet(t, k.holds, "n2")
		lasts("nobody answers for anything", k, both, 0)
		greet(t, k.holds, "n2", vip)
		lasts("they do later", k, both, 0)

		k = begin(nil, false)
		greet(t, k.holds, "n2", vip)
		lasts("somebody has answered, and is dead", k, &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2"}}}, 0)
		k = begin(nil, false)
		greet(t, k.holds, "n2", vip)
		lasts("somebody is known by its Lease only", k, &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true, ByLease: true}}}, 0)
		lasts("without members", begin(nil, false), nil, 0)

		k = begin(nil, false)
		greet(t, k.holds, "n2", vip)
		lasts("after a farewell", k, both, 2*time.Second)
		again := func(what string, want time.Duration) {
			t.Helper()
			interfaces := k.reach
			k.reach = &reach{}
			k.offer(both, false, time.Now())
			k.reach = interfaces
			lasts(what, k, both, want)
		}
		again("its link was lost", 2*time.Second)
		again("and again", 4*time.Second)
		if left := k.probation.deaths; len(left) != 2 {
			t.Errorf("%v is remembered", left)
		}
		k = begin(k.probation.deaths, true)
		greet(t, k.holds, "n2", vip)
		lasts("the next process, after a crash", k, both, 8*time.Second)
		for range 20 {
			again("a link that comes and goes", min(2*k.lengthBefore(), probationMost))
		}
		time.Sleep(deathKept)
		again("much later", 2*time.Second)
	})
}

// lengthBefore is what the last probation took.
func (k *links) lengthBefore() time.Duration {
	return k.probation.until.Sub(k.probation.deaths[len(k.probation.deaths)-1])
}

// Who changes its mind after it has decided decides again.
func TestProbationPokes(t *testing.T) {
	k := &links{holds: newHoldings("n1", nil, slog.New(slog.DiscardHandler)), reach: &reach{list: []l2.Interface{{Name: "eth0"}}}}
	both := &membership.Members{Nodes: []membership.Member{{Node: "n1", Alive: true}, {Node: "n2", Alive: true}}}
	decided := k.returning(both, time.Now())
	greet(t, k.holds, "n2", netip.MustParseAddr("192.0.2.1"))
	<-k.holds.changed // that somebody has been met
	if decided || !k.offer(both, decided, time.Now()) {
		t.Error("what was heard meanwhile does not count")
	}
	select {
	case <-k.holds.changed:
	default:
		t.Error("nobody decides again")
	}
}
