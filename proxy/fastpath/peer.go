package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// withPeer adds the role peer to an interface that leads to backends only, if packets may be
// handed to its other end. An interface to clients never gets it: other programs may own
// the devices on the way, such as a bridge.
func (a *attachments) withPeer(index, roles uint32) uint32 {
	if roles &^= peer; roles == inward && a.peers[index] {
		return inward | peer
	}
	return roles
}

// checkPeers finds the interfaces to backends that have no queue, filter or program between
// their two ends, and writes them to the programs' map.
func (d *Datapath) checkPeers() {
	d.mu.Lock()
	indexes := slices.Collect(maps.Keys(d.routes.links))
	d.mu.Unlock()
	found, err := findPeers(indexes)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return // many changes at once: the next check detects a new queue
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.log.Warn("fast path: inspect queues of interfaces", "err", err) // packets pass the queues
	}
	if err := d.attachments.setPeers(found); err != nil {
		d.log.Warn("fast path: set the roles of interfaces", "err", err)
	}
}

// setPeers replaces the checked interfaces, and sets the roles that follow.
func (a *attachments) setPeers(found map[uint32]bool) error {
	a.peers = found
	var errs []error
	for index, roles := range maps.Clone(a.roles) {
		errs = append(errs, a.setRoles(index, a.withPeer(index, roles)))
	}
	return errors.Join(errs...)
}

// openPeers returns the interfaces whose packets are handed to their other ends.
func (a *attachments) openPeers() map[uint32]bool {
	peers := maps.Clone(a.peers)
	maps.DeleteFunc(peers, func(index uint32, open bool) bool { return !open || a.roles[index]&peer == 0 })
	return peers
}

// findPeers reports for each interface whether its other end is in another network
// namespace and packets between the two bypass nothing: no shaping queue, tc filter or tcx
// program at the egress here, and no XDP program at the other end. The result is false if
// that is unknown.
func findPeers(indexes []uint32) (map[uint32]bool, error) {
	found := make(map[uint32]bool, len(indexes))
	if len(indexes) == 0 {
		return found, nil
	}
	for _, index := range indexes {
		found[index] = false
	}
	ends, err := findVeths()
	if err != nil {
		return found, fmt.Errorf("list interfaces: %w", err)
	}
	queues, err := netlink.QdiscList(nil)
	if err != nil {
		return found, fmt.Errorf("list queues: %w", err)
	}
	none := make(map[uint32]bool)
	for _, q := range queues {
		index := uint32(q.Attrs().LinkIndex)
		switch q.Type() {
		case "noqueue":
			none[index] = true
		case "ingress": // only for received packets
		default: // clsact has filters of both directions
			delete(ends, index)
		}
	}
	var errs []error
	for _, index := range indexes {
		if !ends[index] || !none[index] {
			continue
		}
		egress, err := link.QueryPrograms(link.QueryOptions{Target: int(index), Attach: ebpf.AttachTCXEgress})
		if err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("interface %d: list programs: %w", index, err))
		}
		found[index] = err == nil && len(egress.Programs) == 0
	}
	return found, errors.Join(errs...)
}

// findVeths returns the indexes of veth interfaces that are up and whose other end is in
// another namespace.
func findVeths() (map[uint32]bool, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	all, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	ends := make(map[uint32]bool)
	for _, m := range all {
		l, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, err
		}
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, err
		}
		a := l.Attrs()
		if l.Type() == "veth" && a.NetNsID >= 0 && a.Flags&net.FlagUp != 0 && !limitsMTU(attrs) {
			ends[uint32(a.Index)] = true
		}
	}
	return ends, nil
}

// limitsMTU reports whether the kernel limits an interface's MTU to less than 65535. For a
// veth it does so only if the other end has an XDP program, and nothing else shows that
// here.
func limitsMTU(attrs []syscall.NetlinkRouteAttr) bool {
	return slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == unix.IFLA_MAX_MTU && len(a.Value) >= 4 &&
			binary.NativeEndian.Uint32(a.Value) < math.MaxUint16
	})
}

// useNeighbours makes the kernel verify stale neighbour entries of backends (RFC 4861
// §7.3). The kernel does so when it sends packets itself, but packets that are handed to
// the other end of an interface bypass its neighbour table.
func (d *Datapath) useNeighbours() {
	d.mu.Lock()
	peers := d.attachments.openPeers()
	d.mu.Unlock()
	if len(peers) == 0 {
		return
	}
	all, err := netlink.NeighList(0, unix.AF_UNSPEC)
	errs := []error{err}
	for _, n := range all {
		if n.State == unix.NUD_STALE && peers[uint32(n.LinkIndex)] && d.isBackend(n.IP) {
			errs = append(errs, netlink.NeighSet(&netlink.Neigh{
				LinkIndex: n.LinkIndex, Family: n.Family, IP: n.IP, Flags: unix.NTF_USE,
			}))
		}
	}
	if err := errors.Join(errs...); err != nil {
		d.log.Debug("fast path: verify neighbour entries of backends", "err", err)
	}
}

// isBackend reports whether a wanted frontend has a backend with this address. Other neighbour
// entries are the kernel's business.
func (d *Datapath) isBackend(ip net.IP) bool {
	a, _ := netip.AddrFromSlice(ip)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.routes.of[a.Unmap()] != nil
}
