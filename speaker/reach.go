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

// A reach is the interfaces by which this node can be elected to answer for addresses:
// those that matter to any, and that the other speakers are told of. Who counted one that
// they do not know would elect itself while they elect another, and two would answer.
type reach struct {
	list  []l2.Interface   // never nil: they are known
	offer membership.NodeMeta // what the others are told

	// What it was found by; all of a snapshot would be kept for little.
	pools          []*cluster.Pool
	advertisements []*cluster.L2Advertisement
	assignments    []cluster.Assignment
	all            []l2.Interface
}

// next is the reach of snap and all interfaces of the node, with the same list if it has the
// same in it. Bounded says that others are told.
func (r *reach) next(snap *cluster.Snapshot, all []l2.Interface, bounded bool) *reach {
	if r != nil && r.of(snap, all) {
		return r
	}
	n := &reach{list: []l2.Interface{}, pools: snap.Pools, advertisements: snap.L2Advertisements, assignments: snap.Assignments, all: all}
	var told []membership.Interface
	for _, i := range relevant(snap, all) {
		told = append(told, membership.Interface{Name: i.Name, MAC: net.HardwareAddr(i.MAC[:]), Prefixes: i.Prefixes})
		n.list = append(n.list, i)
	}
	if bounded {
		var left []string
		if n.offer.Encoded, left = membership.EncodeInterfaces(withAddresses(told, n.list)); len(left) > 0 {
			n.offer.Encoded, left = membership.EncodeInterfaces(told)
		}
		n.offer.Omitted = len(left)
		n.list = slices.DeleteFunc(n.list, func(i l2.Interface) bool { return slices.Contains(left, i.Name) })
	}
	if r != nil && reflect.DeepEqual(r.list, n.list) {
		n.list = r.list
	}
	return n
}

// withAddresses tells of interfaces their own addresses as well, as prefixes of one address.
// Where there is no room for all of that, nobody hands connections on to this node but by its
// InternalIP.
func withAddresses(told []membership.Interface, list []l2.Interface) (all []membership.Interface) {
	for n, i := range told {
		i.Prefixes = slices.Clone(i.Prefixes)
		for _, a := range list[n].Addrs {
			i.Prefixes = append(i.Prefixes, sortedset.HostPrefix(a))
		}
		all = append(all, i)
	}
	return all
}

// of says whether next would find the same. Most snapshots differ in what does not matter
// here.
func (r *reach) of(snap *cluster.Snapshot, all []l2.Interface) bool {
	return sortedset.Same(r.all, all) && sortedset.Same(r.assignments, snap.Assignments) &&
		slices.Equal(r.pools, snap.Pools) && slices.Equal(r.advertisements, snap.L2Advertisements)
}

// relevant are the interfaces that matter to any address. A node may have hundreds of
// others, which come and go with its pods.
func relevant(snap *cluster.Snapshot, all []l2.Interface) (list []l2.Interface) {
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
