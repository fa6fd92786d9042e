package plan

import (
	"cmp"
	"net/netip"
	"slices"

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

// NodeAddresses returns the InternalIPs of this node.
func (v *View) NodeAddresses() []netip.Addr {
	if v.Self == nil {
		return nil
	}
	return v.Self.InternalIPs
}

// inOrder sorts addresses, and keeps each once.
func inOrder(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
