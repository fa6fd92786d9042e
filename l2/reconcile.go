package l2

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/notify"
)

// A socketPlan lists the addresses that a socket should answer for.
type socketPlan struct {
	iface     Interface
	addresses map[netip.Addr]bool
	pools     []netip.Prefix // whose requests are remembered
}

// planSockets assigns each address to the sockets that should answer for it, and each pool to those
// of its links.
func planSockets(want State, interfaces []Interface) map[socketKey]*socketPlan {
	named := make(map[string]bool)
	for _, x := range want.Addresses {
		for _, name := range x.Interfaces {
			named[name] = true
		}
	}
	plans := make(map[socketKey]*socketPlan)
	for _, i := range interfaces {
		if len(i.Prefixes) == 0 && !named[i.Name] {
			continue // most interfaces of pods, of which there may be hundreds
		}
		plan := func(p *protocol) *socketPlan {
			key := socketKey{i.Index, p}
			if plans[key] == nil {
				plans[key] = &socketPlan{iface: i, addresses: make(map[netip.Addr]bool)}
			}
			return plans[key]
		}
		for _, x := range want.Addresses {
			if i.Carries(x) {
				plan(protocolOf(x.Addr)).addresses[x.Addr] = true
			}
		}
		for _, pool := range want.Pools {
			if pool.Addr().Is4() && slices.ContainsFunc(i.Prefixes, pool.Overlaps) {
				b := plan(arpProtocol)
				b.pools = append(b.pools, pool)
			}
		}
	}
	return plans
}

// reconcile applies the State: it releases addresses first, then assigns.
func (a *Announcer) reconcile() {
	plans := planSockets(a.want, a.interfaces) // written by this goroutine only
	a.mu.Lock()
	a.release(plans)
	a.mu.Unlock()
	failed := a.worker.openSockets(a, plans)
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.failures, func(k socketKey, _ error) bool { return k != listFailed })
	maps.Copy(a.failures, failed)
	a.assign(plans, time.Now())
	notify.Changed(a.wake)
}

// openSockets opens and closes sockets as planned, and deletes the plans of sockets that fail.
func (k *worker) openSockets(a *Announcer, plans map[socketKey]*socketPlan) map[socketKey]error {
	failed := make(map[socketKey]error)
	for key, p := range k.sockets {
		if plans[key] == nil || p.failed.Load() {
			p.close()
			delete(k.sockets, key)
		}
	}
	for key, b := range plans {
		p, err := k.sockets[key], error(nil)
		if p == nil {
			p, err = openSocket(a, key, b.iface)
		}
		if err == nil {
			k.sockets[key] = p
			err = p.apply(b)
		}
		if err != nil {
			failed[key] = fmt.Errorf("%s on %s: %w", key.protocol.name, b.iface.Name, err)
			delete(plans, key) // an open socket keeps its addresses
		}
	}
	return failed
}

// release stops answering, with mu held, for addresses that are not planned.
func (a *Announcer) release(plans map[socketKey]*socketPlan) {
	for _, x := range a.addresses {
		x.claims = slices.DeleteFunc(x.claims, func(c claim) bool {
			b := plans[c.socket.key]
			gone := b == nil || !b.addresses[x.want.Addr] || c.socket.failed.Load()
			if gone {
				delete(c.socket.claims.addresses, x.want.Addr)
			}
			return gone
		})
	}
	wanted := make(map[netip.Addr]bool, len(a.want.Addresses))
	for _, w := range a.want.Addresses {
		wanted[w.Addr] = true
	}
	for addr, x := range a.addresses {
		if !wanted[addr] {
			x.timer = nil
			delete(a.addresses, addr)
		}
	}
}

// assign gives sockets, with mu held, to the addresses that are planned.
func (a *Announcer) assign(plans map[socketKey]*socketPlan, now time.Time) {
	maps.DeleteFunc(a.knownNodes, func(_ MAC, node netip.Addr) bool { return !slices.Contains(a.want.Nodes, node) })
	speakers := a.speakers()
	fresh := make(map[*packetSocket]bool)
	for key, b := range plans {
		p := a.worker.sockets[key]
		if p.claims.mac != b.iface.MAC {
			fresh[p] = true
		}
		p.iface, p.pools = b.iface, b.pools
		p.claims.mac, p.claims.own, p.claims.speakers = b.iface.MAC, a.worker.own, speakers
	}
	for _, w := range a.want.Addresses {
		x := a.addresses[w.Addr]
		if x == nil {
			x = &address{phase: Waiting, since: now, needsProbe: w.Probe}
			a.addresses[w.Addr] = x
		}
		again := x.update(w, speakers)
		a.assignSockets(x, plans, fresh, now)
		if again {
			a.startAnnouncing(x, x.sockets(), now)
		}
	}
}

// update takes over the wanted Address, and reports whether a held one must be announced
// again.
func (x *address) update(w Address, speakers map[MAC]bool) (again bool) {
	again = x.phase == Held && x.want.Round != w.Round
	x.want = w
	x.clearConflict(speakers)
	if x.phase != Conflicting && x.strikes == 0 && !w.Probe {
		x.needsProbe = false
	}
	return again
}

// clearConflict ends a conflict with a host that turns out to be a speaker.
func (x *address) clearConflict(speakers map[MAC]bool) {
	if x.conflict == nil || !speakers[x.conflict.MAC] {
		return
	}
	if x.phase == Conflicting {
		x.phase, x.timer, x.needsProbe = Waiting, nil, x.want.Probe
	}
	x.conflict = nil
}

// speakers are the hardware addresses that cause no conflict.
func (a *Announcer) speakers() map[MAC]bool {
	all := make(map[MAC]bool, len(a.want.Speakers)+len(a.knownNodes))
	for _, m := range a.want.Speakers {
		all[m] = true
	}
	for m := range a.knownNodes {
		all[m] = true
	}
	return all
}

// assignSockets gives x its planned sockets, and starts probing or announcing on the new ones.
func (a *Announcer) assignSockets(x *address, plans map[socketKey]*socketPlan, fresh map[*packetSocket]bool, now time.Time) {
	var begin []*packetSocket
	for key, b := range plans {
		if key.protocol != protocolOf(x.want.Addr) || !b.addresses[x.want.Addr] {
			continue
		}
		p := a.worker.sockets[key]
		if p.claims.addresses[x.want.Addr] == x {
			if fresh[p] {
				begin = append(begin, p)
			}
			continue
		}
		p.claims.addresses[x.want.Addr] = x
		x.claims = append(x.claims, claim{socket: p})
		begin = append(begin, p)
	}
	a.advance(x, begin, now)
}

// advance moves x to the phase that it should be in, and starts probing or announcing on
// new sockets.
func (a *Announcer) advance(x *address, begin []*packetSocket, now time.Time) {
	switch {
	case x.phase == Conflicting:
		return // until its retry timer is due
	case len(x.claims) == 0:
		x.timer = nil
		x.enter(Waiting, now)
	case x.needsProbe:
		if x.phase != Probing || len(begin) > 0 {
			a.startProbing(x, now)
		}
	default:
		x.timer = nil
		if x.phase != Held {
			x.enter(Held, now)
			begin = x.sockets()
		}
		a.startAnnouncing(x, begin, now)
	}
}

func (x *address) enter(p Phase, now time.Time) {
	if x.phase != p {
		x.phase, x.since, x.early, x.asked = p, now, false, nil
		x.wasHeld = x.wasHeld || p == Held
	}
}

func (x *address) sockets() []*packetSocket {
	sockets := make([]*packetSocket, len(x.claims))
	for i, c := range x.claims {
		sockets[i] = c.socket
	}
	return sockets
}
