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

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// seed takes new UDP frontends after it has copied their flows from conntrack. A datagram
// does not show whether it is the first of its flow, so without a copy the program would
// schedule existing flows again. Grow does not wait for it, because listing many conntrack
// entries takes long.
func (d *Datapath) seed() {
	d.mu.Lock()
	fresh := maps.Clone(d.seeding)
	d.mu.Unlock()
	entries, err := listTracked(fresh)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.grown {
		return // the next Grow starts it again
	}
	errs := []error{err}
	for key := range fresh {
		f := d.want.frontend(key.addrPort(), key.Protocol)
		if !d.seeding[key] || f == nil {
			continue // it has changed since
		}
		if err != nil {
			d.table.left[key] = err.Error()
			continue
		}
		delete(d.seeding, key)
		delete(d.table.left, key)
		errs = append(errs, d.insertTracked(f, entries), d.table.take(key, f.Backends))
	}
	if err := errors.Join(errs...); err != nil {
		d.synced = false
		d.log.Warn("fast path: take over UDP flows from conntrack", "err", err)
	}
}

// listTracked returns the UDP flows to these frontends that conntrack translates, by frontend.
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
			return nil, fmt.Errorf("list conntrack entries: %w", err)
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

// insertTracked copies the flows of a frontend whose clients are behind an outward
// interface, by the routes to them. Flows of pods stay with the rules.
func (d *Datapath) insertTracked(fe *Frontend, entries map[netip.AddrPort][]trackedFlow) error {
	vip := addressOf(fe.Addr.Addr())
	errs := []error{d.usages.admit(vip)}
	spare := d.kernel.spare(vip)
	for _, f := range entries[fe.Addr] {
		if spare == 0 {
			break // the others stay with the rules
		}
		if fe.keeps(f.backend) && !sortedset.ContainsAddr(d.want.Clients, f.client.Addr()) &&
			d.attachments.roles[f.index]&outward != 0 {
			errs = append(errs, d.kernel.insert(f))
			spare--
		}
	}
	return errors.Join(errs...)
}

// egressIndex returns the interface of the route to a client; 0 without a route.
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
	port                 uint16 // the client's port that the backend sees
	index                uint32 // of the interface of the route to the client; 0: none
}

// tracked converts a conntrack entry; false if it is not UDP, or if the backend does not see
// the client's address (SNAT).
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

// keeps reports whether a flow to this backend may continue.
func (f *Frontend) keeps(backend netip.AddrPort) bool {
	_, is := slices.BinarySearchFunc(f.Draining, backend, netip.AddrPort.Compare)
	return is || slices.ContainsFunc(f.Backends, func(b Backend) bool { return b.Addr == backend })
}

// insert writes both entries of a flow, as the program does for a new one: the entry for replies
// first, because a packet of the client makes the backend reply. If the flow exists already or
// the map is full, nothing changes, and that is not an error.
func (o *objects) insert(f trackedFlow) error {
	now := seconds()
	there := kernelTuple{
		Source: addressOf(f.client.Addr()), SourcePort: f.client.Port(),
		Destination: addressOf(f.vip.Addr()), DestinationPort: f.vip.Port(),
		Protocol: UDP, Direction: outward,
	}
	to := kernelFlow{
		Address: addressOf(f.backend.Addr()), Port: f.backend.Port(), ClientPort: f.port, Seen: now, State: flowOpen,
	}
	from := kernelFlow{
		Address: addressOf(f.vip.Addr()), Port: f.vip.Port(), ClientPort: f.client.Port(), Seen: now, State: flowOpen,
	}
	back := there.reply(&to)
	switch err := o.Flows.Update(back, from, ebpf.UpdateNoExist); {
	case errors.Is(err, ebpf.ErrKeyExist) || isFull(err):
		return nil // the flow exists, or stays with the rules
	case err != nil:
		return fmt.Errorf("take over a flow: %w", err)
	}
	err := o.Flows.Update(there, to, ebpf.UpdateNoExist)
	if err == nil {
		return nil
	}
	undone := ignoreNotExist(o.Flows.Delete(back))
	if errors.Is(err, ebpf.ErrKeyExist) || isFull(err) {
		return undone
	}
	return errors.Join(fmt.Errorf("take over a flow: %w", err), undone)
}
