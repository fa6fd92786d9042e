package l2

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// A berth is what shall be answered for on a port.
type berth struct {
	iface     Interface
	addresses map[netip.Addr]bool
}

// plan says what is to be answered for where.
func plan(want []Address, interfaces []Interface) map[portKey]*berth {
	named := make(map[string]bool)
	for _, x := range want {
		for _, name := range x.Interfaces {
			named[name] = true
		}
	}
	berths := make(map[portKey]*berth)
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
				berths[key] = &berth{i, make(map[netip.Addr]bool)}
			}
			berths[key].addresses[x.Addr] = true
		}
	}
	return berths
}

// reconcile goes from what is to what shall be: first it gives up, then it takes.
func (a *Announcer) reconcile() {
	berths := plan(a.want.Addresses, a.interfaces) // which only this goroutine writes
	a.mu.Lock()
	a.yield(berths)
	a.mu.Unlock()
	failed := a.keeper.equip(a, berths)
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.broken, func(k portKey, _ error) bool { return k != listFailed })
	maps.Copy(a.broken, failed)
	a.occupy(berths, time.Now())
	poke(a.wake)
}

// equip opens and closes sockets as berths say, and takes those out of them for which that
// fails.
func (k *keeper) equip(a *Announcer, berths map[portKey]*berth) map[portKey]error {
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
			err = p.fit(b.addresses)
		}
		if err != nil {
			failed[key] = fmt.Errorf("%s on %s: %w", key.protocol.name, b.iface.Name, err)
			delete(berths, key) // what an open port has already, it keeps
		}
	}
	return failed
}

// yield stops, with mu held, answering for all that is not in berths.
func (a *Announcer) yield(berths map[portKey]*berth) {
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
			x.turn = nil
			delete(a.addresses, addr)
		}
	}
}

// occupy takes, with mu held, what is in berths.
func (a *Announcer) occupy(berths map[portKey]*berth, now time.Time) {
	maps.DeleteFunc(a.kin, func(_ MAC, node netip.Addr) bool { return !slices.Contains(a.want.Nodes, node) })
	speakers := a.speakers()
	fresh := make(map[*port]bool)
	for key, b := range berths {
		p := a.keeper.ports[key]
		if p.claims.mac != b.iface.MAC {
			fresh[p] = true
		}
		p.iface = b.iface
		p.claims.mac, p.claims.own, p.claims.speakers = b.iface.MAC, a.keeper.own, speakers
	}
	for _, w := range a.want.Addresses {
		x := a.addresses[w.Addr]
		if x == nil {
			x = &address{phase: Waiting, since: now, unsure: w.Probe}
			a.addresses[w.Addr] = x
		}
		again := x.revise(w, speakers)
		a.moor(x, berths, fresh, now)
		if again {
			a.proclaim(x, x.ports(), now)
		}
	}
}

// revise takes up what the State says of an address now, and says whether one that is held
// is to be announced once more.
func (x *address) revise(w Address, speakers map[MAC]bool) (again bool) {
	again = x.phase == Held && x.want.Round != w.Round
	x.want = w
	x.acquit(speakers)
	if x.phase != Conflicting && x.strikes == 0 && !w.Probe {
		x.unsure = false
	}
	return again
}

// acquit ends a conflict with somebody who is a speaker, of whom this node did not know yet.
func (x *address) acquit(speakers map[MAC]bool) {
	if x.conflict == nil || !speakers[x.conflict.MAC] {
		return
	}
	if x.phase == Conflicting {
		x.phase, x.turn, x.unsure = Waiting, nil, x.want.Probe
	}
	x.conflict = nil
}

// speakers are the hardware addresses with which there is no conflict.
func (a *Announcer) speakers() map[MAC]bool {
	all := make(map[MAC]bool, len(a.want.Speakers)+len(a.kin))
	for _, m := range a.want.Speakers {
		all[m] = true
	}
	for m := range a.kin {
		all[m] = true
	}
	return all
}

// moor gives x the ports in berths, and begins what there is to do on those that are new.
func (a *Announcer) moor(x *address, berths map[portKey]*berth, fresh map[*port]bool, now time.Time) {
	var begin []*port
	for key, b := range berths {
		if key.protocol != protocolOf(x.want.Addr) || !b.addresses[x.want.Addr] {
			continue
		}
		p := a.keeper.ports[key]
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
	a.settle(x, begin, now)
}

// settle goes on to the phase that x is to be in, and begins what there is to do on ports
// that are new.
func (a *Announcer) settle(x *address, begin []*port, now time.Time) {
	switch {
	case x.phase == Conflicting:
		return // until its turn comes
	case len(x.claims) == 0:
		x.turn = nil
		x.enter(Waiting, now)
	case x.unsure:
		if x.phase != Probing || len(begin) > 0 {
			x.enter(Probing, now)
			x.turn = &turn{address: x, stage: probe1}
			a.agenda.add(x.turn, now)
		}
	default:
		x.turn = nil
		if x.phase != Held {
			x.enter(Held, now)
			begin = x.ports()
		}
		a.proclaim(x, begin, now)
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
func (a *Announcer) proclaim(x *address, ports []*port, now time.Time) {
	for i, c := range x.claims {
		if slices.Contains(ports, c.port) {
			t := &turn{address: x, port: c.port, stage: announce}
			x.claims[i].turn = t
			a.agenda.add(t, now)
		}
	}
}
