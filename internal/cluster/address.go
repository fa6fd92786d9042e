package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"go4.org/netipx"
)

// reserved are addresses that no Service can have: a node would take them for its own, a group's or
// a neighbour's.
var reserved = []struct {
	netip.Prefix
	what string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("::/127"), "unspecified or loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// reservedIn returns what is reserved in r, empty if nothing is.
func reservedIn(r netipx.IPRange) string {
	for _, p := range reserved {
		if r.Overlaps(netipx.RangeOfPrefix(p.Prefix)) {
			return p.what
		}
	}
	return ""
}

// parseAddr reads an address without a zone. An IPv4-mapped IPv6 address is not taken as IPv4,
// because neither the kernel nor routers do that.
func parseAddr(s string) (netip.Addr, error) {
	text := withoutZeros(s)
	a, err := netip.ParseAddr(text)
	plain := a.WithZone("").Unmap()
	switch {
	case err != nil:
		return netip.Addr{}, errors.New("is no IP address; write one such as 192.0.2.10 or 2001:db8::10")
	case (a != plain || text != s) && assignable(plain) != nil:
		return netip.Addr{}, assignable(plain) // the right form would be refused for that
	case text != s:
		return netip.Addr{}, leadingZero(text)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("has a zone; write %s", plain)
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("is an IPv4 address written as IPv6; write %s", plain)
	}
	return a, nil
}

var leadingZeros = regexp.MustCompile(`\b0+([0-9])`)

// withoutZeros returns an IPv4 address or CIDR without the leading zeros of its numbers, and
// anything else as it is.
func withoutZeros(s string) string {
	plain := leadingZeros.ReplaceAllString(s, "$1")
	addr, _, _ := strings.Cut(plain, "/")
	if a, err := netip.ParseAddr(addr); err != nil || !a.Is4() {
		return s
	}
	return plain
}

// leadingZero returns what is wrong with an address or CIDR that is right as in text.
func leadingZero(text string) error {
	return fmt.Errorf("has a number with a leading zero, which some programs read as octal; write %s", text)
}

// errNoRange has the text of the CRD's rule.
var errNoRange = errors.New("each must be a CIDR such as 192.0.2.0/26, a range such as 192.0.2.10-192.0.2.50, or one " +
	"address, without leading zeros")

// parseRange reads a CIDR, a range or an address of a pool.
func parseRange(s string) (netipx.IPRange, error) {
	var r netipx.IPRange
	var err error
	switch from, to, dash := strings.Cut(s, "-"); {
	case dash:
		r, err = parseFromTo(strings.TrimSpace(from), strings.TrimSpace(to))
	case strings.Contains(s, "/"):
		r, err = parseCIDR(s)
	default:
		var a netip.Addr
		a, err = parseEnd(s)
		r = netipx.IPRangeFrom(a, a)
	}
	if err != nil {
		return netipx.IPRange{}, err
	}
	if what := reservedIn(r); what != "" {
		return netipx.IPRange{}, fmt.Errorf("contains %s addresses, which no Service can have; leave them out", what)
	}
	return r, nil
}

func parseFromTo(from, to string) (netipx.IPRange, error) {
	a, err := parseEnd(from)
	if err != nil {
		return netipx.IPRange{}, err
	}
	b, err := parseEnd(to)
	if err != nil {
		return netipx.IPRange{}, err
	}
	if a.BitLen() != b.BitLen() {
		return netipx.IPRange{}, errors.New("both ends of a range must be of one address family; write two ranges")
	}
	if r := netipx.IPRangeFrom(b, a); b.Less(a) && reservedIn(r) != "" {
		return r, nil // refused for that
	}
	if b.Less(a) {
		return netipx.IPRange{}, fmt.Errorf("a range must begin with its lower address: %s-%s", b, a)
	}
	return netipx.IPRangeFrom(a, b), nil
}

// parseEnd reads an address where a range would also be valid.
func parseEnd(s string) (netip.Addr, error) {
	if _, err := netip.ParseAddr(withoutZeros(s)); err != nil {
		return netip.Addr{}, errNoRange
	}
	return parseAddr(s)
}

func parseCIDR(s string) (netipx.IPRange, error) {
	text := withoutZeros(s)
	p, err := netip.ParsePrefix(text)
	plain := p
	if p.Addr().Is4In6() {
		plain = netip.PrefixFrom(p.Addr().Unmap(), max(0, p.Bits()-96))
	}
	switch r := netipx.RangeOfPrefix(plain.Masked()); {
	case err != nil:
		return netipx.IPRange{}, errNoRange
	case reservedIn(r) != "":
		return r, nil // refused for that
	case text != s:
		return netipx.IPRange{}, leadingZero(text)
	case plain != p:
		return netipx.IPRange{}, fmt.Errorf("is an IPv4 network written as IPv6; write %s", plain)
	case p != p.Masked():
		// It could mean either the network or the address.
		return netipx.IPRange{}, fmt.Errorf("a CIDR must begin at its network's first address: %s for the network, "+
			"or %s for the address",
			p.Masked(), p.Addr())
	}
	return netipx.RangeOfPrefix(p), nil
}

// parseAddrs reads addresses and host parts separated by commas. bad names the invalid parts, empty
// if there are none. The addresses are returned in any case, sorted and without duplicates.
func parseAddrs(s string) (addrs []netip.Addr, bad string) {
	if n := strings.Count(s, ",") + 1; n > maxListed {
		return nil, fmt.Sprintf("has %d entries, and a Service may request %d addresses; divide them "+
			"between several Services", n, maxRequested)
	}
	var mistakes []string
	for f := range strings.SplitSeq(s, ",") {
		f = strings.TrimSpace(f)
		if f == "" {
			continue
		}
		a, err := parseAddr(f)
		if err == nil && !IsHostPart(a) {
			err = assignable(a)
		}
		if err != nil {
			mistakes = append(mistakes, fmt.Sprintf("%q %v", f, err))
			continue
		}
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), strings.Join(mistakes, "; ")
}

// assignable returns why a Service cannot have address a.
func assignable(a netip.Addr) error {
	if what := reservedIn(netipx.IPRangeFrom(a, a)); what != "" {
		return fmt.Errorf("is %s, and no Service can have it", what)
	}
	return nil
}
