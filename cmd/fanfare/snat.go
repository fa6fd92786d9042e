package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/proxy"
)

// A snatFlags value holds the flags of source NAT, as the user wrote them; policy converts them.
type snatFlags struct {
	ports   string   // how source ports are chosen
	sources []string // addresses, or names of interfaces
	never   []string // prefixes of pods
	mark    string   // value/mask
}

// add defines the flags. They correspond to settings of kube-proxy and of CNI plugins, which
// they must match where both replace sources. The mark is for rules of other programs: it shows
// them which flows Fanfare has given another source.
func (f *snatFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.ports, "snat-ports", "fully-random",
		"source ports of flows with source NAT: fully-random, random or keep")
	set.StringSliceVar(&f.sources, "snat-sources", nil,
		"addresses for source NAT: those of this node, one per family, or an interface; default: those of "+
			"the outgoing interface")
	set.StringSliceVar(&f.never, "snat-never-cidrs", nil,
		"pod networks whose flows keep their source, because the network routes their replies to this node")
	set.StringVar(&f.mark, "masquerade-mark", "",
		"packet mark of flows with source NAT, as value/mask such as 0x4000/0x4000; empty: none")
}

// policy checks the flags and returns proxy.SNAT, with at most one source per family and with
// prefixes that do not overlap. It reads the addresses of interfaces once: the speaker must be
// restarted when they change.
func (f *snatFlags) policy() (s proxy.SNAT, err error) {
	var known bool
	if s.Ports, known = sourcePorts[f.ports]; !known {
		return s, fmt.Errorf("--snat-ports %q: want fully-random, random or keep", f.ports)
	}
	for _, v := range f.sources {
		addrs, err := sourceAddrs(v)
		if err != nil {
			return s, fmt.Errorf("--snat-sources %q: %w", v, err)
		}
		for _, a := range addrs {
			if i := slices.IndexFunc(s.Sources, func(b netip.Addr) bool { return a.Is4() == b.Is4() }); i >= 0 {
				return s, fmt.Errorf("--snat-sources %q: %s is of the same family as %s; give one of each", v, a,
					s.Sources[i])
			}
			s.Sources = append(s.Sources, a)
		}
	}
	// The set merges prefixes that overlap, which nftables would reject.
	var never netipx.IPSetBuilder
	for _, v := range f.never {
		p, err := netip.ParsePrefix(v)
		if err != nil || p.Addr().Is4In6() {
			return s, fmt.Errorf("--snat-never-cidrs %q: want a prefix such as 10.0.0.0/8 or 2001:db8::/32", v)
		}
		never.AddPrefix(p)
	}
	set, err := never.IPSet()
	if err != nil {
		return s, fmt.Errorf("--snat-never-cidrs: %w", err)
	}
	s.Never = set.Prefixes()
	if s.Mark, err = parseMark(f.mark); err != nil {
		return s, fmt.Errorf("--masquerade-mark %q: %w", f.mark, err)
	}
	return s, nil
}

// sourcePorts are the values of --snat-ports. fully-random and random are nftables' flags of masquerade and
// snat; keep changes a port only if it is in use.
var sourcePorts = map[string]proxy.Ports{
	"fully-random": proxy.PortFullyRandom, "random": proxy.PortRandom, "keep": proxy.PortKept,
}

// sourceAddrs returns the address itself, or the primary addresses of an interface: one
// DaemonSet serves all nodes, and each has its own addresses.
func sourceAddrs(v string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(v); err == nil {
		if !usableSource(a) {
			return nil, errors.New("want an address of this node that others can send to, without a zone")
		}
		return []netip.Addr{a}, nil
	}
	// An address of the other family is not asked for: an interface without one leaves that family to
	// masquerading.
	i, err := net.InterfaceByName(v)
	if err != nil {
		return nil, errors.New("this node has no such interface, and the value is not an address")
	}
	all, err := i.Addrs()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !usableSource(p.Addr()) {
			continue
		}
		// The first one of a family is the primary one.
		if !slices.ContainsFunc(addrs, func(b netip.Addr) bool { return b.Is4() == p.Addr().Is4() }) {
			addrs = append(addrs, p.Addr())
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("the interface has no address that others can send to")
	}
	return addrs, nil
}

// usableSource reports whether replies from other hosts can reach an address. It excludes
// loopback, link-local, multicast and IPv4-mapped addresses, and those with a zone.
func usableSource(a netip.Addr) bool { return a.IsGlobalUnicast() && !a.Is4In6() && a.Zone() == "" }

// parseMark reads a value and a mask, decimal or with 0x. Without a mask, the value is its own
// mask: other programs' bits of the mark stay as they are. An empty string is the zero Mark,
// which sets none.
func parseMark(v string) (m proxy.Mark, err error) {
	if v == "" {
		return m, nil
	}
	value, mask, found := strings.Cut(v, "/")
	if !found {
		mask = value
	}
	x, err1 := strconv.ParseUint(value, 0, 32)
	y, err2 := strconv.ParseUint(mask, 0, 32)
	if err1 != nil || err2 != nil || x == 0 {
		return m, errors.New("want a value above zero and a mask, each of 32 bits, such as 0x4000/0x4000")
	}
	if m = (proxy.Mark{Value: uint32(x), Mask: uint32(y)}); m.Value&^m.Mask != 0 {
		return proxy.Mark{}, fmt.Errorf("the value has bits outside of the mask; want a mask such as %#x",
			m.Value|m.Mask)
	}
	return m, nil
}
