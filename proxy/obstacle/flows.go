package obstacle

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Destination is where flows of external clients to addresses go.
type Destination uint8

const (
	ToPods       Destination = iota // of this node
	ToThisNode                      // its own processes, such as pods with hostNetwork
	ToOtherNodes                    // pods of other nodes
	destinations
)

// Flows is a set of kinds of flows, by family and Destination.
type Flows uint8

// FlowsTo returns the flows of a family to a Destination.
func FlowsTo(family state.SetID, to Destination) Flows {
	return 1 << (Destination(family)*destinations + to)
}

// forwarded are the flows of a family that the kernel forwards, rather than delivers.
func forwarded(family state.SetID) Flows {
	return FlowsTo(family, ToPods) | FlowsTo(family, ToOtherNodes)
}

// Has reports whether flows of a family to a Destination are in the set.
func (f Flows) Has(family state.SetID, to Destination) bool { return f&FlowsTo(family, to) != 0 }

// A Blockade is the flows of external clients that certainly fail on this node, and why. It is
// immutable; nil blocks nothing.
type Blockade struct {
	flows Flows
	by    []Obstacle
}

// NewBlockade returns the Blockade by obstacles, nil if they block nothing.
func NewBlockade(by ...Obstacle) *Blockade {
	b := &Blockade{}
	for _, o := range by {
		if o.Blocks != 0 {
			b.flows |= o.Blocks
			b.by = append(b.by, o)
		}
	}
	if b.flows == 0 {
		return nil
	}
	return b
}

// Why explains why flows to a VIP fail whose backend is at a Destination, empty if they may succeed.
func (b *Blockade) Why(vip netip.Addr, to Destination) string {
	family := state.Family(vip)
	if b == nil || !b.flows.Has(family, to) {
		return ""
	}
	i := slices.IndexFunc(b.by, func(o Obstacle) bool { return o.Blocks.Has(family, to) })
	return b.by[i].Message
}

// BlocksForwarding reports whether all flows of the address's family fail that the kernel must
// forward.
func (b *Blockade) BlocksForwarding(a netip.Addr) bool {
	all := forwarded(state.Family(a))
	return b != nil && b.flows&all == all
}

// equal reports whether both block the same flows for the same reasons.
func (b *Blockade) equal(o *Blockade) bool {
	if b == nil || o == nil {
		return b == o
	}
	return slices.Equal(b.by, o.by)
}

// blocking returns the obstacles that block flows, and which: flows that they blocked in the look
// before as well, and flows of families that no look has seen before.
func blocking(before, now []Obstacle, fresh [2]bool) (all []Obstacle) {
	var sure Flows
	for family, is := range fresh {
		if is {
			sure |= FlowsTo(state.SetID(family), ToThisNode) | forwarded(state.SetID(family))
		}
	}
	for _, o := range now {
		is := o.Blocks & sure
		if i := slices.IndexFunc(before, o.Same); i >= 0 {
			is |= o.Blocks & before[i].Blocks
		}
		if o.Blocks = is; is != 0 {
			all = append(all, o)
		}
	}
	return all
}
