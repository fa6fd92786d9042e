package plan

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// After any sequence of snapshots, the result of a Decider equals that of Decide for the last
// one alone.
func TestDeciderEqualsDecide(t *testing.T) {
	type visible struct {
		Proxy     proxy.State
		BGP       bgp.State
		Addresses []*Address
		Checks    []healthcheck.Check
		Announce  any
		L2        l2.State
		Links     bool
		Reasons   []cluster.Reason
	}
	see := func(d *Desired) visible {
		return visible{d.Proxy, d.BGP, d.Addresses.Slice(), d.Checks,
			[][]netip.Addr{d.Announce.Slice(), d.Routed.Slice(), d.Answered.Slice()}, d.L2, d.UsesL2, d.Reasons()}
	}
	c := Config{Node: "n1", HealthChecks: HealthChecksAll}
	for seed := range plantest.Seeds(t) / 4 {
		w, decider := plantest.NewWorld(seed), NewDecider(c)
		for range 40 {
			for range w.IntN(3) {
				w.Step()
			}
			if w.IntN(2) == 0 {
				w.ChangeInputs()
			}
			snap := w.Snapshot()
			c.Members, c.Returning = w.Members, w.Returning
			decider.Config.Members, decider.Config.Returning = w.Members, w.Returning
			c.Interfaces, decider.Config.Interfaces = w.Interfaces, w.Interfaces
			if vips := decider.last; vips != nil && w.IntN(8) == 0 {
				c.Refused = refusedAtRandom(w, vips.Proxy.VIPs)
				decider.Config.Refused = c.Refused
			}
			got, want := see(decider.Decide(snap)), see(Decide(c, snap))
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d:\ngot\n%+v\nwant\n%+v", seed, got, want)
			}
		}
	}
}

// refusedAtRandom is what a proxy may have refused, often nothing.
func refusedAtRandom(w *plantest.World, vips proxy.VIPs) *Refused {
	if vips.Len() == 0 || w.IntN(3) == 0 {
		return nil
	}
	return (*Refused)(nil).With(&proxy.Refused{
		Refusals: []proxy.Refusal{{VIP: vips.At(w.IntN(vips.Len())), Err: errors.New("too many")}}}, time.Unix(0, 0))
}

// A changed endpoint changes the addresses of its Service only. All others keep their pointers,
// which the speaker compares.
func TestDeciderReusesUnchangedAddresses(t *testing.T) {
	for seed := range uint64(200) {
		w, decider := plantest.NewWorld(seed), NewDecider(Config{Node: "n1"})
		if len(w.Assignments) == 0 {
			continue
		}
		was := decider.Decide(w.Snapshot())
		i := w.IntN(len(w.Services))
		w.SetEndpoints(i)
		is := decider.Decide(w.Snapshot())
		for n, a := range is.Addresses.Slice() {
			concerned := slices.Contains(a.Services, w.Services[i].Name)
			if shared := a == was.Addresses.At(n); shared == concerned {
				t.Fatalf("seed %d: %s: shared %v, concerned %v", seed, a.Addr, shared, concerned)
			}
		}
		if slices.Equal(was.Announce.Slice(), is.Announce.Slice()) && !was.Announce.Same(is.Announce) {
			t.Fatalf("seed %d: equal announcements were built again", seed)
		}
	}
}

// A created or deleted Service changes its own addresses only.
func TestDeciderReusesOtherServicesAddresses(t *testing.T) {
	shared := 0
	for seed := range uint64(200) {
		w, decider := plantest.NewWorld(seed), NewDecider(Config{Node: "n1"})
		was := decider.Decide(w.Snapshot())
		w.ToggleService(w.IntN(plantest.Services))
		is := decider.Decide(w.Snapshot())
		for a := range is.Addresses.All() {
			old := was.Address(a.Addr)
			if old == nil || old.Pool != a.Pool || !slices.Equal(old.services, a.services) {
				continue
			}
			if shared++; old != a {
				t.Fatalf("seed %d: %s was decided again", seed, a.Addr)
			}
		}
	}
	if shared == 0 {
		t.Error("no address stayed in any world")
	}
}

// Advertisements do not change VIPs, which keep their pointers: the proxy need not compare
// thousands of addresses.
func TestDeciderReusesVIPsWhenAdvertisementsChange(t *testing.T) {
	again := 0
	for seed := range uint64(200) {
		w, decider := plantest.NewWorld(seed), NewDecider(Config{Node: "n1"})
		was := decider.Decide(w.Snapshot())
		w.Advertise()
		is := decider.Decide(w.Snapshot())
		for n, a := range is.Addresses.Slice() {
			if a.VIP != was.Addresses.At(n).VIP || is.Proxy.VIPs.At(n) != a.VIP {
				t.Fatalf("seed %d: the VIP of %s is a copy", seed, a.Addr)
			}
			if a != was.Addresses.At(n) {
				again++
			}
		}
	}
	if again == 0 {
		t.Error("no address was decided again in any world")
	}
}
