package l2

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A change is an address that the node must reconsider.
type change struct {
	addr netip.Addr
	want *Address // nil: the State lists the address no longer
}

// changes returns, sorted, the addresses that two lists of Addresses do not have in common; with all,
// every address of either list. It reads each list once: few of many thousand addresses change.
func changes(before, after []Address, all bool) (changed []change) {
	byAddr := func(a, b Address) int { return a.Addr.Compare(b.Addr) }
	same := func(a, b Address) bool { return !all && a.Equal(b) }
	for was, want := range sortedset.Merge(before, after, byAddr, same) {
		if want != nil {
			changed = append(changed, change{want.Addr, want})
		} else {
			changed = append(changed, change{was.Addr, nil})
		}
	}
	return changed
}

// socketPlans say which sockets should be open, and why.
type socketPlans map[socketKey]*socketPlan

// A socketPlan lists the addresses that a socket should answer for. It is never modified: a plan
// that changes is replaced.
type socketPlan struct {
	iface     Interface
	addresses []netip.Addr   // sorted
	pools     []netip.Prefix // whose requests are remembered
}

// has reports whether a socket should answer for an address; p may be nil.
func (p *socketPlan) has(addr netip.Addr) bool { return p != nil && sortedset.Has(p.addresses, addr) }

// planPools returns plans without addresses: they assign each pool to the sockets of its links.
func planPools(pools []netip.Prefix, interfaces []Interface) socketPlans {
	plans := make(socketPlans)
	for _, i := range interfaces {
		var some []netip.Prefix
		for _, pool := range pools {
			if pool.Addr().Is4() && slices.ContainsFunc(i.Prefixes, pool.Overlaps) {
				some = append(some, pool)
			}
		}
		if len(some) > 0 {
			plans[socketKey{i.Index, arpProtocol}] = &socketPlan{iface: i, pools: some}
		}
	}
	return plans
}

// update assigns each changed address to the sockets that should answer for it, and to no others.
// The interfaces must be those for which the other addresses were assigned.
func (plans socketPlans) update(changed []change, interfaces []Interface) {
	named := make(map[string]bool)
	for _, c := range changed {
		if c.want != nil {
			for _, name := range c.want.Interfaces {
				named[name] = true
			}
		}
	}
	for _, i := range interfaces {
		for _, p := range []*protocol{arpProtocol, ndpProtocol} {
			key := socketKey{i.Index, p}
			if len(i.Prefixes) == 0 && !named[i.Name] && plans[key] == nil {
				continue // most interfaces of pods, of which there may be hundreds
			}
			plans.replace(key, i, changed)
		}
	}
}

// replace updates the plan of one socket.
func (plans socketPlans) replace(key socketKey, i Interface, changed []change) {
	was := plans[key]
	if was == nil {
		was = &socketPlan{iface: i}
	}
	addresses := sortedset.Patch(was.addresses, changed,
		func(a netip.Addr, c change) int { return a.Compare(c.addr) },
		func(a, b netip.Addr) bool { return a == b },
		func(n int) (netip.Addr, bool) {
			c := changed[n]
			return c.addr, c.want != nil && protocolOf(c.addr) == key.protocol && i.Carries(*c.want)
		})
	switch {
	case len(addresses) == 0 && len(was.pools) == 0:
		delete(plans, key) // no socket is needed
	case !sortedset.Same(addresses, was.addresses):
		plans[key] = &socketPlan{iface: i, addresses: addresses, pools: was.pools}
	}
}
