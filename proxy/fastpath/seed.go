package fastpath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// seed takes the wanted frontends of UDP, once the flows that the rules have of them are
// copied: a datagram does not show that it is not the first, and would be scheduled
// again. It is done beside Grow, since the kernel takes long to list many entries.
func (p *Path) seed() {
	p.mu.Lock()
	fresh := maps.Clone(p.seeding)
	p.mu.Unlock()
	entries, err := listTracked(fresh)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.grown {
		return // Grow comes, and asks again
	}
	errs := []error{err}
	for key := range fresh {
		f := p.want.frontend(key.addrPort(), key.Protocol)
		if !p.seeding[key] || f == nil {
			continue // it has changed meanwhile
		}
		if err != nil {
			p.left[key] = err.Error()
			continue
		}
		delete(p.seeding, key)
		delete(p.left, key)
		errs = append(errs, p.insertTracked(f, entries), p.take(key, f.Backends))
	}
	if err := errors.Join(errs...); err != nil {
		p.synced = false
		p.log.Warn("take over flows of UDP", "err", err)
	}
}

// listTracked lists the flows of UDP that conntrack translates, by their frontends.
func listTracked(fresh map[kernelFrontend]bool) (map[netip.AddrPort][]trackedFlow, error) {
	families := make(map[netlink.InetFamily]bool)
	for key := range fresh {
		if key.Address.addr().Is4() {
			families[unix.AF_INET] = true
		} else {
			families[unix.AF_INET6] = true
		}
	}
	all := make(map[netip.AddrPort][]trackedFlow)
	towards := make(map[netip.Addr]uint32)
	for family := range families {
		entries, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return nil, fmt.Errorf("list flows that the rules have: %w", err)
		}
		for _, e := range entries {
			if f, ok := tracked(e); ok && fresh[frontendOf(f.vip, UDP)] {
				client := f.client.Addr()
				if _, asked := towards[client]; !asked {
					towards[client] = egressIndex(client)
				}
				f.index = towards[client]
				all[f.vip] = append(all[f.vip], f)
			}
		}
	}
	return all, nil
}

// insertTracked copies the flows of a frontend whose clients come in by an outward interface, as
// far as the routes to them tell: those of pods stay with the rules.
func (p *Path) insertTracked(fe *Frontend, entries map[netip.AddrPort][]trackedFlow) error {
	var errs []error
	for _, f := range entries[fe.Addr] {
		if fe.keeps(f.backend) && !within(p.want.Clients, f.client.Addr()) && p.roles[f.index]&outward != 0 {
			errs = append(errs, p.insert(f))
		}
	}
	return errors.Join(errs...)
}

// egressIndex is the interface that the route to a client leads out by; 0: there is none.
func egressIndex(client netip.Addr) uint32 {
	routes, err := netlink.RouteGet(client.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return 0
	}
	return uint32(routes[0].LinkIndex)
}

// A trackedFlow is a flow that conntrack translates.
type trackedFlow struct {
	client, vip, backend netip.AddrPort
	port                 uint16 // the client's at the backend
	index                uint32 // of the interface that leads to the client; 0: none does
}

// tracked is what an entry says; false: it is none whose backend sees the client.
func tracked(e *netlink.ConntrackFlow) (f trackedFlow, ok bool) {
	if e.Forward.Protocol != UDP {
		return f, false
	}
	client, ok1 := netip.AddrFromSlice(e.Forward.SrcIP)
	vip, ok2 := netip.AddrFromSlice(e.Forward.DstIP)
	backend, ok3 := netip.AddrFromSlice(e.Reverse.SrcIP)
	seen, ok4 := netip.AddrFromSlice(e.Reverse.DstIP)
	if !ok1 || !ok2 || !ok3 || !ok4 || client != seen {
		return f, false
	}
	return trackedFlow{
		client:  netip.AddrPortFrom(client.Unmap(), e.Forward.SrcPort),
		vip:     netip.AddrPortFrom(vip.Unmap(), e.Forward.DstPort),
		backend: netip.AddrPortFrom(backend.Unmap(), e.Reverse.SrcPort),
		port:    e.Reverse.DstPort,
	}, true
}

func (f *Frontend) keeps(backend netip.AddrPort) bool {
	_, is := slices.BinarySearchFunc(f.Draining, backend, netip.AddrPort.Compare)
	return is || slices.ContainsFunc(f.Backends, func(b Backend) bool { return b.Addr == backend })
}

// insert makes the entries of a flow, as if its packets had come here.
func (p *Path) insert(f trackedFlow) error {
	now := seconds()
	there := kernelTuple{
		Source: addressOf(f.client.Addr()), SourcePort: f.client.Port(),
		Destination: addressOf(f.vip.Addr()), DestinationPort: f.vip.Port(),
		Protocol: UDP, Direction: outward,
	}
	to := kernelFlow{Address: addressOf(f.backend.Addr()), Port: f.backend.Port(), ClientPort: f.port, Seen: now, State: flowOpen}
	from := kernelFlow{Address: addressOf(f.vip.Addr()), Port: f.vip.Port(), ClientPort: f.client.Port(), Seen: now, State: flowOpen}
	back := there.reply(&to)
	switch err := p.kernel.Flows.Update(back, from, ebpf.UpdateNoExist); {
	case errors.Is(err, ebpf.ErrKeyExist) || isFull(err):
		return nil // it is here already, or stays with the rules
	case err != nil:
		return fmt.Errorf("take over a flow: %w", err)
	}
	err := p.kernel.Flows.Update(there, to, ebpf.UpdateNoExist)
	if err == nil {
		return nil
	}
	undone := ignoreNotExist(p.kernel.Flows.Delete(back))
	if errors.Is(err, ebpf.ErrKeyExist) || isFull(err) {
		return undone
	}
	return errors.Join(fmt.Errorf("take over a flow: %w", err), undone)
}
