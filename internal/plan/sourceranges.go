package plan

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// allowedSources returns the source ranges of addr's family, nil for all clients. If all ranges
// are of the other family, open is false: no client may use the Service. kube-proxy admits all
// clients then.
func allowedSources(s *cluster.Spec, addr netip.Addr) (networks []netip.Prefix, open bool) {
	if !s.Restricted {
		return nil, true
	}
	// Sources are sorted, IPv4 first: each family is one part of the slice, which is not copied.
	six := slices.IndexFunc(s.Sources, func(n netip.Prefix) bool { return !n.Addr().Is4() })
	if six < 0 {
		six = len(s.Sources)
	}
	if networks = s.Sources[:six:six]; addr.Is6() {
		networks = s.Sources[six:]
	}
	// 0.0.0.0/0 or ::/0 admits all clients, whatever else is in the list.
	if slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Bits() == 0 }) {
		return nil, true
	}
	return networks, len(networks) > 0
}

// closeFrontend makes f drop the packets of all clients, like those outside of source ranges.
func closeFrontend(f proxy.Frontend) proxy.Frontend {
	drop := proxy.Target{Miss: proxy.Drop}
	f.External, f.Internal, f.Draining, f.Sources = drop, drop, nil, []netip.Prefix{}
	return f
}

// allClients is the prefix of all addresses of addr's family, as an example for source ranges.
func allClients(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
