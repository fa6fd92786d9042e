package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// An aggregate is a route for several addresses, which contribute to its attributes.
type aggregate struct {
	route   bgp.Route // its Prefix is also set if the route is not announced
	refused bool      // it is not announced
	reasons []cluster.Reason
}

func (a aggregate) equal(b aggregate) bool {
	return a.route == b.route && a.refused == b.refused && slices.Equal(a.reasons, b.reasons)
}

func (a aggregate) comparePrefix(p netip.Prefix) int {
	return sortedset.ComparePrefixes(a.route.Prefix, p)
}

// aggregateOf merges the aggregates of a prefix, and returns false if there are none. Its addresses
// are a part of all; Reasons go to the first of them.
func (r *routers) aggregateOf(prefix netip.Prefix, all sortedset.Set[*Address]) (merged aggregate, found bool) {
	var specs []routeSpec // one, once found
	var first *Address
	explain := func(a *Address, code cluster.Code, message string) {
		merged.reasons = append(merged.reasons,
			cluster.Reason{VIP: a.Addr, Service: a.Services[0], Protocol: "bgp", Code: code, Message: message})
	}
	for a := range sortedset.From(all, prefix.Addr(), compareAddress) {
		if !prefix.Contains(a.Addr) {
			break
		}
		for _, s := range a.aggregated {
			if s.prefix != prefix {
				continue
			}
			specs = addSpec(specs, s)
			first = cmp.Or(first, a)
		}
	}
	if first == nil {
		return merged, false
	}
	route, findings := r.route(specs[0])
	merged.route = route
	if err := route.Validate(); err != nil {
		merged.refused = true
		explain(first, cluster.AttributesRefused, "the aggregate is not announced: "+err.Error())
		return merged, true
	}
	for _, f := range findings {
		explain(first, f.code, f.message)
	}
	return merged, true
}

// prefix returns the prefix by which an advertisement announces an address. If any Service of
// the address has the policy Local, it is the address alone: an aggregate would attract its
// traffic to nodes without endpoints.
func (a *announcement) prefix(taken *reserved, ad *cluster.Advertisement, addr netip.Addr, local bool) netip.Prefix {
	prefix, host := ad.Prefix(addr), netip.PrefixFrom(addr, addr.BitLen())
	if prefix == host {
		return host
	}
	if local {
		a.notAggregated = append(a.notAggregated, prefix)
		return host
	}
	if foreign := taken.in(prefix); foreign != "" {
		a.refusedAggregates = append(a.refusedAggregates,
			fmt.Sprintf("announced on its own: the aggregate %s of BGPAdvertisement %s contains %s; "+
				"choose a longer aggregation length", prefix, ad.Name, foreign))
		return host
	}
	// Until all Nodes are known, the aggregate may contain the address of one.
	if !taken.allNodes {
		a.refusedAggregates = append(a.refusedAggregates,
			fmt.Sprintf("announced on its own for now: the aggregate %s of BGPAdvertisement %s must not contain "+
				"addresses of Nodes, "+
				"which have not been read yet", prefix, ad.Name))
		return host
	}
	return prefix
}

// reserved is what no aggregate may contain.
type reserved struct {
	foreign  []foreignPrefix    // seen from this node
	occupied []cluster.Occupied // in the whole cluster
	allNodes bool               // occupied includes all Nodes
}

// like reports whether the same aggregates are refused.
func (r *reserved) like(o *reserved) bool {
	return r.allNodes == o.allNodes && sortedset.Same(r.occupied, o.occupied) && slices.Equal(r.foreign, o.foreign)
}

// in describes what a prefix contains that is not for Services, empty if nothing. This node
// would reject traffic to it; if it is a router, the routes would end its own session.
func (r *reserved) in(prefix netip.Prefix) string {
	for _, f := range r.foreign {
		if prefix.Overlaps(f.prefix) {
			return f.what
		}
	}
	if o := (&cluster.Snapshot{Occupied: r.occupied}).OccupiedIn(prefix); o.By != "" {
		return o.Text()
	}
	return ""
}

// A foreignPrefix is a network that is not for Services.
type foreignPrefix struct {
	prefix netip.Prefix
	what   string
}

// newReserved collects the prefixes that this node itself, its pods and its routers use.
func newReserved(snap *cluster.Snapshot, self *cluster.Node, pods []netip.Prefix, peers []*cluster.Peer) *reserved {
	r := &reserved{occupied: snap.Occupied, allNodes: snap.AllNodes}
	host := func(a netip.Addr, format string) {
		if a.IsValid() {
			a = a.WithZone("") // of a link-local router: a prefix has no zone
			r.foreign = append(r.foreign, foreignPrefix{netip.PrefixFrom(a, a.BitLen()), fmt.Sprintf(format, a)})
		}
	}
	if self != nil {
		for _, a := range self.InternalIPs {
			host(a, "this node's address %s")
		}
		for _, p := range self.PodCIDRs {
			r.foreign = append(r.foreign, foreignPrefix{p.Masked(), fmt.Sprintf("the pod network %s", p)})
		}
	}
	for _, p := range pods {
		r.foreign = append(r.foreign, foreignPrefix{p.Masked(), fmt.Sprintf("the pod network %s", p)})
	}
	for _, p := range peers {
		host(p.PeerAddress, "the address %s of router "+p.Name)
		host(p.SourceAddress, "the address %s of the session with router "+p.Name)
	}
	r.foreign = append(r.foreign, reservedPrefixes...)
	return r
}

// reservedPrefixes are in use on every link. A node that rejected traffic to them would cut
// itself off: router advertisements, for example, have a multicast destination.
var reservedPrefixes = []foreignPrefix{
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback addresses (127.0.0.0/8)"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local addresses (169.254.0.0/16)"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast addresses (224.0.0.0/4)"},
	{netip.MustParsePrefix("::1/128"), "the loopback address (::1)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local addresses (fe80::/10)"},
	{netip.MustParsePrefix("ff00::/8"), "multicast addresses (ff00::/8)"},
}
