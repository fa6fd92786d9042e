package l2

import (
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
)

// handleConflict handles, with mu held, a packet in which another host claims an address of
// this node. Packets that change nothing are counted and not reported: a host that forges
// them must not fill the log, nor keep the speaker busy.
func (s *phases) handleConflict(p *packetSocket, in packet, now time.Time) {
	x := p.claims.addresses[in.sender]
	if x == nil {
		x = p.claims.addresses[in.target] // another host probes for it
	}
	s.metrics.conflicts.WithLabelValues(p.key.protocol.name).Inc()
	defend := x.phase == Held && now.Sub(x.defended) > defendInterval
	if x.phase == Held && !defend && !x.want.Yield {
		x.conflict = x.conflict.again(now)
		return
	}
	x.conflict = &Conflict{MAC: in.from, Interface: p.iface.Name, When: now, Count: x.conflict.count() + 1}
	if defend {
		x.defended = now
		s.gratuitous(p, announcement(x.want.Addr, p.claims.mac))
	} else {
		s.giveUp(x, now)
	}
	s.log.Warn("address conflict: another host claims this address", "vip", x.want.Addr, "iface", p.iface.Name, "mac",
		in.from.String(), "defended", defend)
	notify.Changed(s.conflicts)
	notify.Changed(s.changed)
}

// giveUp stops answering for an address until its retry timer is due.
func (s *phases) giveUp(x *address, now time.Time) {
	if x.phase == Held && now.Sub(x.since) > conflictMemory {
		x.strikes = 0
	}
	s.enter(x, Conflicting, now)
	x.needsProbe = true
	x.timer = &timer{address: x, stage: min(retry1+stage(x.strikes), retry5)}
	x.strikes++
	s.schedule.add(x.timer, now)
	notify.Changed(s.wake)
}

// identifyConflicts looks up the hosts that claim addresses of this node. If one is a node
// of the cluster, its conflicts are cleared.
func (a *Announcer) identifyConflicts() {
	open := a.phases.openConflicts()
	if len(open) == 0 {
		return
	}
	n := a.worker.neighbours() // after the claims, which make an entry
	a.phases.mu.Lock()
	defer a.phases.mu.Unlock()
	for x, of := range open {
		if x.conflict != of {
			continue // its own signal follows
		}
		i := slices.IndexFunc(x.claims, func(c claim) bool { return c.socket.iface.Name == x.conflict.Interface })
		if i < 0 {
			continue
		}
		c := *of // Status has returned the old value: do not modify it
		c.Known, c.Gateway = n.known(x.claims[i].socket.key.index, c.MAC, x.want.Addr)
		x.conflict = &c
		if i := slices.IndexFunc(c.Known, func(k netip.Addr) bool { return slices.Contains(a.want.Nodes, k) }); i >= 0 {
			a.knownNodes[c.MAC] = c.Known[i]
		}
	}
	a.clearKnownNodes(time.Now())
	notify.Changed(a.changed)
}

// openConflicts returns the conflicts with hosts that were not looked up.
func (s *phases) openConflicts() map[*address]*Conflict {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := make(map[*address]*Conflict)
	for _, x := range s.addresses {
		if x.conflict != nil && x.conflict.Known == nil {
			open[x] = x.conflict
		}
	}
	return open
}

// clearKnownNodes clears conflicts with hosts that are nodes.
func (a *Announcer) clearKnownNodes(now time.Time) {
	a.updateSpeakers()
	for _, p := range a.worker.sockets {
		p.claims.speakers = a.worker.speakers
	}
	for _, x := range a.phases.addresses {
		x.clearConflict(a.worker.speakers)
		a.phases.advance(x, nil, now)
	}
	notify.Changed(a.phases.wake)
}

// A neighbourTable is the kernel's table of neighbours and gateways.
type neighbourTable struct {
	entries  []netlink.Neigh
	gateways map[netip.Addr]bool
}

// neighbours ignores errors: the result only enriches messages.
func (w *worker) neighbours() neighbourTable {
	n := neighbourTable{gateways: make(map[netip.Addr]bool)}
	n.entries, _ = w.netlink.NeighList(0, netlink.FAMILY_ALL)
	routes, _ := w.netlink.RouteList(nil, netlink.FAMILY_ALL)
	for _, r := range routes {
		if ip, ok := netip.AddrFromSlice(r.Gw); ok {
			n.gateways[ip.Unmap()] = true
		}
	}
	return n
}

// known returns the other addresses of a MAC on a link, sorted, and whether one of them is
// a gateway.
func (n neighbourTable) known(index int, mac MAC, but netip.Addr) (others []netip.Addr, gateway bool) {
	others = []netip.Addr{} // not nil: it has been looked up
	for _, e := range n.entries {
		m, is := hwaddr.Of(e.HardwareAddr)
		ip, ok := netip.AddrFromSlice(e.IP)
		if ip = ip.Unmap(); is && ok && m == mac && e.LinkIndex == index && ip != but && !slices.Contains(others, ip) {
			others = append(others, ip)
			gateway = gateway || n.gateways[ip]
		}
	}
	slices.SortFunc(others, netip.Addr.Compare)
	return others, gateway
}
