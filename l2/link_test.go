package l2

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	afpacket "github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// timeout is the longest wait for what takes milliseconds on an idle machine.
const timeout = time.Minute

// lan makes hosts on one bridge, each in a namespace of its own with an interface eth0 and
// the addresses 10.0.0.N and fd00::N, counted from 1.
func lan(t testing.TB, names ...string) []*nstest.NS {
	t.Helper()
	return lanOf(t, nstest.New(t, "switch"), names...)
}

// lanOf is a lan whose bridge, br0, is in the namespace sw.
func lanOf(t testing.TB, sw *nstest.NS, names ...string) []*nstest.NS {
	t.Helper()
	hosts, sockets := make([]*nstest.NS, len(names)), make([]string, len(names))
	for i, name := range names {
		hosts[i], sockets[i] = nstest.New(t, name), "to-"+name
		nstest.Link(t, sw, sockets[i], hosts[i], "eth0")
		hosts[i].Addr("eth0", fmt.Sprintf("10.0.0.%d/24", i+1), fmt.Sprintf("fd00::%d/64", i+1))
	}
	sw.Bridge("br0", sockets...)
	return hosts
}

// inside runs f in a namespace. An error ends the test.
func inside(t testing.TB, ns *nstest.NS, f func() error) {
	t.Helper()
	var err error
	ns.Do(func() { err = f() })
	must(t, err)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition. holds returns why it is not met yet.
func until(t testing.TB, holds func() string) {
	t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		why := holds()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(why)
		}
	}
}

// macOn is the hardware address of an interface.
func macOn(t testing.TB, ns *nstest.NS, name string) (m MAC) {
	t.Helper()
	inside(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			m, _ = hwaddr.Of(l.Attrs().HardwareAddr)
		}
		return err
	})
	return m
}

// A node is an Announcer in a namespace.
type node struct {
	*Announcer
	t  testing.TB
	ns *nstest.NS
}

// start makes an Announcer that repeats announcements ten times as fast, soon retries after
// conflicts, and answers old requests.
func start(t testing.TB, ns *nstest.NS) *node {
	t.Helper()
	return startWith(t, ns, Options{})
}

func startWith(t testing.TB, ns *nstest.NS, o Options) *node {
	t.Helper()
	awaitCarriers(t, ns)
	n := &node{New(o), t, ns}
	n.phases.requestLifetime = timeout // stations ask once, and a busy machine delays the reader
	for s := retry1; s <= retry5; s++ {
		n.phases.schedule.delays[s] = 300 * time.Millisecond
	}
	for s := again1; s <= again5; s++ {
		n.phases.schedule.delays[s] /= 10
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

// awaitCarriers waits until the kernel reports a carrier on all interfaces that are up; it
// does so in the background.
func awaitCarriers(t testing.TB, ns *nstest.NS) {
	t.Helper()
	until(t, func() (why string) {
		inside(t, ns, func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if flags := l.Attrs().RawFlags; flags&unix.IFF_UP != 0 && flags&unix.IFF_RUNNING == 0 {
					why = l.Attrs().Name + " has no carrier"
				}
			}
			return err
		})
		return why
	})
}

// set returns the addresses that are held at once.
func (n *node) set(addresses ...Address) (have []netip.Addr) {
	n.t.Helper()
	return n.become(State{Addresses: addresses})
}

func (n *node) become(s State) (have []netip.Addr) {
	n.t.Helper()
	inside(n.t, n.ns, func() (err error) {
		have, err = n.Set(context.Background(), s)
		return err
	})
	return have
}

// awaitHeld waits until exactly these addresses are held.
func (n *node) awaitHeld(want ...string) {
	n.t.Helper()
	until(n.t, func() string {
		if got := fmt.Sprint(n.phases.held()); got != fmt.Sprint(want) {
			return fmt.Sprintf("%s holds %s, want %s: %+v", n.ns.Name, got, want, n.Status())
		}
		return ""
	})
}

// status is the status of one address.
func (n *node) status(a string) Status {
	n.t.Helper()
	all := n.Status()
	i := slices.IndexFunc(all, func(s Status) bool { return s.Addr == ip(a) })
	if i < 0 {
		n.t.Fatalf("no status of %s among %v", a, all)
	}
	return all[i]
}

func addresses(texts ...string) []Address {
	all := make([]Address, len(texts))
	for i, s := range texts {
		all[i] = Address{Addr: ip(s)}
	}
	return all
}

// neighbour is a host's neighbour entry for an address.
func neighbour(t testing.TB, ns *nstest.NS, a string) (m MAC, state int) {
	t.Helper()
	inside(t, ns, func() error {
		family := unix.AF_INET
		if ip(a).Is6() {
			family = unix.AF_INET6
		}
		entries, err := netlink.NeighList(0, family)
		for _, e := range entries {
			if got, ok := netip.AddrFromSlice(e.IP); ok && got.Unmap() == ip(a) {
				m, _ = hwaddr.Of(e.HardwareAddr)
				state = e.State
			}
		}
		return err
	})
	return m, state
}

// talk sends a datagram to an address, which makes the kernel resolve it.
func talk(t testing.TB, ns *nstest.NS, a string) {
	t.Helper()
	inside(t, ns, func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(ip(a), 9).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = c.Write([]byte("x")) // fails if an earlier datagram was not delivered
		return nil
	})
}

// resolve makes a host's kernel resolve an address.
func resolve(t testing.TB, ns *nstest.NS, a string, want MAC) {
	t.Helper()
	talk(t, ns, a)
	until(t, func() string {
		if m, state := neighbour(t, ns, a); m != want || state&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY) == 0 {
			if state&unix.NUD_FAILED != 0 {
				talk(t, ns, a)
			}
			return fmt.Sprintf("%s is at %s for %s (state %#x), want %s", a, m, ns.Name, state, want)
		}
		return ""
	})
}

// forgetAll empties a host's neighbour tables.
func forgetAll(t testing.TB, ns *nstest.NS) {
	t.Helper()
	inside(t, ns, func() error {
		entries, err := netlink.NeighList(0, 0)
		for _, e := range entries {
			if e.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0 {
				_ = netlink.NeighDel(&e) // it may have expired
			}
		}
		return err
	})
}

// A station sends and receives raw packets on an interface.
type station struct {
	t    testing.TB
	mac  MAC
	conn *afpacket.Conn
	got  chan packet
}

// listen opens a station. It receives all packets of both protocols.
func listen(t testing.TB, ns *nstest.NS, name string) *station {
	t.Helper()
	s := &station{t: t, mac: macOn(t, ns, name), got: make(chan packet, 1<<16)}
	inside(t, ns, func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			s.conn, err = afpacket.Listen(i, afpacket.Raw, unix.ETH_P_ALL, nil)
		}
		if err != nil {
			return err
		}
		raw, err := s.conn.SyscallConn()
		if err != nil {
			return err
		}
		// Enough for all packets of a test while a busy machine delays the reader.
		return setOption(raw, unix.SO_RCVBUFFORCE, 64<<20)
	})
	t.Cleanup(func() { s.conn.Close() })
	go s.read()
	return s
}

func (s *station) read() {
	b := make([]byte, frameLength)
	for {
		n, from, err := s.conn.ReadFrom(b)
		if err != nil {
			return
		}
		if m, _ := hwaddr.Of(from.(*afpacket.Addr).HardwareAddr); m == s.mac {
			continue
		}
		for _, proto := range []*protocol{arpProtocol, ndpProtocol} {
			if p, err := proto.parse(b[:n]); err == nil {
				s.got <- p
			}
		}
	}
}

func (s *station) send(p packet) {
	s.t.Helper()
	frame, err := protocolOf(p.target).marshal(p)
	must(s.t, err)
	_, err = s.conn.WriteTo(frame, &afpacket.Addr{HardwareAddr: p.to[:]})
	must(s.t, err)
}

// ask sends a request for address a, as a host with address sender does.
func (s *station) ask(a, sender string) {
	s.t.Helper()
	p := packet{op: opRequest, from: s.mac, to: broadcast, sender: ip(sender), target: ip(a)}
	if p.target.Is6() {
		p.to = groupMAC(solicitedNode(p.target))
	}
	s.send(p)
}

// next waits for a packet that matches.
func (s *station) next(about func(packet) bool) packet {
	s.t.Helper()
	timeout := time.After(timeout)
	for {
		select {
		case p := <-s.got:
			if about(p) {
				return p
			}
		case <-timeout:
			s.t.Fatal("nothing came")
		}
	}
}

// answer waits for a reply to this station about a.
func (s *station) answer(a string) MAC {
	s.t.Helper()
	return s.next(func(p packet) bool { return p.op == opReply && p.sender == ip(a) && p.to == s.mac }).from
}
