package speaker

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// withheldFamilies returns the families, IPv4 and IPv6, for which this node offers no interface:
// nothing of them is forwarded, so that another node must answer for their addresses. last is
// the last decision: an address whose endpoints are all in the network of the host needs no
// forwarding, and perhaps no other node has any of these.
func withheldFamilies(b *proxy.Blockade, last *plan.Desired) (withheld [2]bool) {
	if b == nil {
		return withheld
	}
	for family, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		same := func(a netip.Addr) bool { return a.Is4() == any.Is4() }
		withheld[family] = b.BlocksForwarding(any) && (last == nil || !last.Unobstructed(b, same))
	}
	return withheld
}

// An offerable is the interfaces of this node without what is withheld. It keeps its last
// result, which is compared by identity.
type offerable struct {
	all, left []l2.Interface
	withheld  [2]bool
}

// without returns all without the prefixes of withheld families, and without interfaces that have
// no other prefix.
func (o *offerable) without(withheld [2]bool, all []l2.Interface) []l2.Interface {
	if withheld == ([2]bool{}) {
		return all
	}
	if o.withheld == withheld && sortedset.Same(o.all, all) {
		return o.left
	}
	left := []l2.Interface{}
	for _, i := range all {
		i.Prefixes = slices.DeleteFunc(slices.Clone(i.Prefixes), func(p netip.Prefix) bool {
			return p.Addr().Is4() && withheld[0] || p.Addr().Is6() && withheld[1]
		})
		if slices.ContainsFunc(i.Prefixes, func(p netip.Prefix) bool { return !p.Addr().IsLinkLocalUnicast() }) {
			left = append(left, i)
		}
	}
	o.all, o.left, o.withheld = all, left, withheld
	return left
}
