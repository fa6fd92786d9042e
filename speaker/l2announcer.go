package speaker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// l2Announcer announces over L2. What another speaker still answers for waits until that one
// has said that it stopped, for a bounded time.
type l2Announcer struct {
	set      func(context.Context, l2.State) (have []netip.Addr, err error) // of an [l2.Announcer]
	handover *handoverState

	sent      []l2.Address   // last; sorted
	have      []netip.Addr   // what the link answers for, as it last said
	announced []netip.Prefix // what was answered last
}

// Set implements announcer. An address that the link has been asked for counts as told:
// the link answers for it as soon as it has found that nobody else does, and asks nobody
// here whether it is forwarded still.
func (a *l2Announcer) Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) ([]netip.Prefix, error) {
	if !d.Links && len(a.sent)+len(a.have) == 0 {
		return nil, nil // A node of a cluster without L2 opens nothing for it.
	}
	// What waits is not allowed in every call, but wanted.
	a.handover.setWanted(d.Answered)
	want := d.L2.Addresses
	if !sortedset.Same(allowed, d.Hosts) {
		want = addressesOf(allowed, d.L2.Addresses, a.sent)
	}
	state := l2.State{Speakers: d.L2.Speakers, Nodes: d.L2.Nodes, Addresses: a.handover.admit(want, time.Now())}
	if slices.EqualFunc(state.Addresses, a.sent, sameRequest) {
		state.Addresses = a.sent
	}
	have, err := a.set(ctx, state)
	a.sent, a.have = state.Addresses, have
	a.handover.reportChanges(have)
	announced := sortedset.Union(hostsOf(state.Addresses), sortedset.HostPrefixes(have), sortedset.ComparePrefixes)
	// The same slice, so that whoever compares need not look into it.
	a.announced = sortedset.Keep(a.announced, sortedset.Keep(allowed, announced))
	return a.announced, err
}

// sameRequest compares all that the link is told. What was to be probed when it was new must
// not be when the link takes it again.
func sameRequest(a, b l2.Address) bool {
	return a.Addr == b.Addr && slices.Equal(a.Interfaces, b.Interfaces) && a.Probe == b.Probe && a.Round == b.Round
}

// addressesOf returns the addresses of prefixes, from the first of the lists that has one.
// All are sorted.
func addressesOf(prefixes []netip.Prefix, lists ...[]l2.Address) []l2.Address {
	out := make([]l2.Address, 0, len(prefixes))
	for _, p := range prefixes {
		for _, list := range lists {
			i, ok := slices.BinarySearchFunc(list, p.Addr(), func(a l2.Address, b netip.Addr) int { return a.Addr.Compare(b) })
			if ok {
				out = append(out, list[i])
				break
			}
		}
	}
	return out
}

func hostsOf(list []l2.Address) []netip.Prefix {
	hosts := make([]netip.Prefix, len(list))
	for i, a := range list {
		hosts[i] = sortedset.HostPrefix(a.Addr)
	}
	return hosts
}
