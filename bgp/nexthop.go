package bgp

import (
	"encoding/binary"
	"net/netip"
)

// GoBGP uses one address, the local end of the connection, as the next hop of all routes of a
// session. It gets a stand-in for the session's next hops, and the wire replaces the stand-in. The
// stand-in's family makes GoBGP encode IPv4 routes the right way: over IPv6 as in RFC 8950. If the
// session has no next hop for a family, GoBGP's policy rejects its routes by matching the last two
// stand-ins. No router sees a stand-in. (GoBGP refuses a loopback next hop only from routers that
// are not on loopback.)
var (
	both4 = netip.MustParseAddr("127.255.255.2") // a next hop for each family
	both6 = netip.MustParseAddr("100::2")        // also for IPv4 routes
	only4 = netip.MustParseAddr("127.255.255.3") // none for IPv6
	only6 = netip.MustParseAddr("100::3")        // none for IPv4
)

// hops are the next hops of a session, invalid if it has none.
type hops struct {
	ipv4 netip.Addr // an IPv6 address if the router accepts that (RFC 8950)
	ipv6 netip.Addr
}

// carries reports whether the router can get routes of a family, as far as that is known before it
// says whether it accepts IPv6 next hops for IPv4.
func (s Session) carries(is4 bool) bool {
	return is4 || !s.PeerAddress.Is4() || s.NextHop.IsValid()
}

// hopsOf returns the next hops for a connection from the address local. Where several are possible
// it is local, which the router evidently can reach.
func hopsOf(conf Session, local netip.Addr, router *open) hops {
	local = local.WithZone("")
	switch {
	case local.Is4():
		return hops{ipv4: local, ipv6: conf.NextHop}
	case router != nil && router.extendedHop:
		return hops{ipv4: local, ipv6: local}
	default:
		return hops{ipv4: conf.NextHop, ipv6: local}
	}
}

func (h hops) placeholder() netip.Addr {
	switch {
	case !h.ipv4.IsValid():
		return only6
	case h.ipv4.Is6():
		return both6
	case !h.ipv6.IsValid():
		return only4
	default:
		return both4
	}
}

// of returns the next hop of a prefix.
func (h hops) of(p netip.Prefix) netip.Addr {
	if p.Addr().Is4() {
		return h.ipv4
	}
	return h.ipv6
}

// write puts the next hops into the body of GoBGP's UPDATE (RFC 4271 §4.3, RFC 4760 §3).
func (h hops) write(update []byte) {
	const nextHop, mpReach = 3, 14
	for kind, value := range attributesOf(update) {
		switch {
		case kind == nextHop && len(value) == 4 && h.ipv4.Is4():
			copy(value, h.ipv4.AsSlice())
		case kind == mpReach && len(value) >= 4+16 && value[3] == 16:
			hop := h.ipv6
			if binary.BigEndian.Uint16(value) == 1 { // AFI of IPv4
				hop = h.ipv4
			}
			if hop.Is6() {
				copy(value[4:], hop.AsSlice())
			}
		}
	}
}

// attributesOf yields the path attributes in the body of an UPDATE by type.
func attributesOf(update []byte) func(yield func(kind byte, value []byte) bool) {
	return func(yield func(kind byte, value []byte) bool) {
		_, rest := counted(update) // the withdrawn routes
		attrs, _ := counted(rest)
		for len(attrs) >= 3 {
			const extendedLength = 0x10
			kind, from, n := attrs[1], 3, int(attrs[2])
			if attrs[0]&extendedLength != 0 && len(attrs) >= 4 {
				from, n = 4, int(binary.BigEndian.Uint16(attrs[2:]))
			}
			if len(attrs) < from+n || !yield(kind, attrs[from:from+n]) {
				return
			}
			attrs = attrs[from+n:]
		}
	}
}

// counted splits b: its first two bytes are the length of the first part.
func counted(b []byte) (some, rest []byte) {
	if len(b) < 2 || len(b) < 2+int(binary.BigEndian.Uint16(b)) {
		return nil, nil
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	return b[2:n], b[n:]
}
