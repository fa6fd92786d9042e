package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// announce fills in what is announced from the addresses. What is equal to was,
// which may be nil, is was's.
func (d *Desired) announce(v *View, was *Desired) {
	routed, routes := make([]netip.Addr, 0, len(d.Addresses)), make([]bgp.Route, 0, len(d.Addresses))
	var answered []netip.Addr
	var answers []l2.Address
	var offers []offer
	first := map[netip.Prefix]*Address{} // of each aggregate
	var unfit []cluster.Reason
	for _, a := range d.Addresses {
		if len(a.Routes) > 0 {
			routed = append(routed, a.Addr)
		}
		if a.answer != nil {
			answered, answers = append(answered, a.Addr), append(answers, *a.answer)
		}
		for _, r := range a.Routes {
			if r.Prefix.IsSingleIP() {
				routes = append(routes, r)
			}
		}
		for _, o := range a.aggregated {
			var err error
			if offers, err = v.merge(offers, o); err != nil {
				unfit = append(unfit, cluster.Reason{VIP: a.Addr, Service: a.Services[0], Protocol: "bgp", Code: cluster.AttributesRefused,
					Message: fmt.Sprintf("its communities are left out of those of the aggregate: with them, %v", err)})
			}
			first[o.prefix] = cmp.Or(first[o.prefix], a)
		}
	}
	var aggregates []bgp.Route
	d.Clashes = unfit
	for _, o := range offers {
		r, clashes := v.route(o)
		a := first[o.prefix]
		if err := r.Validate(); err != nil {
			d.Clashes = append(d.Clashes, cluster.Reason{VIP: a.Addr, Service: a.Services[0], Protocol: "bgp", Code: cluster.AttributesRefused, Message: "the aggregate is not announced: " + err.Error()})
			continue
		}
		aggregates = append(aggregates, r)
		for _, c := range clashes {
			d.Clashes = append(d.Clashes, cluster.Reason{VIP: a.Addr, Service: a.Services[0], Protocol: "bgp", Code: c.code, Message: c.message})
		}
	}
	if len(aggregates) > 0 {
		routes = append(routes, aggregates...)
		slices.SortFunc(routes, func(a, b bgp.Route) int { return sortedset.ComparePrefixes(a.Prefix, b.Prefix) })
	}
	if was == nil {
		was = &Desired{}
	}
	d.Routed, d.Aggregates = sortedset.Keep(was.Routed, routed), sortedset.Keep(was.Aggregates, PrefixesOf(aggregates))
	if d.L2.Addresses = answers; slices.EqualFunc(was.L2.Addresses, answers, answersAlike) {
		d.L2.Addresses = was.L2.Addresses
	}
	if d.Answered = sortedset.Keep(was.Answered, answered); !sortedset.Same(d.Answered, was.Answered) {
		d.Hosts = sortedset.HostPrefixes(d.Answered)
	} else {
		d.Hosts = was.Hosts
	}
	d.Announce = sortedset.Keep(was.Announce, sortedset.Union(d.Routed, d.Answered, netip.Addr.Compare))
	d.BGP.Routes, d.Prefixes = sortedset.Keep(was.BGP.Routes, routes), sortedset.Keep(was.Prefixes, PrefixesOf(routes))
	d.Proxy.Owned = sortedset.Keep(was.Proxy.Owned, sortedset.AddPrefixes(v.Owned, d.Aggregates))
}

// PrefixesOf are the prefixes of routes, in their order.
func PrefixesOf(routes []bgp.Route) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(routes))
	for i, r := range routes {
		prefixes[i] = r.Prefix
	}
	return prefixes
}
