package l2

import (
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clash is about a packet by which somebody else has an address of ours. It happens with
// mu held.
func (a *Announcer) handleConflict(p *port, in packet, now time.Time) {
	x := p.claims.addresses[in.sender]
	if x == nil {
		x = p.claims.addresses[in.target] // another who probes
	}
	count := 1
	if x.conflict != nil {
		count += x.conflict.Count
	}
	x.conflict = &Conflict{MAC: in.from, Interface: p.iface.Name, When: now, Count: count}
	a.metrics.conflicts.WithLabelValues(p.key.protocol.name).Inc()
	kept := x.phase == Held && now.Sub(x.defended) > defendInterval
	if kept {
		x.defended = now
		a.gratuitous(p, announcement(x.want.Addr, p.claims.mac))
	} else {
		a.giveUp(x, now)
	}
	a.log.Warn("somebody else has an address of ours", "vip", x.want.Addr, "iface", p.iface.Name, "mac", in.from.String(), "defended", kept)
	notify(a.worker.conflicts)
	notify(a.changed)
}

// giveUp leaves an address to the other until its turn comes.
func (a *Announcer) giveUp(x *address, now time.Time) {
	if x.phase == Held && now.Sub(x.since) > conflictMemory {
		x.strikes = 0
	}
	x.enter(Conflicting, now)
	x.needsProbe = true
	x.timer = &timer{address: x, stage: min(retry1+stage(x.strikes), retry5)}
	x.strikes++
	a.schedule.add(x.timer, now)
	notify(a.wake)
}

// explain finds out who those are that have addresses of ours. A node of the cluster may
// have them, and this one goes on as if it had known.
func (a *Announcer) identifyConflicts() {
	type open struct {
		x *address
		c Conflict
		i int
	}
	var all []open
	a.mu.Lock()
	for _, x := range a.addresses {
		if x.conflict == nil || x.conflict.Known != nil {
			continue
		}
		for _, c := range x.claims {
			if c.port.iface.Name == x.conflict.Interface {
				all = append(all, open{x, *x.conflict, c.port.key.index})
			}
		}
	}
	a.mu.Unlock()
	if len(all) == 0 {
		return
	}
	n := a.worker.neighbours()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range all {
		if o.x.conflict == nil || o.x.conflict.MAC != o.c.MAC {
			continue
		}
		c := *o.x.conflict // those who got it from Status keep what they have
		c.Known, c.Gateway = n.known(o.i, c.MAC, o.x.want.Addr)
		o.x.conflict = &c
		if i := slices.IndexFunc(c.Known, func(k netip.Addr) bool { return slices.Contains(a.want.Nodes, k) }); i >= 0 {
			a.knownNodes[c.MAC] = c.Known[i]
		}
	}
	a.clearKnownNodes(time.Now())
	notify(a.changed)
}

// acquit ends conflicts with those who turned out to be nodes.
func (a *Announcer) clearKnownNodes(now time.Time) {
	speakers := a.speakers()
	for _, p := range a.worker.ports {
		p.claims.speakers = speakers
	}
	for _, x := range a.addresses {
		x.clearConflict(speakers)
		a.advance(x, nil, now)
	}
	notify(a.wake)
}

// neighbourhood is what the kernel knows of others on the links.
type neighbourTable struct {
	entries  []netlink.Neigh
	gateways map[netip.Addr]bool
}

// neighbours reads what it can: it is for messages only.
func (k *worker) neighbours() neighbourTable {
	n := neighbourTable{gateways: make(map[netip.Addr]bool)}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		entries, err := k.netlink.NeighList(0, family)
		if err == nil {
			n.entries = append(n.entries, entries...)
		}
		routes, err := k.netlink.RouteList(nil, family)
		if err != nil {
			continue
		}
		for _, r := range routes {
			if ip, ok := netip.AddrFromSlice(r.Gw); ok {
				n.gateways[ip.Unmap()] = true
			}
		}
	}
	return n
}

// known are addresses of a MAC on a link besides the one in question, sorted, and whether
// a gateway is among them.
func (n neighbourTable) known(index int, mac MAC, but netip.Addr) (others []netip.Addr, gateway bool) {
	others = []netip.Addr{} // not nil: looked at
	for _, e := range n.entries {
		m, is := macOf(e.HardwareAddr)
		ip, ok := netip.AddrFromSlice(e.IP)
		if ip = ip.Unmap(); is && ok && m == mac && e.LinkIndex == index && ip != but && !slices.Contains(others, ip) {
			others = append(others, ip)
			gateway = gateway || n.gateways[ip]
		}
	}
	slices.SortFunc(others, netip.Addr.Compare)
	return others, gateway
}
