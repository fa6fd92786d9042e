package plan

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// patch derives from a revision what is forwarded and announced. Lists and sets that do not change stay
// the same.
func (d *Desired) patch(v *Inputs, r revision) {
	d.Addresses = sortedset.PatchSet(d.Addresses, r.addrs, compareAddress, sortedset.Equal,
		func(i int) (*Address, bool) { return r.now[i], r.now[i] != nil })
	byAddr := (*proxy.VIP).CompareAddr
	d.Proxy.VIPs = sortedset.PatchSet(d.Proxy.VIPs, r.addrs, byAddr, sortedset.Equal, func(i int) (*proxy.VIP, bool) {
		if r.now[i] == nil {
			return nil, false
		}
		return r.now[i].VIP, true
	})
	patchAddrs := func(set sortedset.Set[netip.Addr], has func(*Address) bool) sortedset.Set[netip.Addr] {
		return sortedset.PatchSet(set, r.addrs, netip.Addr.Compare, sortedset.Equal,
			func(i int) (netip.Addr, bool) { return r.addrs[i], r.now[i] != nil && has(r.now[i]) })
	}
	alike := d.Announce.Same(d.Routed) && !slices.ContainsFunc(r.now,
		func(a *Address) bool { return a != nil && a.Announce != (len(a.Routes) > 0) })
	d.Routed = patchAddrs(d.Routed, func(a *Address) bool { return len(a.Routes) > 0 })
	if alike { // as they are without Layer 2
		d.Announce = d.Routed
	} else {
		d.Announce = patchAddrs(d.Announce, func(a *Address) bool { return a.Announce })
	}
	d.Answered = patchAddrs(d.Answered, (*Address).answered)
	hosts := sortedset.HostPrefixes(r.addrs)
	d.Hosts = patchPrefixes(d.Hosts, hosts, func(i int) bool { return r.now[i].answered() })
	d.L2.Addresses = sortedset.Patch(d.L2.Addresses, r.addrs,
		func(a l2.Address, b netip.Addr) int {
			return a.Addr.Compare(b)
		}, l2.Address.Equal, func(i int) (l2.Address, bool) {
			if !r.now[i].answered() {
				return l2.Address{}, false
			}
			return *r.now[i].l2, true
		})
	// Aggregates come from all their addresses together.
	d.patchRoutes(hosts, func(i int) (bgp.Route, bool) { return r.now[i].hostRoute() })
	if prefixes := r.aggregated(); len(prefixes) > 0 {
		d.patchAggregates(v, prefixes)
		d.patchRoutes(prefixes, func(i int) (bgp.Route, bool) { return d.aggregateRoute(prefixes[i]) })
	}
}

// patchRoutes replaces the routes to these prefixes.
func (d *Desired) patchRoutes(prefixes []netip.Prefix, now func(i int) (bgp.Route, bool)) {
	d.BGP.Routes = sortedset.PatchSet(d.BGP.Routes, prefixes, comparePrefix, sortedset.Equal, now)
	d.Prefixes = patchPrefixes(d.Prefixes, prefixes, func(i int) bool {
		_, has := now(i)
		return has
	})
}

// patchPrefixes returns a set with those of the prefixes for which has is true, and without the
// others.
func patchPrefixes(set sortedset.Set[netip.Prefix], prefixes []netip.Prefix,
	has func(i int) bool) sortedset.Set[netip.Prefix] {
	return sortedset.PatchSet(set, prefixes, sortedset.ComparePrefixes, sortedset.Equal,
		func(i int) (netip.Prefix, bool) { return prefixes[i], has(i) })
}

// patchAggregates merges the aggregates of these prefixes again.
func (d *Desired) patchAggregates(v *Inputs, prefixes []netip.Prefix) {
	patched := sortedset.Patch(d.aggregates, prefixes, aggregate.comparePrefix, aggregate.equal,
		func(i int) (aggregate, bool) { return v.routers.aggregateOf(prefixes[i], d.Addresses) })
	if sortedset.Same(patched, d.aggregates) {
		return
	}
	d.aggregates, d.AggregateReasons = patched, nil
	var announced []netip.Prefix
	for _, a := range patched {
		d.AggregateReasons = append(d.AggregateReasons, a.reasons...)
		if !a.refused {
			announced = append(announced, a.route.Prefix)
		}
	}
	d.Aggregates = sortedset.Keep(d.Aggregates, announced)
}

// aggregated returns the prefixes of aggregates that an address of the revision has or had, sorted.
func (r revision) aggregated() (prefixes []netip.Prefix) {
	for i := range r.addrs {
		for _, a := range []*Address{r.was[i], r.now[i]} {
			if a == nil {
				continue
			}
			for _, s := range a.aggregated {
				prefixes = append(prefixes, s.prefix)
			}
		}
	}
	slices.SortFunc(prefixes, sortedset.ComparePrefixes)
	return slices.Compact(prefixes)
}

// answered reports whether this node answers for the address over Layer 2.
func (a *Address) answered() bool { return a != nil && a.l2 != nil }

// aggregateRoute returns the route to an aggregate, unless it is not announced.
func (d *Desired) aggregateRoute(prefix netip.Prefix) (bgp.Route, bool) {
	at, found := slices.BinarySearchFunc(d.aggregates, prefix, aggregate.comparePrefix)
	if !found || d.aggregates[at].refused {
		return bgp.Route{}, false
	}
	return d.aggregates[at].route, true
}

// hostRoute returns the route of the address alone, if it has one.
func (a *Address) hostRoute() (bgp.Route, bool) {
	if a != nil {
		for _, r := range a.Routes {
			if r.Prefix.IsSingleIP() {
				return r, true
			}
		}
	}
	return bgp.Route{}, false
}

// PrefixesOf returns the prefixes of routes, in their order.
func PrefixesOf(routes []bgp.Route) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(routes))
	for i, r := range routes {
		prefixes[i] = r.Prefix
	}
	return prefixes
}
