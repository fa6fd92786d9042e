package speaker

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// rareSeeds are worlds of thousands. In 7919 an aggregate attracts traffic to a new address,
// and is withdrawn before the address has its own route. In 108122 and 128126 an aggregate stays
// when the withdrawal of another route succeeds, and its address is wanted again. In the others an
// address waits for another node, is not wanted in a pass that fails, and waits again.
var rareSeeds = []uint64{7919, 108122, 128126, 7111, 29465, 31374, 31653, 37119}

func TestPassInvariantsInRandomWorlds(t *testing.T) {
	seeds := slices.Clone(rareSeeds)
	for seed := range plantest.Seeds(t) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		if violations := try(t, seed, (*pass).run); len(violations) > 0 {
			t.Fatalf("seed %d:\n%s", seed, violations)
		}
	}
}

// If another program destroyed the table and the repair fails, nothing may be announced.
func TestPassWithdrawsAfterFailedRepair(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for seed := range uint64(100) {
			trial := newTrial(seed)
			trial.steps(10, (*pass).run)
			trial.failing = false
			trial.decide()
			if err := trial.pass.run(t.Context(), trial.desired); err != nil {
				t.Fatal(err)
			}
			trial.pass.forwarder = broken{}
			if err := trial.pass.run(t.Context(), trial.desired); err == nil {
				t.Fatal("no error")
			}
			silent := func() bool { return len(trial.network)+len(trial.l2.answering)+len(trial.l2.asking) == 0 }
			if !silent() || trial.pass.announcing() {
				t.Fatalf("seed %d: still announced: %v, %v", seed, trial.network, trial.l2.answering)
			}
			trial.pass.forwarder = broken{intact: true}
			if err := trial.pass.run(t.Context(), trial.desired); err == nil || !silent() {
				t.Fatalf("seed %d: announced again: %v, %v", seed, trial.network, trial.l2.answering)
			}
		}
	})
}

// A broken forwarder returns errors, beside a table that is intact or not.
type broken struct{ intact bool }

func (broken) Set(context.Context, proxy.State) error {
	return errors.New("the kernel returns an error")
}

func (b broken) Intact() proxy.Integrity { return proxy.Integrity{Intact: b.intact} }

func (broken) Blockade() *obstacle.Blockade { return nil }

func (b broken) Unprepared() []netip.Prefix { return nil }

// An intact forwarder's table is never changed by other programs.
type intact struct{}

func (intact) Intact() proxy.Integrity { return proxy.Integrity{Intact: true} }

func (intact) Blockade() *obstacle.Blockade { return nil }

func (intact) Unprepared() []netip.Prefix { return nil }

// While the table is intact, no error withdraws what is wanted, however often it occurs.
func TestFailureKeepsAnnouncements(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for seed := range uint64(100) {
			trial := newTrial(seed)
			trial.steps(10, (*pass).run)
			trial.failing = false
			trial.decide()
			if err := trial.pass.run(t.Context(), trial.desired); err != nil {
				t.Fatal(err)
			}
			network, answering := maps.Clone(trial.network), maps.Clone(trial.l2.answering)
			trial.pass.forwarder = broken{intact: true}
			for range 3 {
				if err := trial.pass.run(t.Context(), trial.desired); err == nil {
					t.Fatal("no error")
				}
			}
			if !maps.Equal(network, trial.network) || !maps.Equal(answering, trial.l2.answering) {
				t.Fatalf("seed %d: announced %v and %v, before %v and %v", seed, trial.network, trial.l2.answering,
					network, answering)
			}
		}
	})
}

// What an earlier speaker left in the kernel stays until routers no longer have its routes.
func TestAdoptedAddressesExpire(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		trial := newTrial(1)
		old := netip.MustParseAddr("192.0.2.200")
		trial.pass.bgp().adopt(old, time.Now().Add(35*time.Second))
		pass := func() bool {
			t.Helper()
			trial.desired = trial.decider.Decide(trial.Snapshot())
			if err := trial.pass.run(t.Context(), trial.desired); err != nil {
				t.Fatal(err)
			}
			return trial.kernel[old] != nil
		}
		if !pass() {
			t.Error("dropped in the first pass")
		}
		time.Sleep(20 * time.Second)
		if !pass() {
			t.Error("dropped while routers may remember it")
		}
		trial.pass.bgp().boundAdopted(time.Now().Add(testLinger))
		time.Sleep(testLinger - time.Millisecond)
		if !pass() {
			t.Error("dropped before it had lingered")
		}
		time.Sleep(time.Millisecond)
		if pass() {
			t.Error("kept for ever")
		}
	})
}

// When the last local endpoint is gone and another node has one, this node stays announced
// for a moment and forwards there: the other node's route may arrive later than the
// withdrawal.
func TestWithdrawalIsDelayed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		trial := newTrial(1)
		trial.Services, trial.Assignments = nil, nil
		trial.ToggleService(0)
		spec := *trial.Services[0].Spec
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		vip := netip.MustParseAddr("192.0.2.1")
		trial.Assignments = []cluster.Assignment{{Addr: vip, Service: spec.Name, Pool: "lan"}}
		on := func(node string) *cluster.Endpoints {
			return plantest.Endpoints("http", 8080,
				cluster.Endpoint{Node: node, Addr: netip.MustParseAddr("10.244.0.1"), Ready: true, Serving: true})
		}
		observe := func() (announced bool, answers int) {
			t.Helper()
			trial.desired = trial.decider.Decide(trial.Snapshot())
			if err := trial.pass.run(t.Context(), trial.desired); err != nil {
				t.Fatal(err)
			}
			if kernel := trial.kernel[vip]; kernel != nil {
				answers = len(kernel.Frontends[0].External.Backends)
			}
			return trial.network[host(vip)], answers
		}
		expect := func(when string, announced bool, answers int) {
			t.Helper()
			if a, n := observe(); a != announced || n != answers {
				t.Errorf("%s: announced %v with %d backends, want %v with %d", when, a, n, announced, answers)
			}
		}
		trial.Services[0] = cluster.Service{Spec: &spec, Endpoints: on("n1")}
		expect("endpoint here", true, 1)
		trial.Services[0] = cluster.Service{Spec: &spec, Endpoints: on("n2")}
		expect("endpoint gone to n2", true, 1)
		time.Sleep(withdrawDelay - time.Millisecond)
		expect("n2 may not announce it yet", true, 1)
		time.Sleep(time.Millisecond)
		expect("n2 announces it", false, 1)
		time.Sleep(testLinger - time.Millisecond)
		expect("routers may still have the route", false, 1)
		time.Sleep(time.Millisecond)
		expect("no router has it", false, 0)
		trial.Services[0] = cluster.Service{Spec: &spec, Endpoints: on("n1")}
		expect("back", true, 1)
		trial.Services[0] = cluster.Service{Spec: &spec}
		expect("no endpoint anywhere", false, 0)
	})
}

// A waiting forwarder programs everything, and has not prepared some prefixes.
type waiting struct {
	forwarder
	hold []netip.Prefix
}

func (w waiting) Unprepared() []netip.Prefix { return w.hold }

// What is not prepared is not announced, unless it was before; all else is.
func TestPassHoldsUnprepared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kept, held := 0, 0
		for seed := range uint64(200) {
			trial := newTrial(seed)
			trial.failing = false
			p, hold := trial.pass, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30")}
			run := func(hold []netip.Prefix) (announced map[netip.Prefix]bool) {
				p.forwarder = waiting{(*trialKernel)(trial), hold}
				trial.desired = trial.decider.Decide(trial.Snapshot())
				if err := p.run(t.Context(), trial.desired); err != nil {
					t.Fatal(err)
				}
				return maps.Clone(trial.network)
			}
			before := run(nil)
			trial.ToggleService(0)
			trial.ToggleService(1)
			for prefix := range run(hold) {
				switch {
				case !prefix.Overlaps(hold[0]):
				case before[prefix]:
					kept++
				default:
					t.Fatalf("seed %d: %s is announced before it is prepared", seed, prefix)
				}
			}
			after := run(nil)
			for prefix := range after {
				if prefix.Overlaps(hold[0]) && !before[prefix] {
					held++
				}
			}
			for prefix := range trial.desired.Prefixes.All() {
				if !after[prefix] {
					t.Fatalf("seed %d: %s is not announced", seed, prefix)
				}
			}
		}
		if kept == 0 || held == 0 {
			t.Errorf("%d prefixes stayed, and %d waited", kept, held)
		}
	})
}
