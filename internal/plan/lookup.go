package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// byPrecedence sorts older Services first: a new Service must not take a port from an older one.
func byPrecedence(services []cluster.Service) {
	slices.SortFunc(services, func(a, b cluster.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Name.Compare(b.Name))
	})
}

// Orders of lists.

func compareAddress(a *Address, addr netip.Addr) int { return a.Addr.Compare(addr) }
func comparePrefix(r bgp.Route, prefix netip.Prefix) int {
	return sortedset.ComparePrefixes(r.Prefix, prefix)
}

// inOrder sorts addresses, and keeps each once.
func inOrder(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// prefixesText lists prefixes for a sentence.
func prefixesText(list []netip.Prefix) string {
	var names []string
	for _, p := range list {
		names = append(names, p.String())
	}
	return cluster.Enumerate(names)
}

// addressesOf returns the InternalIPs of a node, which may be nil.
func addressesOf(n *cluster.Node) []netip.Addr {
	if n == nil {
		return nil
	}
	return n.InternalIPs
}

// ownedPrefixes returns the addresses of all pools, which may overlap, as prefixes. It leaves
// out those of nodes, pods and routers, to which packets are forwarded, and addresses that another
// implementation has given to a Service, which kube-proxy serves.
func ownedPrefixes(pools []*cluster.Pool) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range pools {
		for _, r := range p.Ranges {
			b.AddRange(r)
		}
		for _, o := range p.Occupied {
			b.RemoveRange(o.Range)
		}
	}
	return sortedset.BuildPrefixes(&b)
}

// l2Pools returns the IPv4 networks of pools that may be announced over Layer 2, without addresses
// that the cluster itself has.
func l2Pools(pools []*cluster.Pool) []netip.Prefix {
	some := slices.DeleteFunc(slices.Clone(pools),
		func(p *cluster.Pool) bool { return p.Announce == cluster.AnnounceBGP })
	return slices.DeleteFunc(ownedPrefixes(some), func(p netip.Prefix) bool { return p.Addr().Is6() })
}
