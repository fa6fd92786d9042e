package speaker

import (
	"reflect"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
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
	assignments    []cluster.Assignment
	all            []l2.Interface
}

// next returns the offer for a snapshot; o itself if its inputs are the same.
// bounded: other speakers receive them, in a message of limited size.
func (o *interfaceOffer) next(snap *cluster.Snapshot, all []l2.Interface, bounded bool) *interfaceOffer {
	if o != nil && o.sameInput(snap, all) {
		return o
	}
	n := &interfaceOffer{list: []l2.Interface{}, pools: snap.Pools, advertisements: snap.L2Advertisements, assignments: snap.Assignments, all: all}
	n.list = append(n.list, relevantInterfaces(snap, all)...)
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
	return sortedset.Same(o.all, all) && sortedset.Same(o.assignments, snap.Assignments) &&
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
