package speaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// refuse leaves refused addresses in the kernel as they were.
func (t *trial) refuse(want proxy.State, kernel map[netip.Addr]*proxy.VIP) error {
	var refused proxy.Refused
	for v := range want.VIPs.All() {
		if t.rejects == nil || !t.rejects(v) {
			continue
		}
		refused.Refusals = append(refused.Refusals, proxy.Refusal{VIP: v, Err: errors.New("no room")})
		if old := t.kernel[v.Addr]; old != nil {
			kernel[v.Addr] = old
		} else {
			delete(kernel, v.Addr)
		}
	}
	if len(refused.Refusals) == 0 {
		return nil
	}
	return &refused
}

// again does what a speaker does when its proxy refuses addresses.
func (t *trial) again(p *pass, ctx context.Context, d *plan.Desired) (err error) {
	var before error // of an announce path, which the next run corrects
	for range maxRefused {
		err = p.run(ctx, d)
		var refused *proxy.Refused
		if !errors.As(err, &refused) {
			break
		}
		if t.failed {
			before = err
		}
		t.decider.Config.Refused = t.decider.Config.Refused.With(refused, time.Now())
		t.decide()
		d = t.desired
		t.before = nil // they may lose their last route now
	}
	for a := range t.desired.Addresses.All() {
		if a.Refusal == "" || t.failed {
			continue
		}
		if t.network[host(a.Addr)] || t.l2.answering[a.Addr] {
			t.violate("refused: %s is announced", a.Addr)
		}
		if v := t.kernel[a.Addr]; v == nil || len(v.Frontends) > 0 {
			t.violate("refused: the kernel has %v", v)
		}
	}
	return cmp.Or(err, before)
}

// A refused address is withdrawn before the kernel stops forwarding it. All invariants hold
// for the others, in random worlds.
func TestRefusalAffectsOneAddress(t *testing.T) {
	refused := 0
	for seed := range plantest.Seeds(t) / 4 {
		var violations []string
		bubble.Test(t, func(*testing.T) {
			trial := newTrial(seed)
			trial.rejects = func(v *proxy.VIP) bool {
				for _, f := range v.Frontends {
					if len(f.Internal.Backends) > 1 || len(f.Draining) > 1 {
						refused++
						return true
					}
				}
				return false
			}
			trial.steps(30, trial.again)
			violations = trial.violations
		})
		if len(violations) > 0 {
			t.Fatalf("seed %d:\n%s", seed, violations)
		}
	}
	if refused < 100 {
		t.Errorf("only %d addresses were refused", refused)
	}
}

// A proxyOf refuses given addresses.
type proxyOf struct {
	refuses func(*proxy.VIP) bool
	sets    []string
}

func (p *proxyOf) Set(_ context.Context, want proxy.State) error {
	var refused proxy.Refused
	var set []string
	for v := range want.VIPs.All() {
		if p.refuses(v) {
			refused.Refusals = append(refused.Refusals, proxy.Refusal{VIP: v, Err: errors.New("no room")})
			continue
		}
		set = append(set, fmt.Sprintf("%s:%d", v.Addr, len(v.Frontends)))
	}
	p.sets = append(p.sets, strings.Join(set, " "))
	if len(refused.Refusals) > 0 {
		return &refused
	}
	return nil
}

// Intact implements forwarder: no other program changes the table.
func (p *proxyOf) Intact() proxy.Integrity { return proxy.Integrity{Intact: true} }

func (*proxyOf) Blockade() *obstacle.Blockade { return nil }

func (p *proxyOf) Unprepared() []netip.Prefix { return nil }

// A refused address is not retried for a while, unless it changes. Passes succeed
// meanwhile, and the status has the reason.
func TestKernelRefusal(t *testing.T) {
	full := true
	p := &proxyOf{refuses: func(v *proxy.VIP) bool {
		return full && v.Addr.String() == "192.0.2.1" && len(v.Frontends) > 0
	}}
	s := speakerWith(t, p)
	world := func(endpoints int) *cluster.Snapshot {
		snap := plantest.HugeService(t, endpoints)
		snap.Peers, snap.Pools = nil, nil // nothing is announced
		return snap
	}
	snap := world(2)
	s.source, s.retry = fixedSource{snap}, backoff.NewExponentialBackOff()
	s.publish(nil, nil)
	pass := func(wantSets string) {
		t.Helper()
		p.sets = nil
		if err := s.runPass(t.Context()); err != nil {
			t.Errorf("the pass: %v", err)
		}
		if got := strings.Join(p.sets, "; "); got != wantSets {
			t.Errorf("set %q; want %q", got, wantSets)
		}
	}
	code := func(want cluster.Code, programmed bool) {
		t.Helper()
		pub := s.result.Load()
		st := pub.address(pub.desired.Address(netip.MustParseAddr("192.0.2.1")), s.bgp.Status())
		if st.Reasons[0].Code != want || st.Programmed != programmed {
			t.Errorf("programmed %t, %+v; want %s", st.Programmed, st.Reasons[0], want)
		}
	}
	pass("192.0.2.2:1; 192.0.2.1:0 192.0.2.2:1")
	code(cluster.ProxyRefused, false)
	refused := func() *plan.Refused { return s.decider.Config.Refused }
	if at := s.nextPass(time.Now(), nil); !at.Equal(refused().Since.Add(plan.RefusalRetry)) {
		t.Errorf("tried again at %s", at)
	}
	if refused().Still(refused().Since.Add(plan.RefusalRetry-1)) == nil ||
		refused().Still(refused().Since.Add(plan.RefusalRetry)) != nil {
		t.Error("tried again too early or too late")
	}
	pass("192.0.2.1:0 192.0.2.2:1")
	// Another endpoint makes it another address.
	s.source = fixedSource{world(3)}
	pass("192.0.2.2:1; 192.0.2.1:0 192.0.2.2:1")
	s.source = fixedSource{snap}
	pass("192.0.2.1:0 192.0.2.2:1")
	full = false
	refused().Since = time.Now().Add(-plan.RefusalRetry)
	pass("192.0.2.1:1 192.0.2.2:1")
	code(cluster.Programmed, true)
}

// A refusal is reported once, on the Service, and again if the address was served
// meanwhile.
func TestRefusalEvents(t *testing.T) {
	p := newEventTest(t, reported{})
	p.session("tor1", bgp.Established, "")
	p.expectEvents("at the start", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with "+
		"router tor1 (10.0.0.1, AS65000)")
	observe := func(endpoints int) {
		p.desired = plan.Decide(plan.Config{Node: "n1"}, plantest.HugeService(t, endpoints))
		p.announced = p.desired.Announce
	}
	const refused = "Warning ProxyRefused Service/huge (uid-huge): node n1 does not forward 192.0.2.1: endpoints of " +
		"port tcp/80: 65536; " +
		"in nftables mode an address can have 65535: use several Services, each with a part of the endpoints"
	observe(65536)
	p.expectEvents("too large", refused, "Normal Announced Service/web (uid-web): node n1 announces 192.0.2.2 to tor1")
	observe(65537)
	p.expectEvents("still larger")
	p.expectEvents("no change")
	observe(65536)
	p.expectEvents("smaller, and still too large")
	observe(1)
	p.expectEvents("small", "Normal Announced Service/huge (uid-huge): node n1 announces 192.0.2.1 to tor1")
	observe(65536)
	p.expectEvents("too large again", refused,
		"Normal Withdrawn Service/huge (uid-huge): node n1 withdrew 192.0.2.1 from tor1: "+
			"endpoints of port tcp/80: 65536; in nftables mode an address can have 65535: use several Services, each "+
			"with a part of the endpoints")
}
