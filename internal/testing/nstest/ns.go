package nstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// An NS is a network namespace.
type NS struct {
	Name   string
	tb     testing.TB
	handle netns.NsHandle
	link   *netlink.Handle
}

// Node returns the namespace of the caller's process: under Run, the new one.
func Node(tb testing.TB) *NS {
	tb.Helper()
	h, err := netns.Get()
	check(tb, "node", err)
	return wrap(tb, "node", h)
}

// New creates a namespace with loopback up. It is deleted at the end of the test.
func New(tb testing.TB, name string) *NS {
	tb.Helper()
	made := make(chan error, 1)
	var h netns.NsHandle
	go func() {
		// Never unlocked: the thread ends with this goroutine, and the handle keeps the
		// namespace.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			h, err = netns.Get()
		}
		made <- err
	}()
	check(tb, name, <-made)
	n := wrap(tb, name, h)
	n.Do(func() { up(tb) })
	return n
}

func wrap(tb testing.TB, name string, h netns.NsHandle) *NS {
	tb.Helper()
	link, err := netlink.NewHandleAt(h)
	check(tb, name, err)
	tb.Cleanup(func() { link.Close(); h.Close() })
	return &NS{Name: name, tb: tb, handle: h, link: link}
}

// Do runs f on a thread inside the namespace and returns when f does. Sockets that f opens
// belong to the namespace; goroutines that f starts do not run in it. f runs in another
// goroutine than the test: it must not call FailNow or Skip.
func (n *NS) Do(f func()) {
	n.tb.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := netns.Set(n.handle)
		if err == nil {
			f()
		}
		done <- err
	}()
	check(n.tb, n.Name, <-done)
}

// Link connects a and b by a veth pair, ifA in a and ifB in b, and brings both ends up.
func Link(tb testing.TB, a *NS, ifA string, b *NS, ifB string) {
	tb.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ifA
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: ifB, PeerNamespace: netlink.NsFd(int(b.handle))}
	check(tb, "veth "+ifA, a.link.LinkAdd(veth))
	a.Up(ifA)
	b.Up(ifB)
}

// Bridge creates a bridge with the given interfaces as ports.
func (n *NS) Bridge(name string, ports ...string) {
	n.tb.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	check(n.tb, name, n.link.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	for _, port := range ports {
		check(n.tb, port, n.link.LinkSetMaster(n.iface(port), n.iface(name)))
	}
	n.Up(name)
}

// VRF creates a VRF with a routing table and the given interfaces, which keep only their
// IPv4 addresses. It returns false, without any change, if the kernel has no VRFs.
func (n *NS) VRF(name string, table uint32, ports ...string) bool {
	n.tb.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := n.link.LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: table})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false
	}
	check(n.tb, n.Name+" "+name, err)
	n.Up(name)
	for _, port := range ports {
		check(n.tb, port, n.link.LinkSetMaster(n.iface(port), n.iface(name)))
	}
	return true
}

// Hairpin lets a bridge send packets back by the port on which they arrived, as CNI plug-ins
// set it for pods. With br_netfilter, a pod cannot reach itself by a VIP without it.
func (n *NS) Hairpin(port string) {
	n.tb.Helper()
	check(n.tb, port, n.link.LinkSetHairpin(n.iface(port), true))
}

// Up brings an interface up.
func (n *NS) Up(name string) {
	n.tb.Helper()
	check(n.tb, n.Name+" "+name, n.link.LinkSetUp(n.iface(name)))
}

// Down takes an interface down.
func (n *NS) Down(name string) {
	n.tb.Helper()
	check(n.tb, n.Name+" "+name, n.link.LinkSetDown(n.iface(name)))
}

// MAC changes the hardware address of an interface, which must be down. Its link-local
// address changes when it is up again.
func (n *NS) MAC(name, mac string) {
	n.tb.Helper()
	hw, err := net.ParseMAC(mac)
	check(n.tb, n.Name+" "+mac, err)
	check(n.tb, n.Name+" "+name, n.link.LinkSetHardwareAddr(n.iface(name), hw))
}

// Addr adds addresses, such as "10.0.0.1/24", to an interface, and waits until they are
// usable. Duplicate address detection is off.
func (n *NS) Addr(name string, prefixes ...string) {
	n.tb.Helper()
	for _, p := range prefixes {
		a := &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(p)), Flags: unix.IFA_F_NODAD}
		check(n.tb, n.Name+" "+p, n.link.AddrAdd(n.iface(name), a))
		n.awaitLocal(a.IP)
	}
}

// awaitLocal waits until an address is in the local routing table. The kernel adds IPv6
// addresses in the background, even without duplicate address detection.
func (n *NS) awaitLocal(ip net.IP) {
	n.tb.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		routes, err := n.link.RouteGet(ip)
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
			return
		}
		if time.Now().After(end) {
			n.tb.Fatalf("namespace: %s: %s does not become local: %v", n.Name, ip, err)
		}
	}
}

// Route adds a route to prefix by the gateway via, which may be an IPv6 address also for
// IPv4, or, if via is empty, directly on the interface dev.
func (n *NS) Route(prefix, via, dev string) {
	n.tb.Helper()
	dst := netip.MustParsePrefix(prefix).Masked()
	r := &netlink.Route{Dst: ipNet(dst)}
	if via != "" {
		gateway := netip.MustParseAddr(via)
		if r.Gw = gateway.AsSlice(); gateway.Is4() != dst.Addr().Is4() {
			r.Gw, r.Via = nil, &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: gateway.AsSlice()}
		}
	}
	if dev != "" {
		r.LinkIndex = n.iface(dev).Attrs().Index
		if via != "" {
			r.Flags = int(netlink.FLAG_ONLINK)
		}
	}
	check(n.tb, n.Name+" route "+prefix, n.link.RouteReplace(r))
}

// Multipath adds a route to prefix by several gateways.
func (n *NS) Multipath(prefix string, via ...string) {
	n.tb.Helper()
	r := &netlink.Route{Dst: ipNet(netip.MustParsePrefix(prefix).Masked())}
	for _, gateway := range via {
		r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{Gw: netip.MustParseAddr(gateway).AsSlice()})
	}
	check(n.tb, n.Name+" route "+prefix, n.link.RouteReplace(r))
}

// Sysctl sets a variable below net, such as "ipv4.ip_forward".
func (n *NS) Sysctl(name, value string) {
	n.tb.Helper()
	var err error
	n.Do(func() { err = sysctl(name, value) })
	check(n.tb, n.Name, err)
}

// Forward makes the namespace a router for both families.
func (n *NS) Forward() {
	n.tb.Helper()
	n.Sysctl("ipv4.ip_forward", "1")
	n.Sysctl("ipv6.conf.all.forwarding", "1")
}

func (n *NS) iface(name string) netlink.Link {
	n.tb.Helper()
	l, err := n.link.LinkByName(name)
	check(n.tb, n.Name+" "+name, err)
	return l
}

// up brings up loopback in the calling thread's namespace, and disables duplicate address
// detection, for which tests would wait.
func up(tb testing.TB) {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	for _, conf := range []string{"all", "default"} {
		if err == nil {
			err = sysctl("ipv6.conf."+conf+".accept_dad", "0")
		}
	}
	if err != nil {
		tb.Errorf("namespace: %v", err)
	}
}

func sysctl(name, value string) error {
	// /proc/sys/net shows the namespace of the thread that opens it.
	path := "/proc/sys/net/" + strings.ReplaceAll(name, ".", "/")
	return os.WriteFile(path, []byte(value), 0o644)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func check(tb testing.TB, what string, err error) {
	if err != nil {
		tb.Helper()
		tb.Fatal(fmt.Errorf("namespace: %s: %w", what, err))
	}
}
