package plan

import (
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/l2"
)

// Decide decides what a node does about a snapshot. It is pure: equal arguments give equal
// results, on every node and at any time.
func Decide(c Config, snap *cluster.Snapshot) *Desired {
	return NewDecider(c).Decide(snap)
}

// A Decider decides about successive snapshots, and each time only about addresses whose decisions
// may have changed. Its results equal those of Decide, except for addresses beyond the node's
// limits: those stay as they were, as far as they fit.
type Decider struct {
	Config Config
	last   *Desired // nil before the first
	// held has the addresses of the Services in last, by the Assignments.
	held map[cluster.Name][]netip.Addr
}

// NewDecider returns a Decider without a last snapshot.
func NewDecider(c Config) *Decider {
	return &Decider{Config: c, held: map[cluster.Name][]netip.Addr{}}
}

// Decide decides about snap, in one piece also when a change concerns all addresses: a result that
// is half of earlier Inputs would need rules for what may be announced meanwhile.
func (d *Decider) Decide(snap *cluster.Snapshot) *Desired {
	last := d.last
	if last == nil {
		last = &Desired{Snapshot: &cluster.Snapshot{}}
	}
	v := d.inputs(last.Inputs, snap)
	if v == last.Inputs && snap == last.Snapshot {
		return last
	}
	var services []cluster.Service
	for s := range last.Snapshot.Services.Differences(snap.Services) {
		services = append(services, s)
	}
	v, r := share(v, last, snap, v.withoutCuts().revise(last, snap, d.changed(last, snap, v, services)))
	// The last Desired is immutable, and other goroutines may read it.
	next := *last
	next.Snapshot = snap
	if v != last.Inputs {
		next.setInputs(d.Config, v)
	}
	next.patch(v, r)
	next.wanted, next.forwarded = last.wanted.plus(r.wanted()), last.forwarded.plus(r.forwarded(v.capacity.limits))
	next.patchChecks(v, services)
	if v != last.Inputs || !sortedset.Same(next.Aggregates, last.Aggregates) ||
		!slices.Equal(snap.Unclaimed, last.Snapshot.Unclaimed) {
		next.Proxy.Owned = sortedset.Keep(last.Proxy.Owned, next.owned())
	}
	d.last = &next
	return d.last
}

// owned returns the prefixes in which the node rejects what it does not forward. An aggregate may
// contain more than the pools: traffic to the rest of it would otherwise loop between the node and
// the router. Addresses without a claim are left out: kube-proxy may forward them for another
// implementation, and a rejection would come before kube-proxy's rules.
func (d *Desired) owned() []netip.Prefix {
	return sortedset.RemoveAddrs(sortedset.AddPrefixes(d.Inputs.Owned, d.Aggregates), d.Snapshot.Unclaimed)
}

// inputs returns the last Inputs if nothing that they depend on has changed.
func (d *Decider) inputs(last *Inputs, snap *cluster.Snapshot) *Inputs {
	if last != nil && last.isCurrent(d.Config, snap) {
		return last
	}
	v := newInputs(d.Config, snap)
	if last != nil {
		v.keep(last)
	}
	return v
}

// setInputs sets the parts that do not depend on Services.
func (d *Desired) setInputs(c Config, v *Inputs) {
	d.Inputs, d.UsesL2 = v, v.layer2.used
	d.Proxy.Node, d.Proxy.Clients, d.Proxy.SNAT = v.Node, v.clients, c.SNAT
	r := v.routers
	d.BGP = bgp.State{
		ASN: r.asn, RouterID: r.routerID, NextHop4: r.next4, NextHop6: r.next6, Sessions: r.sessions,
		Shutdown: v.planned, Routes: d.BGP.Routes,
	}
	d.L2 = l2.State{
		Speakers: v.layer2.speakerMACs, Nodes: v.layer2.nodeAddrs, Pools: v.layer2.pools, Addresses: d.L2.Addresses,
	}
}

// changed returns, sorted, the addresses whose decisions may differ from last: those of changed Services,
// Assignments and Claims, and addresses that changed Inputs concern.
func (d *Decider) changed(last *Desired, snap *cluster.Snapshot, v *Inputs,
	services []cluster.Service) (addrs []netip.Addr) {
	have := last.Snapshot
	for a := range have.Assignments.Differences(snap.Assignments) {
		addrs = append(addrs, a.Addr)
	}
	d.index(have, snap, addrs)
	for i, s := range services {
		if i == 0 || s.Name != services[i-1].Name { // both versions of a Service are in the list
			addrs = append(addrs, d.held[s.Name]...)
		}
	}
	if v.layer2.used {
		// A claim names the preferred owner of its address.
		for c := range have.Claims.Differences(snap.Claims) {
			addrs = append(addrs, c.Addr)
		}
	}
	if v != last.Inputs && last.Inputs != nil {
		addrs = append(addrs, v.capacity.refused.differ(last.Inputs.capacity.refused)...)
		addrs = append(addrs, v.concerned(last, snap)...)
	}
	return inOrder(addrs)
}

// index updates held for the addresses whose Assignments differ.
func (d *Decider) index(have, snap *cluster.Snapshot, addrs []netip.Addr) {
	for _, addr := range addrs {
		for _, a := range have.AssignmentsOf(addr) {
			rest := slices.DeleteFunc(d.held[a.Service], func(b netip.Addr) bool { return b == addr })
			if d.held[a.Service] = rest; len(rest) == 0 {
				delete(d.held, a.Service)
			}
		}
	}
	for _, addr := range addrs {
		for _, a := range snap.AssignmentsOf(addr) {
			if !slices.Contains(d.held[a.Service], addr) {
				d.held[a.Service] = append(d.held[a.Service], addr)
			}
		}
	}
}

// concerned returns the addresses about which these Inputs may decide differently from the last ones,
// with the same Services. Elections take microseconds each, so it looks at parts concurrently, as
// revise does.
func (in *Inputs) concerned(last *Desired, snap *cluster.Snapshot) []netip.Addr {
	all, pools := !in.decidesLike(last.Inputs), !slices.Equal(in.adverts.pools, last.Inputs.adverts.pools)
	silent, before := in.topology.unresponsive, last.Inputs.topology.unresponsive
	unresponsive, election := silent.differ(before), in.layer2.change(&last.Inputs.layer2)
	if !all && !pools && !unresponsive && !election.changed {
		return nil
	}
	parts := slices.Collect(slices.Chunk(last.Addresses.Slice(), revisePart))
	concerned := make([][]netip.Addr, len(parts))
	var running sync.WaitGroup
	for i, part := range parts {
		running.Go(func() {
			for _, a := range part {
				if all || pools && (a.origin != originOf(snap, a.Addr) ||
					permitsOther(a.origin.Pool, in.adverts.pools, last.Inputs.adverts.pools)) ||
					unresponsive && silent.concern(a, before) || election.changed && in.layer2.concerns(a, election) {
					concerned[i] = append(concerned[i], a.Addr)
				}
			}
		})
	}
	running.Wait()
	return slices.Concat(concerned...)
}

// permitsOther reports whether a pool permits other annotations of Services than it did.
func permitsOther(name string, pools, last []*cluster.Pool) bool {
	is, was := cluster.PoolNamed(pools, name), cluster.PoolNamed(last, name)
	if is == was || is == nil || was == nil {
		return is != was
	}
	return is.AllowL2Node != was.AllowL2Node || !reflect.DeepEqual(is.ServiceCommunities, was.ServiceCommunities)
}

// originOf returns the origin of an assigned address.
func originOf(snap *cluster.Snapshot, addr netip.Addr) (from cluster.Origin) {
	if all := snap.AssignmentsOf(addr); len(all) > 0 {
		from = snap.OriginOf(all[0])
	}
	return from
}
