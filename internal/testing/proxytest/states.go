package proxytest

import (
	"net/netip"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// BenchState is n VIPs with one TCP port and two backends, for both kinds of
// clients.
func BenchState(n int) state.State {
	var vips []*state.VIP
	for i := range n {
		vips = append(vips, BenchVIP(i, 0))
	}
	return state.State{Node: "n1", VIPs: VIPsOf(vips...)}
}

// WithVIPs returns a version of a set with more VIPs, which replace those of the same addresses.
func WithVIPs(vips state.VIPs, more ...*state.VIP) state.VIPs {
	return sortedset.With(vips, VIPsOf(more...).Slice(), state.CompareVIPs)
}

func BenchVIP(i, version int) *state.VIP {
	b := func(net byte) state.Backend {
		return state.Backend{
			Node: "n1", Addr: netip.AddrPortFrom(
				netip.AddrFrom4([4]byte{10, net + byte(version%2), byte(i >> 8), byte(i)}), 8080),
		}
	}
	to := state.Target{Backends: []state.Backend{b(100), b(200)}}
	return &state.VIP{
		Addr:      netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}),
		Frontends: []state.Frontend{{Protocol: state.TCP, Port: 80, External: to, Internal: to}},
	}
}

// Crowd is a target with so many backends besides that of an address, of which some come
// before it.
func Crowd(before int, a netip.Addr, others int) (t state.Target) {
	for i := range others + 1 {
		one := a
		if i != before {
			b := a.AsSlice()
			b[0]-- // comes before
			if i > before {
				b[0] += 2
			}
			b[len(b)-1] = byte(i)
			one, _ = netip.AddrFromSlice(b)
		}
		t.Backends = append(t.Backends, state.Backend{Addr: netip.AddrPortFrom(one, 8080), Node: "n1"})
	}
	return t
}

// largeBackends are n endpoints, every third on another node.
func largeBackends(n int) []state.Backend {
	all := make([]state.Backend, n)
	for i := range all {
		all[i] = state.Backend{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1 + byte(i>>16), byte(i >> 8), byte(i)}), 8080),
			Node: "n1",
		}
		if i%3 == 0 {
			all[i].Node = "n2"
		}
	}
	return all
}

// LargeVIP has so many ports with so many backends each.
func LargeVIP(ports, backends int, s state.Scheduler) *state.VIP {
	v := &state.VIP{Addr: netip.MustParseAddr("192.0.2.1")}
	to := state.Target{Backends: largeBackends(backends)}
	for i := range ports {
		v.Frontends = append(v.Frontends, state.Frontend{
			Protocol: state.TCP, Port: uint16(1 + i), External: to,
			Internal: state.Target{Backends: to.Backends, Remote: state.Preserve}, Scheduler: s,
		})
	}
	return v
}

// Ports of the VIP in packet tests, by what is behind them.
const (
	PortLocal    = 80 // externalTrafficPolicy Local, endpoint here
	PortRemote   = 81 // Cluster, endpoint on another node
	PortAway     = 82 // Local, endpoint on another node
	PortNone     = 83 // no endpoint anywhere
	PortCluster  = 84 // Cluster, endpoint here
	PortHost     = 86 // endpoint is a process of the node
	PortMasq     = 87 // internal clients masqueraded too
	PortUnserved = 9
)

// PacketState is one VIP in each family with all of these ports.
func PacketState(clients state.LocalClients) state.State {
	s := state.State{Node: "n1", Clients: clients, Owned: Prefixes("192.0.2.0/24", "2001:db8::/64")}
	for family := range state.SetID(2) {
		v := &state.VIP{Addr: At("vip", family)}
		for _, p := range []state.Protocol{state.TCP, state.UDP, state.SCTP} {
			v.Frontends = append(v.Frontends, PacketFrontends(p, family)...)
		}
		s.VIPs = WithVIPs(s.VIPs, v)
	}
	return s
}

func PacketFrontends(p state.Protocol, family state.SetID) []state.Frontend {
	to := func(miss state.Miss, remote state.Remote, names ...string) state.Target {
		return state.Target{Backends: Backends(family, names...), Miss: miss, Remote: remote}
	}
	return []state.Frontend{
		{Protocol: p, Port: PortLocal, External: to(state.Drop, state.Preserve, "pod1"),
			Internal: to(state.Reject, state.Preserve, "pod1")},
		{Protocol: p, Port: PortRemote, External: to(state.Reject, state.Masquerade, "remote"),
			Internal: to(state.Reject, state.Preserve, "remote")},
		{Protocol: p, Port: PortAway, External: to(state.Drop, state.Preserve),
			Internal: to(state.Reject, state.Preserve, "remote")},
		{Protocol: p, Port: PortNone, External: to(state.Reject, state.Preserve),
			Internal: to(state.Reject, state.Preserve)},
		{Protocol: p, Port: PortCluster, External: to(state.Reject, state.Masquerade, "pod1"),
			Internal: to(state.Reject, state.Preserve, "pod1")},
		{Protocol: p, Port: PortHost, External: to(state.Reject, state.Masquerade, "node"),
			Internal: to(state.Reject, state.Preserve, "node")},
		{Protocol: p, Port: PortMasq, External: to(state.Reject, state.Masquerade, "remote"),
			Internal: to(state.Reject, state.Masquerade, "remote")},
	}
}

func Prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func Addrs(all ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func ServesState(s state.State, a netip.Addr) bool {
	return s.VIP(a) != nil
}

// UDPState is a VIP in each family whose port 53 is at one backend.
func UDPState(backend string) state.State {
	s := state.State{Node: "n1"}
	for family := range state.SetID(2) {
		to := state.Target{Backends: Backends(family, backend)}
		s.VIPs = WithVIPs(s.VIPs, &state.VIP{Addr: At("vip", family), Frontends: []state.Frontend{
			{Protocol: state.UDP, Port: 53, External: to, Internal: to},
		}})
	}
	return s
}
