package l2

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// A berth is what shall be answered for on a port.
type portPlan struct {
	iface     Interface
	addresses map[netip.Addr]bool
}

// plan says what is to be answered for where.
func planPorts(want []Address, interfaces []Interface) map[portKey]*portPlan {
	named := make(map[string]bool)
	for _, x := range want {
		for _, name := range x.Interfaces {
			named[name] = true
		}
	}
	berths := make(map[portKey]*portPlan)
	for _, i := range interfaces {
		if len(i.Prefixes) == 0 && !named[i.Name] {
			continue // as those of pods, of which there may be hundreds
		}
		for _, x := range want {
			if !i.Carries(x) {
				continue
			}
			key := portKey{i.Index, protocolOf(x.Addr)}
			if berths[key] == nil {
				berths[key] = &portPlan{i, make(map[netip.Addr]bool)}
			}
			berths[key].addresses[x.Addr] = true
		}
	}
	return berths
}

// reconcile goes from what is to what shall be: first it gives up, then it takes.
func (a *Announcer) reconcile() {
	berths := planPorts(a.want.Addresses, a.interfaces) // which only this goroutine writes
	a.mu.Lock()
	a.release(berths)
	a.mu.Unlock()
	failed := a.worker.openPorts(a, berths)
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.failures, func(k portKey, _ error) bool { return k != listFailed })
	maps.Copy(a.failures, failed)
	a.assign(berths, time.Now())
	notify(a.wake)
}

// equip opens and closes sockets as berths say, and takes those out of them for which that
// fails.
func (k *worker) openPorts(a *Announcer, berths map[portKey]*portPlan) map[portKey]error {
	failed := make(map[portKey]error)
	for key, p := range k.ports {
		if berths[key] == nil || p.failed.Load() {
			p.close()
			delete(k.ports, key)
		}
	}
	for key, b := range berths {
		p, err := k.ports[key], error(nil)
		if p == nil {
			p, err = openPort(a, key, b.iface)
		}
		if err == nil {
			k.ports[key] = p
			err = p.setAddresses(b.addresses)
		}
		if err != nil {
			failed[key] = fmt.Errorf("%s on %s: %w", key.protocol.name, b.iface.Name, err)
			delete(berths, key) // what an open port has already, it keeps
		}
	}
	return failed
}

// yield stops, with mu held, answering for all that is not in berths.
func (a *Announcer) release(berths map[portKey]*portPlan) {
	for _, x := range a.addresses {
		x.claims = slices.DeleteFunc(x.claims, func(c claim) bool {
			b := berths[c.port.key]
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

// occupy takes, with mu held, what is in berths.
func (a *Announcer) assign(berths map[portKey]*portPlan, now time.Time) {
	maps.DeleteFunc(a.knownNodes, func(_ MAC, node netip.Addr) bool { return !slices.Contains(a.want.Nodes, node) })
	speakers := a.speakers()
	fresh := make(map[*port]bool)
	for key, b := range berths {
		p := a.worker.ports[key]
		if p.claims.mac != b.iface.MAC {
			fresh[p] = true
		}
		p.iface = b.iface
		p.claims.mac, p.claims.own, p.claims.speakers = b.iface.MAC, a.worker.own, speakers
	}
	for _, w := range a.want.Addresses {
		x := a.addresses[w.Addr]
		if x == nil {
			x = &address{phase: Waiting, since: now, needsProbe: w.Probe}
			a.addresses[w.Addr] = x
		}
		again := x.update(w, speakers)
		a.assignPorts(x, berths, fresh, now)
		if again {
			a.startAnnouncing(x, x.ports(), now)
		}
	}
}

// revise takes up what the State says of an address now, and says whether one that is held
// is to be announced once more.
func (x *address) update(w Address, speakers map[MAC]bool) (again bool) {
	again = x.phase == Held && x.want.Round != w.Round
	x.want = w
	x.clearConflict(speakers)
	if x.phase != Conflicting && x.strikes == 0 && !w.Probe {
		x.needsProbe = false
	}
	return again
}

// acquit ends a conflict with somebody who is a speaker, of whom this node did not know yet.
func (x *address) clearConflict(speakers map[MAC]bool) {
	if x.conflict == nil || !speakers[x.conflict.MAC] {
		return
	}
	if x.phase == Conflicting {
		x.phase, x.timer, x.needsProbe = Waiting, nil, x.want.Probe
	}
	x.conflict = nil
}

// speakers are the hardware addresses with which there is no conflict.
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

// moor gives x the ports in berths, and begins what there is to do on those that are new.
func (a *Announcer) assignPorts(x *address, berths map[portKey]*portPlan, fresh map[*port]bool, now time.Time) {
	var begin []*port
	for key, b := range berths {
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

// settle goes on to the phase that x is to be in, and begins what there is to do on ports
// that are new.
func (a *Announcer) advance(x *address, begin []*port, now time.Time) {
	switch {
	case x.phase == Conflicting:
		return // until its turn comes
	case len(x.claims) == 0:
		x.timer = nil
		x.enter(Waiting, now)
	case x.needsProbe:
		if x.phase != Probing || len(begin) > 0 {
			x.enter(Probing, now)
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
		x.phase, x.since = p, now
	}
}

func (x *address) ports() []*port {
	ports := make([]*port, len(x.claims))
	for i, c := range x.claims {
		ports[i] = c.port
	}
	return ports
}

// proclaim begins announcing x on ports.
func (a *Announcer) startAnnouncing(x *address, ports []*port, now time.Time) {
	for i, c := range x.claims {
		if slices.Contains(ports, c.port) {
			t := &timer{address: x, port: c.port, stage: announce}
			x.claims[i].timer = t
			a.schedule.add(t, now)
		}
	}
}
