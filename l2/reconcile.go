package l2

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/notify"
)

// A portPlan lists the addresses that a port should answer for.
type portPlan struct {
	iface     Interface
	addresses map[netip.Addr]bool
	pools     []netip.Prefix // whose requests are remembered
}

// planPorts assigns each address to the ports that should answer for it, and each pool to those
// of its links.
func planPorts(want State, interfaces []Interface) map[portKey]*portPlan {
	named := make(map[string]bool)
	for _, x := range want.Addresses {
		for _, name := range x.Interfaces {
			named[name] = true
		}
	}
	plans := make(map[portKey]*portPlan)
	for _, i := range interfaces {
		if len(i.Prefixes) == 0 && !named[i.Name] {
			continue // most interfaces of pods, of which there may be hundreds
		}
		plan := func(p *protocol) *portPlan {
			key := portKey{i.Index, p}
			if plans[key] == nil {
				plans[key] = &portPlan{iface: i, addresses: make(map[netip.Addr]bool)}
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
	plans := planPorts(a.want, a.interfaces) // written by this goroutine only
	a.mu.Lock()
	a.release(plans)
	a.mu.Unlock()
	failed := a.worker.openPorts(a, plans)
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.failures, func(k portKey, _ error) bool { return k != listFailed })
	maps.Copy(a.failures, failed)
	a.assign(plans, time.Now())
	notify.Changed(a.wake)
}

// openPorts opens and closes sockets as planned, and deletes the plans of ports that fail.
func (k *worker) openPorts(a *Announcer, plans map[portKey]*portPlan) map[portKey]error {
	failed := make(map[portKey]error)
	for key, p := range k.ports {
		if plans[key] == nil || p.failed.Load() {
			p.close()
			delete(k.ports, key)
		}
	}
	for key, b := range plans {
		p, err := k.ports[key], error(nil)
		if p == nil {
			p, err = openPort(a, key, b.iface)
		}
		if err == nil {
			k.ports[key] = p
			err = p.apply(b)
		}
		if err != nil {
			failed[key] = fmt.Errorf("%s on %s: %w", key.protocol.name, b.iface.Name, err)
			delete(plans, key) // an open port keeps its addresses
		}
	}
	return failed
}

// release stops answering, with mu held, for addresses that are not planned.
func (a *Announcer) release(plans map[portKey]*portPlan) {
	for _, x := range a.addresses {
		x.claims = slices.DeleteFunc(x.claims, func(c claim) bool {
			b := plans[c.port.key]
			gone := b == nil || !b.addresses[x.want.Addr] || c.port.failed.Load()
			if gone {
				delete(c.port.claims.addresses, x.want.Addr)
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

// assign gives ports, with mu held, to the addresses that are planned.
func (a *Announcer) assign(plans map[portKey]*portPlan, now time.Time) {
	maps.DeleteFunc(a.knownNodes, func(_ MAC, node netip.Addr) bool { return !slices.Contains(a.want.Nodes, node) })
	speakers := a.speakers()
	fresh := make(map[*port]bool)
	for key, b := range plans {
		p := a.worker.ports[key]
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
		a.assignPorts(x, plans, fresh, now)
		if again {
			a.startAnnouncing(x, x.ports(), now)
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

// assignPorts gives x its planned ports, and starts probing or announcing on the new ones.
func (a *Announcer) assignPorts(x *address, plans map[portKey]*portPlan, fresh map[*port]bool, now time.Time) {
	var begin []*port
	for key, b := range plans {
		if key.protocol != protocolOf(x.want.Addr) || !b.addresses[x.want.Addr] {
			continue
		}
		p := a.worker.ports[key]
		if p.claims.addresses[x.want.Addr] == x {
			if fresh[p] {
				begin = append(begin, p)
			}
			continue
		}
		p.claims.addresses[x.want.Addr] = x
		x.claims = append(x.claims, claim{port: p})
		begin = append(begin, p)
	}
	a.advance(x, begin, now)
}

// advance moves x to the phase that it should be in, and starts probing or announcing on
// new ports.
func (a *Announcer) advance(x *address, begin []*port, now time.Time) {
	switch {
	case x.phase == Conflicting:
		return // until its retry timer is due
	case len(x.claims) == 0:
		x.timer = nil
		x.enter(Waiting, now)
	case x.needsProbe:
		if x.phase != Probing || len(begin) > 0 {
			x.enter(Probing, now)
			x.early, x.asked = false, nil
			a.recall(x, now)
			x.timer = &timer{address: x, stage: probe1}
			a.schedule.add(x.timer, now)
		}
	default:
		x.timer = nil
		if x.phase != Held {
			x.enter(Held, now)
			begin = x.ports()
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

func (x *address) ports() []*port {
	ports := make([]*port, len(x.claims))
	for i, c := range x.claims {
		ports[i] = c.port
	}
	return ports
}

// startAnnouncing schedules the announcements of x on ports.
func (a *Announcer) startAnnouncing(x *address, ports []*port, now time.Time) {
	for i, c := range x.claims {
		if slices.Contains(ports, c.port) {
			t := &timer{address: x, port: c.port, stage: announce}
			x.claims[i].timer = t
			a.schedule.add(t, now)
		}
	}
}
