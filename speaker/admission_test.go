package speaker

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/l2"
)

// An admission is a handoverState that remembers what it admitted, and one that decides about all
// addresses each time.
type admission struct {
	remembers, forgets *handoverState
}

func (a admission) each(f func(*handoverState)) {
	f(a.remembers)
	a.forgets.decided = false
	f(a.forgets)
}

// admissionStep returns a random event.
func admissionStep(r *rand.Rand, now time.Time) func(*handoverState) {
	var addrs []netip.Addr
	var want []l2.Address
	var assigned []*plan.Address
	for i := range byte(12) {
		a := netip.AddrFrom4([4]byte{192, 0, 2, i})
		if r.IntN(3) > 0 {
			want = append(want, l2.Address{Addr: a, Yield: r.IntN(9) == 0})
		}
		if r.IntN(3) == 0 {
			addrs = append(addrs, a)
		}
		if r.IntN(4) > 0 {
			assigned = append(assigned, &plan.Address{Addr: a, Owner: []string{"", "n1", "n2"}[r.IntN(3)]})
		}
	}
	node, instance, sequence := []string{"n2", "n3"}[r.IntN(2)], 1+r.Uint64N(2), r.Uint64N(50)
	half, dead, until := r.IntN(len(addrs)+1), r.IntN(3), now.Add(time.Duration(r.IntN(3)-1)*time.Second)
	switch r.IntN(9) {
	case 0:
		return func(h *handoverState) { h.reportChanges(addrs) }
	case 1, 2, 3:
		return func(h *handoverState) {
			h.process(node, message{instance: instance, sequence: sequence, held: addrs[:half], released: addrs[half:]})
		}
	case 4:
		return func(h *handoverState) {
			h.setMembers(func([]byte) {}, func(n string) bool { return dead > 0 && n == []string{"n2", "n3"}[dead-1] })
		}
	case 5:
		return func(h *handoverState) { h.pause(until) }
	case 6:
		return func(h *handoverState) { h.setAssigned(assignedSet(), assignedSet(assigned...), now) }
	case 7:
		return func(h *handoverState) { h.reannounceAll() }
	default:
		return func(h *handoverState) {
			h.setWanted(sortedset.AddrSet(addrs...))
			h.selectAdmitted(want, now)
		}
	}
}

// assignedSet returns decisions as the set of a Desired.
func assignedSet(list ...*plan.Address) sortedset.Set[*plan.Address] {
	return sortedset.SetOf(list, compareAddresses)
}

// What was admitted is taken over only as far as a decision about it would be the same.
func TestAdmitRemembers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for seed := range uint64(300) {
			r := rand.New(rand.NewPCG(seed, 1))
			a := admission{newHandoverState("n1", nil), newHandoverState("n1", nil)}
			for step := range 60 {
				a.each(admissionStep(r, time.Now()))
				var want []l2.Address
				for i := range byte(12) {
					want = append(want, l2.Address{Addr: netip.AddrFrom4([4]byte{192, 0, 2, i})})
				}
				var got [][]l2.Address
				a.each(func(h *handoverState) {
					admitted, _ := h.selectAdmitted(want, time.Now())
					got = append(got, admitted)
				})
				if !slices.EqualFunc(got[0], got[1], l2.Address.Equal) ||
					!reflect.DeepEqual(a.remembers.waits, a.forgets.waits) {
					t.Fatalf("seed %d, step %d: %v, waits %v; want %v, waits %v", seed, step, got[0], a.remembers.waits,
						got[1], a.forgets.waits)
				}
				if r.IntN(4) == 0 {
					// on the clock of the bubble, which jumps: some messages expire
					time.Sleep(time.Duration(r.IntN(int(2 * holderLifetime))))
				}
			}
		}
	})
}
