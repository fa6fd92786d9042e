package state

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	// MaxRedirects is how many nodes redirect one packet at most, regardless of what they know of
	// each other.
	MaxRedirects = 3
	// RedirectTTL is the TTL, or hop limit, to which the first node lowers a packet that it
	// redirects. The kernel decrements it in each copy (nf_dup_ipv4), so the TTL counts redirects.
	// It is below that of packets from a network of any diameter, and large enough to reach a pod.
	RedirectTTL = 16
)

// A Redirect names nodes that may know connections to a VIP that this node does not know: its
// previous owners, or its present one. It applies to TCP packets for the VIP that arrive by
// Interface, are not SYNs, and belong to no connection in conntrack, on any port. They are sent to
// these nodes unchanged except for the TTL.
type Redirect struct {
	VIP       netip.Addr
	Interface string
	// Via gets packets from hosts. Onward gets packets that another node has redirected. If
	// Onward's hardware address is known, Beyond gets the packets that come from it, so that no
	// packet goes straight back. Each is an address on the interface's link; the zero Addr
	// redirects none.
	Via, Onward, Beyond netip.Addr
	OnwardMAC           [6]byte
}

func (h Redirect) compare(o Redirect) int {
	return cmp.Or(h.VIP.Compare(o.VIP), strings.Compare(h.Interface, o.Interface))
}

// RedirectsOf returns the redirects of one family.
func RedirectsOf(all []Redirect, f SetID) (of []Redirect) {
	for _, h := range all {
		if Family(h.VIP) == f {
			of = append(of, h)
		}
	}
	return of
}

func validateRedirects(s State) error {
	for i, h := range s.Redirects {
		switch {
		case !isUnicast(h.VIP):
			return fmt.Errorf("redirect %s: want a unicast IPv4 or IPv6 address without a zone", h.VIP)
		case !h.reachable(h.Via) || !h.reachable(h.Onward) || !h.reachable(h.Beyond):
			return fmt.Errorf("redirect %s via %s, onward %s, beyond %s: want addresses of the same "+
				"family without a zone", h.VIP, h.Via, h.Onward, h.Beyond)
		case h.Via == h.Onward && !h.Via.IsValid():
			return fmt.Errorf("redirect %s: want an address that it leads to", h.VIP)
		case !PlainIfname(h.Interface):
			return fmt.Errorf("redirect %s: interface %q: want a name of 1 to %d letters, digits or any of -_.:@",
				h.VIP, h.Interface, maxIfname)
		case i > 0 && s.Redirects[i-1].compare(h) >= 0:
			return fmt.Errorf("redirect %s on %s: comes after %s on %s; want them sorted, no two alike", h.VIP,
				h.Interface, s.Redirects[i-1].VIP, s.Redirects[i-1].Interface)
		}
	}
	if !slices.IsSortedFunc(s.Taking, netip.Addr.Compare) {
		return errors.New("taking: want the VIPs sorted")
	}
	return nil
}

// reachable reports whether a redirect may lead to an address; the zero Addr is allowed.
func (h Redirect) reachable(to netip.Addr) bool {
	return !to.IsValid() || isUnicast(to) && Family(to) == Family(h.VIP)
}

// PlainIfname reports whether all programs that load rules take the name of an interface literally.
// The kernel allows almost any name.
func PlainIfname(name string) bool {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:@", r)
	}
	return name != "" && len(name) <= maxIfname && !strings.ContainsFunc(name, odd)
}
