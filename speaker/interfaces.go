package speaker

import (
	"net"
	"reflect"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// electable is the interfaces by which this node can be elected to answer for addresses.
// They matter to at least one address, and other speakers know them. With an interface that
// others do not know, this node and another one would both elect themselves.
type electable struct {
	list []l2.Interface      // never nil
	meta membership.NodeMeta // what other speakers receive

	// The inputs of list. Keeping the snapshot would keep all of it in memory.
	pools          []*cluster.Pool
	advertisements []*cluster.L2Advertisement
	assignments    []cluster.Assignment
	all            []l2.Interface
}

// next returns the electable interfaces of a snapshot; r itself if its inputs are the same.
// bounded: other speakers receive them, in a message of limited size.
func (r *electable) next(snap *cluster.Snapshot, all []l2.Interface, bounded bool) *electable {
	if r != nil && r.sameInput(snap, all) {
		return r
	}
	n := &electable{list: []l2.Interface{}, pools: snap.Pools, advertisements: snap.L2Advertisements, assignments: snap.Assignments, all: all}
	var announced []membership.Interface
	for _, i := range relevantInterfaces(snap, all) {
		announced = append(announced, membership.Interface{Name: i.Name, MAC: net.HardwareAddr(i.MAC[:]), Prefixes: i.Prefixes})
		n.list = append(n.list, i)
	}
	if bounded {
		var left []string
		if n.meta.Encoded, left = membership.EncodeInterfaces(withAddresses(announced, n.list)); len(left) > 0 {
			n.meta.Encoded, left = membership.EncodeInterfaces(announced)
		}
		n.meta.Omitted = len(left)
		n.list = slices.DeleteFunc(n.list, func(i l2.Interface) bool { return slices.Contains(left, i.Name) })
	}
	if r != nil && reflect.DeepEqual(r.list, n.list) {
		n.list = r.list
	}
	return n
}

// withAddresses adds the interfaces' own addresses, as prefixes of one address. If the
// message has no room for them, other nodes redirect connections to this node's InternalIP
// only.
func withAddresses(announced []membership.Interface, list []l2.Interface) (all []membership.Interface) {
	for n, i := range announced {
		i.Prefixes = slices.Clone(i.Prefixes)
		for _, a := range list[n].Addrs {
			i.Prefixes = append(i.Prefixes, sortedset.HostPrefix(a))
		}
		all = append(all, i)
	}
	return all
}

// sameInput reports whether next would return the same. Most snapshots differ in other
// objects.
func (r *electable) sameInput(snap *cluster.Snapshot, all []l2.Interface) bool {
	return sortedset.Same(r.all, all) && sortedset.Same(r.assignments, snap.Assignments) &&
		slices.Equal(r.pools, snap.Pools) && slices.Equal(r.advertisements, snap.L2Advertisements)
}

// relevantInterfaces returns the interfaces that matter to any address. A node may have
// hundreds of others, which come and go with its pods.
func relevantInterfaces(snap *cluster.Snapshot, all []l2.Interface) (list []l2.Interface) {
	if !snap.UsesL2() {
		return nil
	}
	for _, i := range all {
		if election.Relevant(snap, cluster.Interface{Name: i.Name, Prefixes: i.Prefixes}) {
			list = append(list, i)
		}
	}
	return list
}
