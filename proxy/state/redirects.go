package state

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Redirect names the previous owner of a VIP, which has the connections that this node
// does not know. TCP packets for the VIP that come in by Interface, begin nothing and are
// of no connection in conntrack are sent to Via unchanged, whatever the frontend.
type Redirect struct {
	VIP       netip.Addr
	Interface string
	Via       netip.Addr // the other node's, on the link that the interface is on
}

func (h Redirect) compare(o Redirect) int {
	return cmp.Or(h.VIP.Compare(o.VIP), strings.Compare(h.Interface, o.Interface))
}

// SameRedirects says whether two States redirect the same.
func SameRedirects(a, b State) bool {
	return slices.Equal(a.Redirects, b.Redirects) && slices.Equal(a.Nodes, b.Nodes)
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
		case !isUnicast(h.Via) || Family(h.Via) != Family(h.VIP):
			return fmt.Errorf("redirect %s via %s: want an address of the same family without a zone", h.VIP, h.Via)
		case !PlainIfname(h.Interface):
			return fmt.Errorf("redirect %s: interface %q: want a name of 1 to %d letters, digits or any of -_.:@", h.VIP, h.Interface, maxIfname)
		case i > 0 && s.Redirects[i-1].compare(h) >= 0:
			return fmt.Errorf("redirect %s on %s: comes after %s on %s; want them sorted, no two alike", h.VIP, h.Interface, s.Redirects[i-1].VIP, s.Redirects[i-1].Interface)
		}
	}
	if !slices.IsSortedFunc(s.Taking, netip.Addr.Compare) {
		return errors.New("taking: want the VIPs sorted")
	}
	if !slices.IsSortedFunc(s.Nodes, func(a, b [6]byte) int { return bytes.Compare(a[:], b[:]) }) {
		return errors.New("nodes: want their hardware addresses sorted")
	}
	return nil
}

// PlainIfname says whether the name of an interface means itself to all programs that
// load rules: the kernel forbids little.
func PlainIfname(name string) bool {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:@", r)
	}
	return name != "" && len(name) <= maxIfname && !strings.ContainsFunc(name, odd)
}
