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

// A Decider decides about one snapshot after the other, and computes only what
// the difference between them touches. Its answers are those of Decide.
type Decider struct {
	Config Config
	last   *Desired
	// holders lives as long as the Assignments do.
	holders holders
}

// NewDecider returns a Decider that has not seen a snapshot yet.
func NewDecider(c Config) *Decider { return &Decider{Config: c} }

// Decide decides about snap.
func (d *Decider) Decide(snap *cluster.Snapshot) *Desired {
	v := d.look(snap)
	if d.last != nil && d.last.View == v {
		if changed, ok := d.changed(snap); ok {
			d.last = d.again(snap, v, changed)
			return d.last
		}
	}
	d.last = d.anew(snap, v)
	return d.last
}

// look reuses the last view when nothing it depends on has changed.
func (d *Decider) look(snap *cluster.Snapshot) *View {
	if d.last != nil && d.last.View.of(d.Config, snap) {
		return d.last.View
	}
	return look(d.Config, snap)
}

// changed returns the indexes of the Services that differ from the last
// snapshot's, sorted, and false when who holds what has changed as well.
func (d *Decider) changed(snap *cluster.Snapshot) ([]int, bool) {
	have := d.last.Snapshot
	if d.last.View.links && !sortedset.Same(have.Claims, snap.Claims) {
		return nil, false
	}
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

// again decides about the changed Services and takes the rest from last.
func (d *Decider) again(snap *cluster.Snapshot, v *View, changed []int) *Desired {
	next := *d.last
	next.Snapshot = snap
	next.checkAgain(v, changed)
	addresses := d.holders.of(changed)
	if len(addresses) == 0 {
		return &next
	}
	next.Addresses = slices.Clone(next.Addresses)
	next.Proxy.VIPs = slices.Clone(next.Proxy.VIPs)
	routes := false
	for _, i := range addresses {
		was := next.Addresses[i]
		is := v.decide(was.Addr, was.Pool, was.origin, d.services(nil, snap, i), was.claim).after(was)
		routes = routes || !alike(is.answer, was.answer) || !slices.Equal(is.Routes, was.Routes) || !slices.EqualFunc(is.aggregated, was.aggregated, offer.equal)
		next.Addresses[i], next.Proxy.VIPs[i] = is, is.VIP
	}
	if routes {
		next.announce(v, d.last)
	}
	return &next
}

// anew decides about everything.
func (d *Decider) anew(snap *cluster.Snapshot, v *View) *Desired {
	d.holders = d.holders.next(snap)
	next := &Desired{
		Proxy:    proxy.State{Node: v.Node, Clients: v.clients, SNAT: d.Config.SNAT},
		BGP:      bgp.State{ASN: v.asn, RouterID: v.routerID, NextHop4: v.next4, NextHop6: v.next6, Sessions: v.sessions, Shutdown: v.planned},
		L2:       l2.State{Speakers: v.speakers, Nodes: v.neighbours},
		Links:    v.links,
		Snapshot: snap,
		View:     v,
	}
	assigned := slices.CompactFunc(slices.Clone(snap.Assignments), func(a, b cluster.Assignment) bool { return a.Addr == b.Addr })
	next.Addresses = make([]*Address, len(assigned))
	next.Proxy.VIPs = make([]*proxy.VIP, len(assigned))
	former := d.former()
	var services []cluster.Service // most are as they were, and not kept
	for i, a := range assigned {
		was := former(a.Addr)
		services = d.services(services[:0], snap, i)
		var claim *cluster.Claim
		if v.links {
			claim = snap.Claim(a.Addr)
		}
		origin := snap.OriginOf(a)
		if was != nil && d.last.View == v && was.Pool == a.Pool && was.origin == origin && was.claim == claim && slices.Equal(was.from, services) {
			next.Addresses[i] = was
		} else {
			next.Addresses[i] = v.decide(a.Addr, a.Pool, origin, slices.Clone(services), claim).after(was)
		}
		next.Proxy.VIPs[i] = next.Addresses[i].VIP
	}
	next.announce(v, d.last)
	next.check(v)
	return next
}

// former returns a function that finds the last decision for an address, nil if there
// is none. It is asked for one address after the other, in their order.
func (d *Decider) former() func(netip.Addr) *Address {
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

// after is a, with what was forwarded before, which may be nil, if the same is to be
// now: then nobody looks into it.
func (a *Address) after(was *Address) *Address {
	if was != nil && was.VIP.Equal(a.VIP) {
		a.VIP = was.VIP
	}
	return a
}

// services appends those that hold an address to none, in the order of precedence.
func (d *Decider) services(none []cluster.Service, snap *cluster.Snapshot, address int) []cluster.Service {
	for _, s := range d.holders.by(address) {
		none = append(none, snap.Services[s])
	}
	byPrecedence(none)
	return none
}
