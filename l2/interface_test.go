package l2

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// The interfaces of the kernel's list that can answer.
func TestInterfaces(t *testing.T) {
	const up = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_BROADCAST | unix.IFF_MULTICAST
	device := func(index int, name string, flags uint32, change ...func(*netlink.LinkAttrs)) netlink.Link {
		a := netlink.LinkAttrs{
			Index: index, Name: name, RawFlags: flags, EncapType: "ether",
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(index)},
		}
		for _, f := range change {
			f(&a)
		}
		return &netlink.Device{LinkAttrs: a}
	}
	in := func(master int) func(*netlink.LinkAttrs) {
		return func(a *netlink.LinkAttrs) { a.MasterIndex = master }
	}
	links := []netlink.Link{
		device(1, "lo", unix.IFF_UP|unix.IFF_RUNNING|unix.IFF_LOOPBACK,
			func(a *netlink.LinkAttrs) { a.EncapType = "loopback" }),
		device(2, "eth0", up),
		device(3, "down", unix.IFF_BROADCAST),
		device(4, "nocarrier", up&^unix.IFF_RUNNING),
		device(5, "dummy", up|unix.IFF_NOARP),
		device(6, "tun", unix.IFF_UP|unix.IFF_RUNNING|unix.IFF_POINTOPOINT,
			func(a *netlink.LinkAttrs) { a.EncapType, a.HardwareAddr = "none", nil }),
		device(7, "ib0", up, func(a *netlink.LinkAttrs) {
			a.EncapType, a.HardwareAddr = "infiniband", make(net.HardwareAddr, 20)
		}),
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{
			Index: 8, Name: "br0", RawFlags: up, EncapType: "ether", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 8},
		}},
		device(9, "port", up, in(8)),
		&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{
			Index: 10, Name: "red", RawFlags: unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_NOARP, EncapType: "ether",
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 10},
		}},
		device(11, "inred", up, in(10)),
		device(12, "nomac", up, func(a *netlink.LinkAttrs) { a.HardwareAddr = make(net.HardwareAddr, 6) }),
		device(13, "bare", up),
		&netlink.Bond{LinkAttrs: netlink.LinkAttrs{
			Index: 14, Name: "bond0", RawFlags: up | unix.IFF_MASTER, EncapType: "ether",
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 14},
		}},
		// Its address is its master's.
		device(15, "half1", up|unix.IFF_SLAVE, in(14),
			func(a *netlink.LinkAttrs) { a.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 14} }),
		device(16, "half2", up|unix.IFF_SLAVE, in(14),
			func(a *netlink.LinkAttrs) { a.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 14} }),
		&netlink.Vlan{
			LinkAttrs: netlink.LinkAttrs{Index: 17, Name: "bond0.7", ParentIndex: 14, RawFlags: up, EncapType: "ether",
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 14}}, VlanId: 7,
		},
	}
	addr := func(index int, text string) netlink.Addr {
		ip, n, err := net.ParseCIDR(text)
		must(t, err)
		return netlink.Addr{LinkIndex: index, IPNet: &net.IPNet{IP: ip, Mask: n.Mask}}
	}
	addrs := []netlink.Addr{
		addr(1, "127.0.0.1/8"), addr(2, "192.0.2.9/24"), addr(2, "10.0.0.9/8"), addr(2, "192.0.2.10/24"),
		addr(2, "192.0.2.77/32"), addr(2, "fe80::9/64"), addr(2, "2001:db8::9/64"), addr(2, "2001:db8::77/128"),
		addr(8, "198.51.100.9/25"), addr(9, "203.0.113.9/24"),
		addr(11, "169.254.0.9/16"), {LinkIndex: 2}, addr(14, "203.0.113.129/26"), addr(17, "203.0.113.193/26"),
	}
	usable, own := interfaces(links, addrs)
	var got []string
	for _, i := range usable {
		got = append(got, fmt.Sprintf("%s %s %v %t", i.Name, i.MAC, i.Prefixes, i.IPv6))
	}
	want := []string{
		"bare 02:00:00:00:00:0d [] false",
		"bond0 02:00:00:00:00:0e [203.0.113.128/26] false",
		"bond0.7 02:00:00:00:00:0e [203.0.113.192/26] false",
		"br0 02:00:00:00:00:08 [198.51.100.0/25] false",
		"eth0 02:00:00:00:00:02 [10.0.0.0/8 192.0.2.0/24 2001:db8::/64] true",
		"inred 02:00:00:00:00:0b [] false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(own) != 11 || !own[mac(9)] || own[MAC{}] {
		t.Errorf("own %v", own)
	}
}

// The interfaces on which an address is answered for.
func TestPlanPorts(t *testing.T) {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, s := range texts {
			all = append(all, netip.MustParsePrefix(s))
		}
		return all
	}
	ifaces := []Interface{
		{Name: "eth0", Index: 1, Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64"), IPv6: true},
		{Name: "eth1", Index: 2, Prefixes: prefixes("192.0.2.0/25")},
		{Name: "eth2", Index: 3, IPv6: true},
		{Name: "pod", Index: 4, IPv6: true},
	}
	want := []Address{
		{Addr: ip("192.0.2.1")}, {Addr: ip("192.0.2.129")},
		{Addr: ip("192.0.2.130"), Interfaces: []string{"eth1", "eth2", "eth9"}}, {Addr: ip("198.51.100.1")},
		{Addr: ip("2001:db8::1")}, {Addr: ip("2001:db8::2"), Interfaces: []string{"eth1", "eth2"}},
	}
	var got []string
	plans := make(socketPlans)
	plans.update(changes(nil, want, true), ifaces)
	for key, b := range plans {
		for _, a := range b.addresses {
			got = append(got, fmt.Sprintf("%s on %s by %s", a, b.iface.Name, key.protocol.name))
		}
	}
	slices.Sort(got)
	if text := strings.Join(got, "\n"); text != `192.0.2.1 on eth0 by arp
192.0.2.1 on eth1 by arp
192.0.2.129 on eth0 by arp
192.0.2.130 on eth1 by arp
192.0.2.130 on eth2 by arp
2001:db8::1 on eth0 by ndp
2001:db8::2 on eth2 by ndp` {
		t.Errorf("got\n%s", text)
	}
}

// link changes an interface of a host.
func link(t *testing.T, ns *nstest.NS, name string, f func(netlink.Link) error) {
	t.Helper()
	inside(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = f(l)
		}
		return err
	})
}

// After any change of its interfaces, a node answers where the addresses belong, with the
// interface's current hardware address, and announces it.
func TestFollowsInterfaceChanges(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		host, client := hosts[0], hosts[1]
		n, listener := start(t, host), listen(t, hosts[1], "eth0")
		both := addresses("10.0.0.100", "fd00::100")
		announcedOn := func(iface string) {
			t.Helper()
			here := macOn(t, host, iface)
			for _, a := range both {
				listener.next(func(p packet) bool { return p == forget(announcement(a.Addr, here), p) })
			}
			n.awaitHeld("10.0.0.100", "fd00::100")
			for _, a := range both {
				until(t, func() string {
					if s := n.status(a.Addr.String()); fmt.Sprint(s.Interfaces) != "["+iface+"]" {
						return fmt.Sprintf("on %s, want %s", s.Interfaces, iface)
					}
					return ""
				})
				resolve(t, client, a.Addr.String(), here)
			}
		}
		n.set(both...)
		announcedOn("eth0")

		host.Down("eth0")
		n.awaitHeld()
		host.MAC("eth0", "02:00:00:00:aa:01")
		host.Up("eth0")
		n.awaitHeld("10.0.0.100") // IPv6 addresses go when an interface goes down
		host.Addr("eth0", "fd00::1/64")
		announcedOn("eth0")

		// The MAC changes while the interface is up, after all announcements of the old
		// one.
		until(t, func() string {
			n.phases.mu.Lock()
			defer n.phases.mu.Unlock()
			for s, q := range n.phases.schedule.queues {
				if len(q) > 0 {
					return fmt.Sprintf("%d turns at stage %d", len(q), s)
				}
			}
			return ""
		})
		link(t, host, "eth0", func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0xaa, 2})
		})
		announcedOn("eth0")

		// Its name changes.
		host.Down("eth0")
		link(t, host, "eth0", func(l netlink.Link) error { return netlink.LinkSetName(l, "lan0") })
		host.Up("lan0")
		host.Addr("lan0", "fd00::1/64")
		announcedOn("lan0")

		// It becomes a port of a bridge, which has its addresses then.
		host.Bridge("br0", "lan0")
		n.awaitHeld() // a port cannot answer
		link(t, host, "lan0", func(l netlink.Link) error { return flush(l) })
		host.Addr("br0", "10.0.0.1/24", "fd00::1/64")
		announcedOn("br0")

		// A macvlan of it beside it.
		link(t, host, "br0", func(l netlink.Link) error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.ParentIndex = "mv0", l.Attrs().Index
			err := netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
			if err == nil {
				err = flush(l)
			}
			return err
		})
		n.awaitHeld()
		host.Up("mv0")
		host.Addr("mv0", "10.0.0.1/24", "fd00::1/64")
		announcedOn("mv0")

		// It is removed, and another one gets its name.
		link(t, host, "mv0", netlink.LinkDel)
		n.awaitHeld()
		link(t, host, "br0", netlink.LinkDel)
		link(t, host, "lan0", netlink.LinkDel)
		until(t, func() string {
			if got := n.Interfaces(); len(got) != 0 {
				return fmt.Sprintf("interfaces %v", got)
			}
			return ""
		})
	})
}

// An interface and its macvlan are on one link, and each answers with its own hardware
// address: the kernel hands packets for the one also to the socket of the other. With a
// VLAN in place of the macvlan they would be from another link.
func TestMacvlanBesideItsParent(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		host := hosts[0]
		link(t, host, "eth0", func(l netlink.Link) error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.ParentIndex = "mv0", l.Attrs().Index
			return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
		})
		host.Up("mv0")
		host.Addr("mv0", "10.0.0.9/24", "fd00::9/64")
		n, listener := start(t, host), listen(t, hosts[1], "eth0")
		n.set(addresses("10.0.0.100", "10.0.0.101", "fd00::100", "fd00::101")...)
		parent, child := macOn(t, host, "eth0"), macOn(t, host, "mv0")
		for _, a := range []struct {
			sender, asked, last string
		}{{"10.0.0.2", "10.0.0.100", "10.0.0.101"}, {"fd00::2", "fd00::100", "fd00::101"}} {
			until(t, func() string {
				if s := n.status(a.asked); fmt.Sprint(s.Interfaces) != "[eth0 mv0]" {
					return fmt.Sprintf("status %+v", s)
				}
				return ""
			})
			listener.send(packet{
				op: opRequest, from: listener.mac, to: child, sender: ip(a.sender), target: ip(a.asked),
			})
			listener.send(packet{
				op: opRequest, from: listener.mac, to: parent, sender: ip(a.sender), target: ip(a.last),
			})
			// Each answers in the order of requests.
			for answered := map[MAC]string{}; len(answered) < 2; {
				p := listener.next(func(p packet) bool { return p.op == opReply && p.to == listener.mac })
				if before := answered[p.from]; before != "" {
					t.Fatalf("%s answers for %s and for %s", p.from, before, p.sender)
				}
				if answered[p.from] = p.sender.String(); (p.from == child) != (p.sender == ip(a.asked)) {
					t.Errorf("%s answers for %s; the parent is %s, its macvlan %s", p.from, p.sender, parent, child)
				}
			}
		}
	})
}

// flush takes all addresses from an interface but link-local ones.
func flush(l netlink.Link) error {
	all, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	for _, a := range all {
		if err == nil && !a.IP.IsLinkLocalUnicast() {
			err = netlink.AddrDel(l, &a)
		}
	}
	return err
}

// An interface disappears and returns with the same name; another link gets the addresses.
func TestInterfaceReplaced(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		host, client := nstest.New(t, "node"), nstest.New(t, "client")
		n := start(t, host)
		both := addresses("10.0.0.100", "fd00::100")
		n.set(both...)
		for range 3 {
			nstest.Link(t, host, "eth0", client, "eth0")
			host.Addr("eth0", "10.0.0.1/24", "fd00::1/64")
			client.Addr("eth0", "10.0.0.2/24", "fd00::2/64")
			n.awaitHeld("10.0.0.100", "fd00::100")
			resolve(t, client, "10.0.0.100", macOn(t, host, "eth0"))
			resolve(t, client, "fd00::100", macOn(t, host, "eth0"))
			link(t, host, "eth0", netlink.LinkDel)
			n.awaitHeld()
		}
	})
}

// From any state to any other, the node answers for exactly the addresses of the State.
func TestAnyStateToAnyState(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		host, client := nstest.New(t, "node"), nstest.New(t, "client")
		ears := make(map[string]*station)
		for i, name := range []string{"eth0", "eth1"} {
			nstest.Link(t, host, name, client, name)
			host.Addr(name, fmt.Sprintf("10.0.%d.1/24", i), fmt.Sprintf("fd00:%d::1/64", i))
			ears[name] = listen(t, client, name)
		}
		n := start(t, host)
		var universe []netip.Addr
		for i := range 2 {
			for j := range 6 {
				universe = append(universe, ip(fmt.Sprintf("10.0.%d.%d", i, 100+j)),
					ip(fmt.Sprintf("fd00:%d::%d", i, 100+j)))
			}
		}
		slices.SortFunc(universe, netip.Addr.Compare)
		choices := [][]string{nil, nil, {"eth0"}, {"eth1"}, {"eth0", "eth1"}, {"eth9"}}
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		for step := range 40 {
			// Addresses that end in 105 are always held: their answers end the wait for the
			// absence of other replies.
			var s State
			for _, a := range universe {
				last := strings.HasSuffix(a.String(), "105")
				if last {
					s.Addresses = append(s.Addresses, Address{Addr: a, Interfaces: []string{"eth0", "eth1"}})
				} else if r.IntN(2) == 0 {
					s.Addresses = append(s.Addresses, Address{Addr: a, Interfaces: choices[r.IntN(len(choices))]})
				}
			}
			var want, held []string
			for _, x := range s.Addresses {
				on := x.Interfaces
				if on == nil {
					b := x.Addr.As16()
					on = []string{fmt.Sprintf("eth%d", b[map[bool]int{true: 14, false: 3}[x.Addr.Is4()]])}
				}
				on = slices.DeleteFunc(slices.Clone(on), func(name string) bool { return name == "eth9" })
				for _, name := range on {
					want = append(want, x.Addr.String()+" on "+name)
				}
				if len(on) > 0 {
					held = append(held, x.Addr.String())
				}
			}
			if got := n.become(s); fmt.Sprint(got) != fmt.Sprint(held) {
				t.Fatalf("seed %d, step %d: held %v, want %v", seed, step, got, held)
			}
			got := answeredTo(ears, universe)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: answered for\n%s\nwant\n%s", seed, step, strings.Join(got, "\n"),
					strings.Join(want, "\n"))
			}
		}
	})
}

// answeredTo asks on all links for all addresses and returns the answers. Addresses that
// end in 105 are always held; no answer follows theirs.
func answeredTo(ears map[string]*station, universe []netip.Addr) (got []string) {
	for name, s := range ears {
		for _, last := range []bool{false, true} {
			for _, a := range universe {
				if strings.HasSuffix(a.String(), "105") == last {
					sender := "10.0.0.200"
					if a.Is6() {
						sender = "fd00::200"
					}
					s.ask(a.String(), sender)
				}
			}
		}
		for ends := 0; ends < 4; {
			p := s.next(func(p packet) bool { return p.op == opReply && p.to == s.mac })
			got = append(got, p.sender.String()+" on "+name)
			if strings.HasSuffix(p.sender.String(), "105") {
				ends++
			}
		}
	}
	return got
}

// A thousand addresses are all answered for and all announced in every form. After they are
// removed, the node sends nothing.
func TestThousandAddresses(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		host, client := nstest.New(t, "node"), nstest.New(t, "client")
		nstest.Link(t, host, "eth0", client, "eth0")
		host.Addr("eth0", "10.0.0.1/16", "fd00::1/64")
		n, listener := start(t, host), listen(t, client, "eth0")
		all := many(500)
		began := time.Now()
		if got := n.set(all...); len(got) != len(all) {
			t.Fatalf("%d are held at once", len(got))
		}
		t.Logf("set after %s", time.Since(began))
		here, count := macOn(t, host, "eth0"), make(map[packet]int)
		for done := 0; done < 1500; {
			p := listener.next(func(p packet) bool { return p.from == here && !p.sender.IsLinkLocalUnicast() })
			if count[p]++; count[p] == 6 {
				done++
			}
		}
		t.Logf("announced six times after %s", time.Since(began))
		for p, times := range count {
			if times != 6 {
				t.Errorf("%+v was sent %d times", p, times)
			}
		}
		for _, a := range all { // like a router that has just come up
			listener.ask(a.Addr.String(), map[bool]string{true: "10.0.9.9", false: "fd00::9"}[a.Addr.Is4()])
		}
		for answers := make(map[netip.Addr]bool); len(answers) < len(all); {
			answers[listener.next(func(p packet) bool { return p.op == opReply && p.to == listener.mac }).sender] = true
		}
		inside(t, host, func() error {
			_, err := n.Set(context.Background(), State{Addresses: all})
			return err
		})
		if len(listener.got) > 0 {
			t.Errorf("at rest, %d packets are on the link, such as %+v", len(listener.got), <-listener.got)
		}
	})
}

// The broadcast address of a subnet is no address of a host, also on an interface that is named.
func TestBroadcastAddress(t *testing.T) {
	for _, tt := range []struct {
		prefix, addr string
		has, is      bool
	}{
		{"192.0.2.0/24", "192.0.2.254", true, false},
		{"192.0.2.0/24", "192.0.2.255", false, true},
		{"192.0.2.0/24", "192.0.2.0", true, false}, // Linux 5.14 treats it as any other
		{"192.0.2.0/25", "192.0.2.127", false, true},
		{"192.0.2.0/25", "192.0.2.255", false, false},
		{"192.0.2.8/30", "192.0.2.11", false, true},
		{"192.0.2.8/31", "192.0.2.9", true, false},
		{"192.0.2.9/32", "192.0.2.9", true, false},
		{"192.0.0.0/16", "192.0.2.255", true, false},
		{"0.0.0.0/0", "255.255.255.255", false, true},
		{"2001:db8::/64", "2001:db8::ffff:ffff:ffff:ffff", true, false},
	} {
		i := Interface{Name: "eth0", IPv6: true, Prefixes: []netip.Prefix{netip.MustParsePrefix(tt.prefix)}}
		addr := netip.MustParseAddr(tt.addr)
		if i.Has(addr) != tt.has || i.Broadcasts(addr) != tt.is || i.Carries(Address{Addr: addr}) != tt.has {
			t.Errorf("%s in %s: has %t, broadcasts %t, want %t, %t", addr, tt.prefix, i.Has(addr), i.Broadcasts(addr),
				tt.has, tt.is)
		}
		if got := i.Carries(Address{Addr: addr, Interfaces: []string{"eth0"}}); got == tt.is {
			t.Errorf("%s in %s, on a named interface: carries %t", addr, tt.prefix, got)
		}
	}
}
