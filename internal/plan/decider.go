package plan

import (
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// Decide decides what a node does about a snapshot. It is pure: equal arguments give equal
// results, on every node and at any time.
func Decide(c Config, snap *cluster.Snapshot) *Desired {
	return NewDecider(c).Decide(snap)
}

// A Decider decides about successive snapshots, and only about the addresses that may be decided
// otherwise than for the last one. Its results equal those of Decide.
type Decider struct {
	Config Config
	last   *Desired // nil before the first
	// held has the addresses of the Services in last, by the Assignments.
	held map[cluster.Name][]netip.Addr
}

// NewDecider returns a Decider without a last snapshot.
func NewDecider(c Config) *Decider { return &Decider{Config: c, held: map[cluster.Name][]netip.Addr{}} }

// Decide decides about snap.
func (d *Decider) Decide(snap *cluster.Snapshot) *Desired {
	last := d.last
	if last == nil {
		last = &Desired{Snapshot: &cluster.Snapshot{}}
	}
	v := d.view(last.View, snap)
	if v == last.View && snap == last.Snapshot {
		return last
	}
	services := sortedset.Differ(last.Snapshot.Services, snap.Services, compareServices)
	r := v.revise(last, snap, d.changed(last, snap, v, services))
	// The last Desired is immutable, and other goroutines may read it.
	next := *last
	next.Snapshot = snap
	if v != last.View {
		next.setView(d.Config, v)
	}
	next.patch(v, r)
	next.patchChecks(v, services)
	// An aggregate may exceed the pools: the node rejects traffic to the rest of it, which would
	// otherwise loop between the node and the router.
	if v != last.View || !sortedset.Same(next.Aggregates, last.Aggregates) {
		next.Proxy.Owned = sortedset.Keep(last.Proxy.Owned, sortedset.AddPrefixes(v.Owned, next.Aggregates))
	}
	d.last = &next
	return d.last
}

// view returns the last View if nothing that it depends on has changed.
func (d *Decider) view(last *View, snap *cluster.Snapshot) *View {
	if last != nil && last.isCurrent(d.Config, snap) {
		return last
	}
	v := newView(d.Config, snap)
	if last != nil {
		v.keep(last)
	}
	return v
}

// setView sets what does not depend on Services.
func (d *Desired) setView(c Config, v *View) {
	d.View, d.UsesL2 = v, v.usesL2
	d.Proxy.Node, d.Proxy.Clients, d.Proxy.SNAT = v.Node, v.clients, c.SNAT
	d.BGP = bgp.State{ASN: v.asn, RouterID: v.routerID, NextHop4: v.next4, NextHop6: v.next6, Sessions: v.sessions, Shutdown: v.planned, Routes: d.BGP.Routes}
	d.L2 = l2.State{Speakers: v.speakerMACs, Nodes: v.nodeAddrs, Pools: v.l2Pools, Addresses: d.L2.Addresses}
}

// changed returns the addresses that may be decided otherwise than last, sorted: those of changed
// Services, Assignments and Claims, and the addresses which a changed View concerns.
func (d *Decider) changed(last *Desired, snap *cluster.Snapshot, v *View, services []cluster.Service) (addrs []netip.Addr) {
	have := last.Snapshot
	for _, a := range sortedset.Differ(have.Assignments, snap.Assignments, cluster.Assignment.Compare) {
		addrs = append(addrs, a.Addr)
	}
	d.index(have, snap, addrs)
	for _, s := range services {
		addrs = append(addrs, d.held[s.Name]...)
	}
	if v.usesL2 {
		// A claim names the preferred owner of its address.
		for _, c := range sortedset.Differ(have.Claims, snap.Claims, compareClaims) {
			addrs = append(addrs, c.Addr)
		}
	}
	if v != last.View {
		addrs = append(addrs, v.concerned(last, snap)...)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
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

// concerned returns the addresses that this View may decide otherwise than the last one, with the
// same Services.
func (v *View) concerned(last *Desired, snap *cluster.Snapshot) (addrs []netip.Addr) {
	if last.View == nil {
		return nil // there is no address yet
	}
	all, pools := !v.decidesLike(last.View), !slices.Equal(v.fromPools, last.View.fromPools)
	silence, election := v.silenceDiffers(last.View), v.electionChange(last.View)
	if !all && !pools && !silence && !election.changed {
		return nil
	}
	for _, a := range last.Addresses {
		if all || pools && (a.origin != originOf(snap, a.Addr) || v.permitsOther(a.origin.Pool, last.View)) || silence && v.silenceConcerns(a, last.View) || election.changed && v.electionConcerns(a, election) {
			addrs = append(addrs, a.Addr)
		}
	}
	return addrs
}

// permitsOther reports whether a pool permits other annotations of Services than in the last View.
func (v *View) permitsOther(pool string, last *View) bool {
	is, was := cluster.PoolNamed(v.fromPools, pool), cluster.PoolNamed(last.fromPools, pool)
	if is == was || is == nil || was == nil {
		return is != was
	}
	return is.AllowL2Node != was.AllowL2Node || !reflect.DeepEqual(is.ServiceCommunities, was.ServiceCommunities)
}

// originOf returns where an assigned address comes from.
func originOf(snap *cluster.Snapshot, addr netip.Addr) (from cluster.Origin) {
	if all := snap.AssignmentsOf(addr); len(all) > 0 {
		from = snap.OriginOf(all[0])
	}
	return from
}

// revisePart is how many addresses are decided one after the other. More are decided at the same
// time: a change that concerns all takes one core longer than a pass should last.
const revisePart = 1000

// revise decides about these addresses.
func (v *View) revise(last *Desired, snap *cluster.Snapshot, addrs []netip.Addr) revision {
	r := revision{addrs: addrs, was: make([]*Address, len(addrs)), now: make([]*Address, len(addrs))}
	var parts sync.WaitGroup
	for from := 0; from < len(addrs); from += revisePart {
		part := revision{addrs[from:min(from+revisePart, len(addrs))], r.was[from:], r.now[from:]}
		if len(addrs) <= revisePart {
			v.revisePart(last, snap, part)
			break
		}
		parts.Go(func() { v.revisePart(last, snap, part) })
	}
	parts.Wait()
	return r
}

// revisePart fills in a part of a revision.
func (v *View) revisePart(last *Desired, snap *cluster.Snapshot, r revision) {
	rest := last.Addresses
	for i, addr := range r.addrs {
		var found bool
		if rest, found = sortedset.Seek(rest, addr, compareAddress); found {
			r.was[i] = rest[0]
		}
		if all := snap.AssignmentsOf(addr); len(all) > 0 {
			r.now[i] = v.decide(addr, all[0].Pool, v.inputOf(snap, all)).reuse(r.was[i])
		}
	}
}

// reuse returns the decision with the VIP of the last one, which may be nil, if they are equal: the
// proxy skips equal pointers.
func (d decision) reuse(last *Address) *Address {
	if last != nil && last.VIP.Equal(d.VIP) {
		d.VIP = last.VIP
	}
	return d.Address
}

// inputOf returns what there is to decide about the address of all these Assignments.
func (v *View) inputOf(snap *cluster.Snapshot, all []cluster.Assignment) addressInput {
	h := addressInput{origin: snap.OriginOf(all[0]), services: make([]cluster.Service, 0, len(all))}
	for _, a := range all {
		if i := find(snap, a.Service); i >= 0 {
			h.services = append(h.services, snap.Services[i])
		}
	}
	byPrecedence(h.services)
	if v.usesL2 {
		h.claim = snap.Claim(all[0].Addr)
	}
	return h
}
