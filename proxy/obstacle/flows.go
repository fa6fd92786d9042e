package obstacle

import (
	"net/netip"
	"slices"
	"time"

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

func (d Destination) String() string {
	return []string{"pods of this node", "processes of this node", "pods on other nodes"}[d]
}

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

// A Blockade is the set of external clients' flows that certainly fail on this node because of
// obstacles, and why. An [Obstacle] is a cause, and may block nothing for certain; an address that
// has flows in the Blockade gets the reason Obstructed (internal/plan). A Blockade is immutable;
// nil blocks nothing.
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

// A blocked is a kind of flow, by its bit in Flows, and the obstacle that blocks it.
type blocked struct {
	code  Code
	about string
	bit   Destination
}

// A history has since when each look has found that an obstacle blocks a kind of flow.
type history map[blocked]time.Time

// confirm returns the obstacles of a look that block flows, with only the flows that all looks
// for lookConfirm have found to be blocked, and the history with this look. Flows of a family
// that had no VIPs (fresh) are blocked at once.
func (h history) confirm(now []Obstacle, fresh [2]bool, at time.Time) (confirmed []Obstacle, next history) {
	next = make(history)
	for _, o := range now {
		for bit := range 2 * destinations {
			if o.Blocks&(1<<bit) == 0 {
				continue
			}
			b := blocked{o.Code, o.About, bit}
			since, found := h[b]
			if fresh[bit/destinations] {
				since = time.Time{}
			} else if !found {
				since = at
			}
			if next[b] = since; at.Sub(since) < lookConfirm {
				o.Blocks &^= 1 << bit
			}
		}
		if o.Blocks != 0 {
			confirmed = append(confirmed, o)
		}
	}
	return confirmed, next
}
