package speaker

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// An interfaceOffer is the interfaces by which this node can be elected to answer for addresses.
// They matter to at least one address, and other speakers know them. With an interface that
// others do not know, this node and another one would both elect themselves.
type interfaceOffer struct {
	list []l2.Interface      // never nil
	meta membership.NodeMeta // what other speakers receive

	// The inputs of list. Keeping the snapshot would keep all of it in memory.
	pools          []*cluster.Pool
	advertisements []*cluster.L2Advertisement
	assignments    cluster.Assignments
	all            []l2.Interface
	withheld       [2]bool
}

// next returns the offer for a snapshot, without withheld families; o itself if its inputs are the same.
// bounded: other speakers receive the interfaces, in a message of limited size.
func (o *interfaceOffer) next(snap *cluster.Snapshot, all []l2.Interface, withheld [2]bool,
	bounded bool) *interfaceOffer {
	if o != nil && o.withheld == withheld && o.sameInput(snap, all) {
		return o
	}
	n := &interfaceOffer{
		list: []l2.Interface{}, pools: snap.Pools, advertisements: snap.L2Advertisements, assignments: snap.Assignments,
		all: all, withheld: withheld,
	}
	n.list = append(n.list, relevantInterfaces(snap, withoutFamilies(withheld, all))...)
	if bounded {
		var omitted []string
		if n.meta.Encoded, omitted = membership.EncodeInterfaces(withAddresses(n.list)); len(omitted) > 0 {
			n.meta.Encoded, omitted = membership.EncodeInterfaces(n.list)
		}
		n.meta.Omitted = len(omitted)
		n.list = slices.DeleteFunc(n.list, func(i l2.Interface) bool { return slices.Contains(omitted, i.Name) })
	}
	if o != nil && reflect.DeepEqual(o.list, n.list) {
		n.list = o.list
	}
	return n
}

// withAddresses adds the interfaces' own addresses, as prefixes of one address. If the
// message has no room for them, other nodes redirect connections to this node's InternalIP
// only.
func withAddresses(list []l2.Interface) (all []l2.Interface) {
	for _, i := range list {
		i.Prefixes = slices.Clone(i.Prefixes)
		for _, a := range i.Addrs {
			i.Prefixes = append(i.Prefixes, sortedset.HostPrefix(a))
		}
		all = append(all, i)
	}
	return all
}

// sameInput reports whether next would return the same. Most snapshots differ in other
// objects.
func (o *interfaceOffer) sameInput(snap *cluster.Snapshot, all []l2.Interface) bool {
	return sortedset.Same(o.all, all) && o.assignments.Same(snap.Assignments) &&
		slices.Equal(o.pools, snap.Pools) && slices.Equal(o.advertisements, snap.L2Advertisements)
}

// relevantInterfaces returns the interfaces that matter to any address. A node may have
// hundreds of others, which come and go with its pods.
func relevantInterfaces(snap *cluster.Snapshot, all []l2.Interface) (list []l2.Interface) {
	if !snap.UsesL2() {
		return nil
	}
	for _, i := range all {
		if election.Relevant(snap, i) {
			list = append(list, i)
		}
	}
	return list
}

// withheldFamilies returns the families, IPv4 and IPv6, for which this node offers no interface:
// the kernel forwards nothing of them, so another node must answer for their addresses. last is the
// last decision: addresses whose endpoints are all in the network of the host need no forwarding,
// and perhaps no other node has such an endpoint.
func withheldFamilies(b *obstacle.Blockade, last *plan.Desired) (withheld [2]bool) {
	if b == nil {
		return withheld
	}
	for family, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		same := func(a netip.Addr) bool { return a.Is4() == any.Is4() }
		withheld[family] = b.BlocksForwarding(any) && (last == nil || !last.Unobstructed(b, same))
	}
	return withheld
}

// withoutFamilies returns all without the prefixes of withheld families, and without interfaces that
// have no other prefix.
func withoutFamilies(withheld [2]bool, all []l2.Interface) (left []l2.Interface) {
	if withheld == ([2]bool{}) {
		return all
	}
	for _, i := range all {
		i.Prefixes = slices.DeleteFunc(slices.Clone(i.Prefixes), func(p netip.Prefix) bool {
			return p.Addr().Is4() && withheld[0] || p.Addr().Is6() && withheld[1]
		})
		if slices.ContainsFunc(i.Prefixes, func(p netip.Prefix) bool { return !p.Addr().IsLinkLocalUnicast() }) {
			left = append(left, i)
		}
	}
	return left
}
