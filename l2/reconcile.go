package l2

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/notify"
)

// reconcile applies the State to the addresses that differ from before, the Addresses that were
// applied last; without plans, to all addresses. It releases addresses first, then assigns.
func (a *Announcer) reconcile(before []Address) {
	k := a.worker
	all := k.plans == nil
	if all {
		k.plans = planPools(a.want.Pools, a.interfaces) // written by this goroutine only
	}
	changed := changes(before, a.want.Addresses, all)
	k.plans.update(changed, a.interfaces)
	a.mu.Lock()
	if all {
		a.updateSpeakers()
	}
	a.release(changed)
	a.mu.Unlock()
	failed := k.openSockets(a, all)
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.failures, func(k socketKey, _ error) bool { return k != listFailed })
	maps.Copy(a.failures, failed)
	a.assign(changed, time.Now())
	if len(failed) > 0 {
		k.plans = nil // they lack the sockets that failed
	}
	notify.Changed(a.wake)
}

// openSockets opens and closes sockets as planned, and deletes the plans of sockets that fail. It
// opens a socket again that has failed, but only if all addresses are reconsidered: the new socket
// has none. The socket's goroutine has requested that.
func (k *worker) openSockets(a *Announcer, all bool) map[socketKey]error {
	failed := make(map[socketKey]error)
	for key, p := range k.sockets {
		if k.plans[key] == nil || all && p.failed.Load() {
			p.close()
			delete(k.sockets, key)
		}
	}
	for key, b := range k.plans {
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
			delete(k.plans, key) // an open socket keeps its addresses
		}
	}
	return failed
}

// release stops answering, with mu held, for changed addresses where they are not planned.
func (a *Announcer) release(changed []change) {
	for _, c := range changed {
		x := a.addresses[c.addr]
		if x == nil {
			continue
		}
		x.claims = slices.DeleteFunc(x.claims, func(on claim) bool {
			gone := !a.worker.plans[on.socket.key].has(c.addr) || on.socket.failed.Load()
			if gone {
				delete(on.socket.claims.addresses, c.addr)
			}
			return gone
		})
		if c.want == nil {
			x.timer = nil
			delete(a.addresses, c.addr)
			a.relist(x)
		}
	}
}

// assign gives sockets, with mu held, to the changed addresses that are planned.
func (a *Announcer) assign(changed []change, now time.Time) {
	fresh := make(map[*packetSocket]bool)
	for key, b := range a.worker.plans {
		p := a.worker.sockets[key]
		if p.claims.mac != b.iface.MAC {
			fresh[p] = true
		}
		p.iface, p.pools = b.iface, b.pools
		p.claims.mac, p.claims.own, p.claims.speakers = b.iface.MAC, a.worker.own, a.worker.speakers
	}
	for _, c := range changed {
		if c.want == nil {
			continue
		}
		x := a.addresses[c.addr]
		if x == nil {
			x = &address{phase: Waiting, since: now, needsProbe: c.want.Probe}
			a.addresses[c.addr] = x
		}
		again := x.update(*c.want, a.worker.speakers)
		a.assignSockets(x, fresh, now)
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

// updateSpeakers lists, with mu held, the hardware addresses that cause no conflict.
func (a *Announcer) updateSpeakers() {
	maps.DeleteFunc(a.knownNodes, func(_ MAC, node netip.Addr) bool { return !slices.Contains(a.want.Nodes, node) })
	all := make(map[MAC]bool, len(a.want.Speakers)+len(a.knownNodes))
	for _, m := range a.want.Speakers {
		all[m] = true
	}
	for m := range a.knownNodes {
		all[m] = true
	}
	a.worker.speakers = all
}

// assignSockets gives x its planned sockets, and starts probing or announcing on the new ones.
func (a *Announcer) assignSockets(x *address, fresh map[*packetSocket]bool, now time.Time) {
	var begin []*packetSocket
	for key, b := range a.worker.plans {
		if key.protocol != protocolOf(x.want.Addr) || !b.has(x.want.Addr) {
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
		a.enter(x, Waiting, now)
	case x.needsProbe:
		if x.phase != Probing || len(begin) > 0 {
			a.startProbing(x, now)
		}
	default:
		x.timer = nil
		if x.phase != Held {
			a.enter(x, Held, now)
			begin = x.sockets()
		}
		a.startAnnouncing(x, begin, now)
	}
}

func (a *Announcer) enter(x *address, p Phase, now time.Time) {
	if x.phase == p {
		return
	}
	if x.phase == Held || p == Held {
		a.relist(x)
	}
	x.phase, x.since, x.early, x.asked = p, now, false, nil
	x.wasHeld = x.wasHeld || p == Held
}

func (x *address) sockets() []*packetSocket {
	sockets := make([]*packetSocket, len(x.claims))
	for i, c := range x.claims {
		sockets[i] = c.socket
	}
	return sockets
}
