package plan

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// setAnnouncements derives what is announced from the addresses. Slices that are equal to
// those of last, which may be nil, are the same slices.
func (d *Desired) setAnnouncements(v *View, last *Desired) {
	if last == nil {
		last = &Desired{}
	}
	d.setL2Addresses(last)
	// Aggregates come from all addresses together: a prefix has one route, whose attributes
	// several addresses contribute to.
	aggregates := d.aggregateRoutes(v)
	routed, routes := d.hostRoutes()
	if len(aggregates) > 0 {
		routes = append(routes, aggregates...)
		slices.SortFunc(routes, func(a, b bgp.Route) int { return sortedset.ComparePrefixes(a.Prefix, b.Prefix) })
	}
	d.Routed, d.Aggregates = sortedset.Keep(last.Routed, routed), sortedset.Keep(last.Aggregates, PrefixesOf(aggregates))
	d.Announce = sortedset.Keep(last.Announce, sortedset.Union(d.Routed, d.Answered, netip.Addr.Compare))
	d.BGP.Routes, d.Prefixes = sortedset.Keep(last.BGP.Routes, routes), sortedset.Keep(last.Prefixes, PrefixesOf(routes))
	// An aggregate may exceed the pools: the node rejects traffic to the rest of it, which would
	// otherwise loop between the node and the router.
	d.Proxy.Owned = sortedset.Keep(last.Proxy.Owned, sortedset.AddPrefixes(v.Owned, d.Aggregates))
}

// setL2Addresses collects the addresses that this node answers for over Layer 2. Hosts is
// computed only after a change: it costs an allocation for each address.
func (d *Desired) setL2Addresses(last *Desired) {
	var answered []netip.Addr
	var addresses []l2.Address
	for _, a := range d.Addresses {
		if a.l2 != nil {
			answered, addresses = append(answered, a.Addr), append(addresses, *a.l2)
		}
	}
	if d.L2.Addresses = addresses; slices.EqualFunc(last.L2.Addresses, addresses, l2.Address.Equal) {
		d.L2.Addresses = last.L2.Addresses
	}
	if d.Answered = sortedset.Keep(last.Answered, answered); !sortedset.Same(d.Answered, last.Answered) {
		d.Hosts = sortedset.HostPrefixes(d.Answered)
	} else {
		d.Hosts = last.Hosts
	}
}

// hostRoutes collects the addresses with routes, and the routes that are not aggregates.
func (d *Desired) hostRoutes() (routed []netip.Addr, routes []bgp.Route) {
	routed, routes = make([]netip.Addr, 0, len(d.Addresses)), make([]bgp.Route, 0, len(d.Addresses))
	for _, a := range d.Addresses {
		if len(a.Routes) > 0 {
			routed = append(routed, a.Addr)
		}
		for _, r := range a.Routes {
			if r.Prefix.IsSingleIP() {
				routes = append(routes, r)
			}
		}
	}
	return routed, routes
}

// PrefixesOf returns the prefixes of routes, in their order.
func PrefixesOf(routes []bgp.Route) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(routes))
	for i, r := range routes {
		prefixes[i] = r.Prefix
	}
	return prefixes
}
