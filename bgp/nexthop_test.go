package bgp

import (
	"net/netip"
	"strings"
	"testing"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

func TestHops(t *testing.T) {
	four, six, link := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2"),
		netip.MustParseAddr("fe80::2%eth0")
	extended := &open{extendedHop: true}
	for _, c := range []struct {
		name          string
		local, other  netip.Addr
		router        *open
		ipv4, ipv6    string
		placeholder   netip.Addr
		carries4, six bool
	}{
		{"IPv4", four, six, nil, "10.0.0.2", "fd00::2", both4, true, true},
		{"IPv4, and the router takes more", four, six, extended, "10.0.0.2", "fd00::2", both4, true, true},
		{"IPv4 alone", four, netip.Addr{}, &open{}, "10.0.0.2", "invalid IP", only4, true, false},
		{"IPv6", six, four, &open{}, "10.0.0.2", "fd00::2", both4, true, true},
		{"IPv6 for IPv4", six, four, extended, "fd00::2", "fd00::2", both6, true, true},
		{"IPv6 alone", six, netip.Addr{}, &open{}, "invalid IP", "fd00::2", only6, true, true},
		{"link-local", link, netip.Addr{}, extended, "fe80::2", "fe80::2", both6, true, true},
	} {
		conf := Session{PeerAddress: c.local, NextHop: c.other}
		h := hopsOf(conf, c.local, c.router)
		if h.ipv4.String() != c.ipv4 || h.ipv6.String() != c.ipv6 || h.placeholder() != c.placeholder {
			t.Errorf("%s: %v by %s", c.name, h, h.placeholder())
		}
		if conf.carries(true) != c.carries4 || conf.carries(false) != c.six {
			t.Errorf("%s: carries IPv4 %t, IPv6 %t", c.name, conf.carries(true), conf.carries(false))
		}
	}
}

// What GoBGP says comes out as it was but for the next hops.
func TestHopsWrite(t *testing.T) {
	h := hops{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	same := hops{h.ipv6, h.ipv6}
	prefix := func(s string) []packet.PathNLRI {
		n, err := packet.NewIPAddrPrefix(netip.MustParsePrefix(s))
		must(t, err)
		return []packet.PathNLRI{{NLRI: n}}
	}
	update := func(four, six, four6 string) []byte {
		attrs := []packet.PathAttributeInterface{packet.NewPathAttributeOrigin(0)}
		add := func(a packet.PathAttributeInterface, err error) {
			must(t, err)
			attrs = append(attrs, a)
		}
		var nlri []packet.PathNLRI
		if four != "" {
			nlri = prefix("192.0.2.1/32")
			add(packet.NewPathAttributeNextHop(netip.MustParseAddr(four)))
		}
		if six != "" {
			add(packet.NewPathAttributeMpReachNLRI(packet.RF_IPv6_UC, prefix("2001:db8::1/128"),
				netip.MustParseAddr(six)))
		}
		if four6 != "" {
			add(packet.NewPathAttributeMpReachNLRI(packet.RF_IPv4_UC, prefix("192.0.2.1/32"),
				netip.MustParseAddr(four6)))
		}
		// Long enough for attributes with lengths of two bytes.
		attrs = append(attrs, packet.NewPathAttributeCommunities(make([]uint32, 100)))
		b, err := packet.NewBGPUpdateMessage(prefix("198.51.100.1/32"), attrs, nlri).Serialize()
		must(t, err)
		return b[headerLen:]
	}
	for _, c := range []struct {
		name      string
		hops      hops
		got, want []byte
	}{
		{"IPv4", h, update(both4.String(), "", ""), update("10.0.0.2", "", "")},
		{"IPv6", h, update("", both4.String(), ""), update("", "fd00::2", "")},
		{"IPv4 over IPv6", same, update("", "", both6.String()), update("", "", "fd00::2")},
		{"withdrawal alone", h, []byte{0, 5, 32, 198, 51, 100, 1, 0, 0}, []byte{0, 5, 32, 198, 51, 100, 1, 0, 0}},
		{"End-of-RIB", h, []byte{0, 0, 0, 0}, []byte{0, 0, 0, 0}},
	} {
		c.hops.write(c.got)
		if string(c.got) != string(c.want) {
			t.Errorf("%s:\n%x, want\n%x", c.name, c.got, c.want)
		}
	}
}

// What is cut short or lies about its lengths is left alone.
func FuzzHopsWrite(f *testing.F) {
	f.Add([]byte{0, 0, 0, 7, 0x40, 3, 4, 127, 255, 255, 2})
	f.Add([]byte{0, 0, 0, 25, 0x90, 14, 0, 21, 0, 2, 1, 16})
	f.Add([]byte(strings.Repeat("\xff", 40)))
	f.Fuzz(func(t *testing.T, body []byte) {
		n := len(body)
		hops{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}.write(body)
		if len(body) != n {
			t.Error("another length")
		}
	})
}
