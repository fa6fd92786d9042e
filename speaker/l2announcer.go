package speaker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
)

// An l2Announcer announces by ARP and NDP. An address for which another speaker answers
// waits until that speaker reports that it has stopped, for a bounded time.
type l2Announcer struct {
	set      func(context.Context, l2.State) (have []netip.Addr, err error) // of an [l2.Announcer]
	handover *handoverState

	sent      []l2.Address                // addresses of the last call, sorted
	have      []netip.Addr                // addresses that this node answers for
	prefixes  sortedset.Set[netip.Prefix] // of sent and have
	announced sortedset.Set[netip.Prefix] // prefixes that Set returned last
}

// Set implements announcer. An address counts as announced from the request on: after its
// probe it is answered for without another call, so it must be forwarded by now.
func (a *l2Announcer) Set(ctx context.Context, d *plan.Desired,
	allowed sortedset.Set[netip.Prefix]) (sortedset.Set[netip.Prefix], error) {
	if !d.UsesL2 && len(a.sent)+len(a.have) == 0 {
		return sortedset.Set[netip.Prefix]{}, nil // Without L2, nothing is opened.
	}
	// Waiting addresses are wanted although they are not in every call's allowed.
	a.handover.setWanted(d.Answered)
	want := d.L2.Addresses
	if !allowed.Same(d.Hosts) {
		want = addressesOf(allowed, d.L2.Addresses, a.sent)
	}
	state := l2.State{
		Speakers: d.L2.Speakers, Nodes: d.L2.Nodes, Pools: d.L2.Pools, Addresses: a.handover.admit(want, time.Now()),
	}
	if !sortedset.Same(state.Addresses, a.sent) && slices.EqualFunc(state.Addresses, a.sent, l2.Address.Equal) {
		state.Addresses = a.sent
	}
	have, err := a.set(ctx, state)
	if !sortedset.Same(state.Addresses, a.sent) || !sortedset.Same(have, a.have) {
		a.prefixes = hostsOf(state.Addresses, have)
	}
	a.sent, a.have = state.Addresses, have
	a.handover.reportChanges(have)
	// With the same set, callers need not compare the elements.
	a.announced = sortedset.KeepSet(a.announced, sortedset.KeepSet(allowed, a.prefixes, sortedset.ComparePrefixes),
		sortedset.ComparePrefixes)
	return a.announced, err
}

// addressesOf returns the addresses of prefixes, each from the first list that has it. All
// are sorted.
func addressesOf(prefixes sortedset.Set[netip.Prefix], lists ...[]l2.Address) []l2.Address {
	out := make([]l2.Address, 0, prefixes.Len())
	for p := range prefixes.All() {
		for _, list := range lists {
			if i, found := slices.BinarySearchFunc(list, p.Addr(), compareL2); found {
				out = append(out, list[i])
				break
			}
		}
	}
	return out
}

// hostsOf returns the prefixes of the addresses that are in either list.
func hostsOf(requested []l2.Address, have []netip.Addr) sortedset.Set[netip.Prefix] {
	hosts := sortedset.HostPrefixes(have)
	for _, r := range requested {
		hosts = append(hosts, sortedset.HostPrefix(r.Addr))
	}
	return sortedset.PrefixSet(hosts...)
}
