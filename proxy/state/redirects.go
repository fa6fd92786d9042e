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
	// MaxRedirects is how many nodes redirect one packet at most, whatever they know of each
	// other.
	MaxRedirects = 3
	// RedirectTTL is the TTL, or hop limit, to which the first node lowers a packet that it
	// redirects. Each copy that the kernel sends has one less (nf_dup_ipv4), so that the TTL
	// counts the redirects. It is below that of packets from a network of any width, and leaves
	// enough for the way to a pod.
	RedirectTTL = 16
)

// A Redirect names nodes that may have connections to a VIP that this node does not know: its
// previous owners, or its present one. TCP packets for the VIP that come in by Interface, begin
// nothing and are of no connection in conntrack are sent there unchanged but for their TTL,
// whatever the frontend.
type Redirect struct {
	VIP       netip.Addr
	Interface string
	// Via gets the packets that come from hosts, Onward the packets that another node has
	// redirected, and Beyond instead of Onward those from the hardware address of Onward, if that
	// is known: no packet goes straight back. Each is an address on the link that the interface is on; the
	// zero Addr redirects none.
	Via, Onward, Beyond netip.Addr
	OnwardMAC           [6]byte
}

func (h Redirect) compare(o Redirect) int {
	return cmp.Or(h.VIP.Compare(o.VIP), strings.Compare(h.Interface, o.Interface))
}

// RedirectsOf are the redirects of one family.
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
			return fmt.Errorf("redirect %s via %s, onward %s, beyond %s: want addresses of the same family without a zone", h.VIP, h.Via, h.Onward, h.Beyond)
		case h.Via == h.Onward && !h.Via.IsValid():
			return fmt.Errorf("redirect %s: want an address that it leads to", h.VIP)
		case !PlainIfname(h.Interface):
			return fmt.Errorf("redirect %s: interface %q: want a name of 1 to %d letters, digits or any of -_.:@", h.VIP, h.Interface, maxIfname)
		case i > 0 && s.Redirects[i-1].compare(h) >= 0:
			return fmt.Errorf("redirect %s on %s: comes after %s on %s; want them sorted, no two alike", h.VIP, h.Interface, s.Redirects[i-1].VIP, s.Redirects[i-1].Interface)
		}
	}
	if !slices.IsSortedFunc(s.Taking, netip.Addr.Compare) {
		return errors.New("taking: want the VIPs sorted")
	}
	return nil
}

// reachable reports whether a redirect may lead to an address, or to none.
func (h Redirect) reachable(to netip.Addr) bool {
	return !to.IsValid() || isUnicast(to) && Family(to) == Family(h.VIP)
}

// PlainIfname reports whether the name of an interface means itself to all programs that
// load rules: the kernel forbids little.
func PlainIfname(name string) bool {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:@", r)
	}
	return name != "" && len(name) <= maxIfname && !strings.ContainsFunc(name, odd)
}
