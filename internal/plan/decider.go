package plan

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A Decider decides about successive snapshots, and computes only what has changed between
// them. Its results equal those of Decide.
type Decider struct {
	Config  Config
	last    *Desired
	holders holders // of the last Assignments
}

// NewDecider returns a Decider without a last snapshot.
func NewDecider(c Config) *Decider { return &Decider{Config: c} }

// Decide decides about snap.
func (d *Decider) Decide(snap *cluster.Snapshot) *Desired {
	v := d.view(snap)
	if d.last != nil && d.last.View == v {
		if changed, ok := d.changed(snap); ok {
			d.last = d.update(snap, v, changed)
			return d.last
		}
	}
	d.last = d.rebuild(snap, v)
	return d.last
}

// view returns the last View if nothing that it depends on has changed.
func (d *Decider) view(snap *cluster.Snapshot) *View {
	if d.last != nil && d.last.View.isCurrent(d.Config, snap) {
		return d.last.View
	}
	return newView(d.Config, snap)
}

// changed returns the indexes of the Services that have changed, sorted, and false if any
// Service holds other addresses.
func (d *Decider) changed(snap *cluster.Snapshot) ([]int, bool) {
	have := d.last.Snapshot
	// A claim names the preferred owner of its address.
	if d.last.View.usesL2 && !sortedset.Same(have.Claims, snap.Claims) {
		return nil, false
	}
	// With equal Assignments and names, all indexes of the holders are still valid.
	if !sortedset.Same(have.Assignments, snap.Assignments) || len(have.Services) != len(snap.Services) {
		return nil, false
	}
	var changed []int
	for i := range snap.Services {
		if snap.Services[i] == have.Services[i] {
			continue
		}
		if snap.Services[i].Name != have.Services[i].Name {
			return nil, false
		}
		changed = append(changed, i)
	}
	return changed, true
}

// update decides about the addresses of changed Services and keeps the others.
func (d *Decider) update(snap *cluster.Snapshot, v *View, changed []int) *Desired {
	// Slices are cloned before they are changed: the last Desired is immutable, and other
	// goroutines may read it.
	next := *d.last
	next.Snapshot = snap
	next.updateChecks(v, changed)
	addresses := d.holders.addressesOf(changed)
	if len(addresses) == 0 {
		return &next
	}
	next.Addresses = slices.Clone(next.Addresses)
	next.Proxy.VIPs = slices.Clone(next.Proxy.VIPs)
	announced := false
	for _, i := range addresses {
		last := next.Addresses[i]
		a := v.decide(last.Addr, last.Pool, last.origin, d.services(nil, snap, i), last.claim).reuse(last)
		announced = announced || !equalOptionalL2(a.l2, last.l2) || !slices.Equal(a.Routes, last.Routes) || !slices.EqualFunc(a.aggregated, last.aggregated, routeSpec.equal)
		next.Addresses[i], next.Proxy.VIPs[i] = a, a.VIP
	}
	if announced {
		next.setAnnouncements(v, d.last)
	}
	return &next
}

// rebuild decides about all addresses.
func (d *Decider) rebuild(snap *cluster.Snapshot, v *View) *Desired {
	d.holders = d.holders.next(snap)
	next := &Desired{
		Proxy:    proxy.State{Node: v.Node, Clients: v.clients, SNAT: d.Config.SNAT},
		BGP:      bgp.State{ASN: v.asn, RouterID: v.routerID, NextHop4: v.next4, NextHop6: v.next6, Sessions: v.sessions, Shutdown: v.planned},
		L2:       l2.State{Speakers: v.speakerMACs, Nodes: v.nodeAddrs, Pools: v.l2Pools},
		UsesL2:   v.usesL2,
		Snapshot: snap,
		View:     v,
	}
	// Assignments are sorted by address; an address that Services share has several.
	assigned := slices.CompactFunc(slices.Clone(snap.Assignments), func(a, b cluster.Assignment) bool { return a.Addr == b.Addr })
	next.Addresses = make([]*Address, len(assigned))
	next.Proxy.VIPs = make([]*proxy.VIP, len(assigned))
	previous := d.previous()
	var services []cluster.Service // reused: most addresses have not changed and do not keep it
	for i, a := range assigned {
		last := previous(a.Addr)
		services = d.services(services[:0], snap, i)
		var claim *cluster.Claim
		if v.usesL2 {
			claim = snap.Claim(a.Addr)
		}
		origin := snap.OriginOf(a)
		if last != nil && d.last.View == v && last.Pool == a.Pool && last.origin == origin && last.claim == claim && slices.Equal(last.services, services) {
			next.Addresses[i] = last
		} else {
			next.Addresses[i] = v.decide(a.Addr, a.Pool, origin, slices.Clone(services), claim).reuse(last)
		}
		next.Proxy.VIPs[i] = next.Addresses[i].VIP
	}
	next.setAnnouncements(v, d.last)
	next.setChecks(v)
	return next
}

// previous returns a function that finds the last decision for an address, or nil. It must be
// called with addresses in their order.
func (d *Decider) previous() func(netip.Addr) *Address {
	var last []*Address
	if d.last != nil {
		last = d.last.Addresses
	}
	return func(addr netip.Addr) *Address {
		for len(last) > 0 && last[0].Addr.Less(addr) {
			last = last[1:]
		}
		if len(last) == 0 || last[0].Addr != addr {
			return nil
		}
		return last[0]
	}
}

// reuse returns a with the VIP of last, which may be nil, if they are equal: the proxy skips
// equal pointers.
func (a *Address) reuse(last *Address) *Address {
	if last != nil && last.VIP.Equal(a.VIP) {
		a.VIP = last.VIP
	}
	return a
}

// services appends the Services that hold an address to an empty slice, in the order of
// precedence.
func (d *Decider) services(list []cluster.Service, snap *cluster.Snapshot, address int) []cluster.Service {
	for _, s := range d.holders.servicesOf(address) {
		list = append(list, snap.Services[s])
	}
	byPrecedence(list)
	return list
}
