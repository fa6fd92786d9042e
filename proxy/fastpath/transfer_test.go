package fastpath

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// withChecksums makes a namespace's interface compute checksums, as packets from a network
// card have them: otherwise veth pairs neither compute nor check them.
func (l *lab) withChecksums(ns *nstest.NS) {
	l.t.Helper()
	var err error
	ns.Do(func() {
		fd, e := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err = e; err != nil {
			return
		}
		defer unix.Close(fd)
		value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:], "eth0")
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
			uintptr(unsafe.Pointer(&request))); errno != 0 {
			err = errno
		}
	})
	if err != nil {
		l.t.Fatalf("%s: turn off checksums of the interface: %v", ns.Name, err)
	}
}

// Megabytes arrive unchanged in both directions, with GSO and without checksums, and in
// small segments with checksums.
func TestBulkTransfer(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		s := each(state("pod1"), func(f *Frontend) {
			f.Backends[0].Addr = netip.AddrPortFrom(f.Backends[0].Addr.Addr(), 7)
		})
		l.set(p, s)
		var echo net.Listener
		var err error
		l.pod1.Do(func() { echo, err = net.Listen("tcp", ":7") })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { echo.Close() })
		go nstest.Accept(echo, func(c net.Conn) { _, _ = io.Copy(c, c) })
		sent := bytes.Repeat([]byte("all work and no play "), 200_000)
		for _, sums := range []bool{false, true} {
			if sums {
				l.withChecksums(l.client)
				l.withChecksums(l.pod1)
			}
			for _, family := range families {
				c := l.mustDial("tcp", 0, port("vip", family, 80))
				go func() { _, _ = c.Write(sent) }()
				got := make([]byte, len(sent))
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
					t.Errorf("family %d, checksums %t: %v", family, sums, err)
				}
				c.Close()
			}
		}
		l.bypassed()
	})
}

// Datagrams larger than a frame arrive in fragments, in both directions.
func TestFragments(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		l.withChecksums(l.client)
		l.withChecksums(l.pod1)
		for _, family := range families {
			small := l.mustDial("udp", 0, port("vip", family, 80))
			if got := ask(small, "5000"); got != "pod1 saw client" {
				t.Errorf("a large reply: %s", got)
			}
			large := l.mustDial("udp", 0, port("vip", family, 80))
			if got := ask(large, strings.Repeat("x", 6000)); got != "pod1 saw client" {
				t.Errorf("a large request: %s", got)
			}
		}
		l.bypassed()
	})
}

// ICMP errors of a router before a link with a smaller MTU reach the pod, and those of a
// router before a pod reach the client.
func TestPathMTU(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		router, far := nstest.New(t, "router"), nstest.New(t, "far")
		nstest.Link(t, l.node, "eth1", router, "eth0")
		nstest.Link(t, router, "eth1", far, "eth0")
		l.node.Addr("eth1", "10.0.5.1/24", "fd00:5::1/64")
		router.Addr("eth0", "10.0.5.2/24", "fd00:5::2/64")
		router.Addr("eth1", "10.0.6.1/24", "fd00:6::1/64")
		far.Addr("eth0", "10.0.6.2/24", "fd00:6::2/64")
		router.Forward()
		l.node.Route("10.0.6.0/24", "10.0.5.2", "")
		l.node.Route("fd00:6::/64", "fd00:5::2", "")
		for _, r := range []struct {
			ns  *nstest.NS
			via [2]string
		}{{router, [2]string{"10.0.5.1", "fd00:5::1"}}, {far, [2]string{"10.0.6.1", "fd00:6::1"}}} {
			r.ns.Route("0.0.0.0/0", r.via[0], "")
			r.ns.Route("::/0", r.via[1], "")
		}
		router.Do(func() {
			l, err := netlink.LinkByName("eth1")
			if err == nil {
				err = netlink.LinkSetMTU(l, 1300)
			}
			if err != nil {
				t.Error(err)
			}
		})
		s := state("pod1")
		s.Outward = []string{"eth0", "eth1"}
		l.set(p, s)
		for _, family := range families {
			var c net.Conn
			var err error
			far.Do(func() { c, err = net.Dial("tcp", port("vip", family, 80).String()) })
			if err != nil {
				t.Fatal(err)
			}
			if got := ask(c, "60000"); !strings.HasPrefix(got, "pod1 saw ") {
				t.Errorf("family %d: %s", family, got)
			}
			c.Close()
		}
		l.bypassed()
	})
}

// Where the link to a pod or to a client has a smaller MTU, the sender gets an ICMP message.
func TestTooBigForNarrowLink(t *testing.T) {
	for _, iface := range []string{"cali1", "eth0"} {
		t.Run(iface, func(t *testing.T) {
			inNamespace(t, func(t *testing.T, l *lab) {
				if err := netlink.LinkSetMTU(l.link(iface), 1300); err != nil {
					t.Fatal(err)
				}
				l.withChecksums(l.client)
				l.withChecksums(l.pod1)
				p := l.path()
				l.set(p, state("pod1"))
				for _, family := range families {
					// A veth accepts no packet larger than its MTU from its peer: only sent
					// packets can be too large.
					c := l.mustDial("tcp", 0, port("vip", family, 80))
					if iface == "eth0" {
						if got := ask(c, "60000"); got != "pod1 saw client" {
							t.Errorf("family %d: a large reply: %s", family, got)
						}
						continue
					}
					if got := ask(c, strings.Repeat("x", 60000)); !strings.HasPrefix(got, "pod1 saw client") {
						t.Errorf("family %d: a large request: %s", family, got)
					}
					u := l.mustDial("udp", 0, port("vip", family, 80))
					ask(u, "?")
					if _, err := u.Write(bytes.Repeat([]byte{'x'}, 1400)); err != nil {
						t.Error(err)
					}
					// The first packet was too large; the client sends later ones in fragments.
					l.await("the client's ICMP error", func() bool {
						_, err := u.Write(bytes.Repeat([]byte{'x'}, 1400))
						_ = u.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
						buf := make([]byte, 100)
						n, _ := u.Read(buf)
						return err == nil && string(buf[:n]) == "pod1 saw client"
					})
				}
				l.bypassed()
			})
		})
	}
}
