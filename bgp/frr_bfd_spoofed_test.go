package bgp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A pod with NET_RAW sends packets with the router's address and TTL 255 to the node. They do not
// end the BFD session, whatever the reverse-path filter lets through.
func TestFRRBFDSpoofed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		r := startFRRWith(t, frrSlowBFDConfig, "bfdd")
		node, pod := nstest.Node(t), nstest.New(t, "pod")
		nstest.Link(t, node, "pod", pod, "eth0")
		node.Addr("pod", "10.244.0.1/24", "fd01::1/64")
		pod.Addr("eth0", "10.244.0.2/24", "fd01::2/64")
		pod.Route("10.0.0.0/24", "10.244.0.1", "eth0")
		pod.Route("fd00::/64", "fd01::1", "eth0")
		for _, c := range []struct{ router, node, filter string }{
			{"10.0.0.1", "10.0.0.2", "0"}, {"10.0.0.1", "10.0.0.2", "2"}, {"fd00::1", "fd00::2", "0"},
		} {
			t.Run(c.router+" rp_filter "+c.filter, func(t *testing.T) {
				node.Sysctl("ipv4/conf/all/rp_filter", c.filter)
				node.Sysctl("ipv4/conf/pod/rp_filter", c.filter)
				s := newServer(t, Options{})
				session := bfdSession(c.router, c.node)
				session.BFD = slowBFD
				_, err := s.Set(t.Context(), state([]Session{session}, routes("192.0.2.1/32")))
				must(t, err)
				eventually(t, "BFD up", func() bool { return upWithBFD(s) })
				before := received(t)
				for _, p := range []bfdPacket{
					{state: bfdDown, multiplier: 3, local: 8},
					{state: bfdDown, diagnostic: bfdAdministratively, multiplier: 3, local: 8},
					{state: bfdAdminDown, multiplier: 3, local: 8},
					{state: bfdDown, multiplier: 3, local: 8, remote: 9},
				} {
					pod.Do(func() { spoof(t, netip.MustParseAddr(c.router), netip.MustParseAddr(c.node), p.bytes()) })
				}
				eventually(t, "spoofed packets", func() bool { return received(t) >= before+4 })
				// The session that a packet ends is down before the detector handles the next one.
				polls := r.vtysh("-c", "show bfd peers counters")
				eventually(t, "packets of the router",
					func() bool { return r.vtysh("-c", "show bfd peers counters") != polls })
				if st := s.sessionStatus("tor1"); st.BFD.State != "Up" || st.BFD.Flaps+st.Flaps != 0 {
					t.Errorf("BFD is %s (%s) after %d flaps", st.BFD.State, st.BFD.Reason, st.BFD.Flaps)
				}
			})
		}
	})
}

// The interface that leads to a router: by its network, by a route, or by its zone.
func TestLeadsTo(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Node(t)
		nstest.Link(t, node, "uplink", nstest.New(t, "router"), "eth0")
		nstest.Link(t, node, "pod", nstest.New(t, "pod"), "eth0")
		node.Addr("uplink", "10.0.0.2/24", "fd00::2/64")
		node.Addr("pod", "10.244.0.1/24")
		node.Route("192.0.2.1/32", "10.0.0.1", "uplink")
		for _, c := range []struct {
			router string
			want   map[string]bool
		}{
			{"10.0.0.1", map[string]bool{"uplink": true, "pod": false, "lo": false}},
			{"fd00::1", map[string]bool{"uplink": true, "pod": false, "lo": false}},
			{"192.0.2.1", map[string]bool{"uplink": true, "pod": false}},
			{"fe80::1%uplink", map[string]bool{"uplink": true, "pod": false}},
			{"10.0.0.2", map[string]bool{"lo": true, "pod": false}}, // a router on the node itself
			{"198.51.100.1", map[string]bool{"uplink": false, "pod": false}},
		} {
			for name, want := range c.want {
				if got := leadsTo(linkIndex(t, name), netip.MustParseAddr(c.router), ""); got != want {
					t.Errorf("%s leads to %s: %t, want %t", name, c.router, got, want)
				}
			}
		}
		if leadsTo(1<<20, netip.MustParseAddr("10.0.0.1"), "") {
			t.Error("an interface that does not exist leads to the router")
		}
		if !leadsTo(linkIndex(t, "pod"), netip.MustParseAddr("198.51.100.1"), "pod") {
			t.Error("the session's device does not lead to the router")
		}
	})
}

func linkIndex(t *testing.T, name string) int {
	t.Helper()
	link, err := net.InterfaceByName(name)
	must(t, err)
	return link.Index
}

var datagrams = regexp.MustCompile(`(?m)^(?:Udp: |Udp6InDatagrams\s+)(\d+)`)

// received is how many UDP datagrams of both families processes of this namespace have received.
func received(t *testing.T) (n int) {
	t.Helper()
	for _, file := range []string{"/proc/net/snmp", "/proc/net/snmp6"} {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, m := range datagrams.FindAllSubmatch(text, -1) {
			one, err := strconv.Atoi(string(m[1]))
			must(t, err)
			n += one
		}
	}
	return n
}

// spoof sends a BFD packet with any source address and TTL 255, as a process with NET_RAW can.
func spoof(t *testing.T, from, to netip.Addr, body []byte) {
	t.Helper()
	udp := binary.BigEndian.AppendUint16(nil, bfdSourcePort)
	udp = binary.BigEndian.AppendUint16(udp, bfdPort)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(body)))
	udp = append(append(udp, 0, 0), body...)
	family, address := unix.AF_INET, unix.Sockaddr(nil)
	ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, maxTTL, unix.IPPROTO_UDP, 0, 0}
	if from.Is6() {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
		ip = []byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, maxTTL}
		binary.BigEndian.PutUint16(udp[6:], checksum(from, to, udp))
	} else {
		address = &unix.SockaddrInet4{Addr: to.As4()}
	}
	ip = append(append(append(ip, from.AsSlice()...), to.AsSlice()...), udp...)
	fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW) // with the header
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Sendto(fd, ip, 0, address))
}

// checksum is that of UDP over IPv6 (RFC 8200 section 8.1). The length of udp is even.
func checksum(from, to netip.Addr, udp []byte) uint16 {
	sum := uint32(len(udp)) + unix.IPPROTO_UDP
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), udp} {
		for ; len(part) > 0; part = part[2:] {
			sum += uint32(binary.BigEndian.Uint16(part))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// Packets with discriminator 0 must arrive by an interface that leads to the router. While the session
// is down, the status names the one they arrive by.
func TestBFDExpects(t *testing.T) {
	now := time.Now()
	newDetector := func(state bfdState) *detector {
		return &detector{
			peer: netip.MustParseAddr("127.0.0.9"), discriminator: 5, status: BFDStatus{State: state.String()},
		}
	}
	const loopback, other = 1, 1 << 20
	for _, c := range []struct {
		what   string
		state  bfdState
		remote uint32
		link   int
		want   bool
	}{
		{"this session's discriminator", bfdUp, 5, loopback, true},
		{"by another interface", bfdUp, 5, other, true},
		{"another session's", bfdUp, 6, loopback, false},
		{"none, up", bfdUp, 0, loopback, true},
		{"none, up, by another interface", bfdUp, 0, other, false},
		{"none, down", bfdDown, 0, loopback, true},
		{"none, init", bfdInit, 0, loopback, true},
		{"none, down, by another interface", bfdDown, 0, other, false},
	} {
		d := newDetector(c.state)
		for range 2 {
			if got := d.expects(bfdPacket{remote: c.remote}, c.link, now); got != c.want {
				t.Errorf("%s: %t, want %t", c.what, got, c.want)
			}
		}
		if wrong := c.link == other && !c.want && c.state != bfdUp; wrong != (d.status.Error != "") {
			t.Errorf("%s: status %q", c.what, d.status.Error)
		}
	}
}
