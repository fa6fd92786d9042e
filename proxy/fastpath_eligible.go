package proxy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/fastpath"
)

// fastVIP is all that the fast path could take, sorted.
func fastVIP(v *VIP, node string) (all []fastpath.Frontend) {
	for i := range v.Frontends {
		if f := &v.Frontends[i]; f.Protocol != SCTP {
			all = append(all, fastFrontend(f, v, node))
		}
	}
	slices.SortFunc(all, compareFast)
	return all
}

func compareFast(a, b fastpath.Frontend) int {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c
	}
	return int(a.Protocol) - int(b.Protocol)
}

// outwardOf are the interfaces by which external clients come: none by which this node's
// own pods do.
func outwardOf(s *State) []string {
	return slices.DeleteFunc(slices.Clone(s.Outward), func(name string) bool { return internalBy(&s.Clients, name) })
}

// internalBy says whether clients that come by an interface are this node's pods.
func internalBy(c *LocalClients, iface string) bool {
	return c.InterfacePrefix != "" && strings.HasPrefix(iface, c.InterfacePrefix) || c.Bridge != "" && iface == c.Bridge
}

// fastFrontend is one frontend for the fast path. The backends that keep their flows are those
// of which conntrack's entries would stay; none but this node's have any there. Datagrams leave a
// backend that drains at once, since its answers pass without their flow.
func fastFrontend(f *Frontend, v *VIP, node string) fastpath.Frontend {
	to := fastpath.Frontend{Addr: netip.AddrPortFrom(v.Addr, f.Port), Protocol: uint8(f.Protocol), Sources: f.Sources}
	for _, b := range f.External.Backends {
		if onNode(b, node) {
			to.Backends = append(to.Backends, fastpath.Backend{Addr: b.Addr, Weight: uint16(b.EffectiveWeight())})
		}
	}
	switch {
	case f.Protocol == TCP:
		to.Draining = keeping(f, node)
	case f.External.Empty() || f.Internal.Empty():
		to.Draining = f.Draining // for want of a better place
	default:
		to.Replying = f.Draining
	}
	return to
}

// keeping are the backends whose connections stay though they get no new ones from
// external clients, sorted.
func keeping(f *Frontend, node string) []netip.AddrPort {
	all := f.Draining
	for _, b := range f.Internal.Backends {
		if onNode(b, node) && !f.External.Has(b.Addr) && !f.Drains(b.Addr) {
			all = append(slices.Clip(all), b.Addr)
		}
	}
	if len(all) > len(f.Draining) {
		slices.SortFunc(all, netip.AddrPort.Compare)
	}
	return all
}

// onNode says whether a backend is known to be on the node.
func onNode(b Backend, node string) bool { return b.Node == node && node != "" }

// A frontendKey names a frontend of a State.
type frontendKey struct {
	addr     netip.AddrPort
	protocol Protocol
}

func keyOf(f *Frontend, v *VIP) frontendKey {
	return frontendKey{netip.AddrPortFrom(v.Addr, f.Port), f.Protocol}
}

// whyRules is why the fast path does not take a frontend for what it is by itself.
func whyRules(f *Frontend, node string) string {
	switch {
	case f.Protocol == SCTP:
		return "SCTP"
	case f.Scheduler != Random:
		return "scheduler " + f.Scheduler.String()
	case f.Affinity != 0:
		return "affinity"
	case f.Sources != nil:
		return "not every source may use it"
	case f.External.Empty():
		return "no backend"
	case slices.ContainsFunc(f.External.Backends, func(b Backend) bool { return !onNode(b, node) }):
		return "backends on other nodes"
	}
	return ""
}
