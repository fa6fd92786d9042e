package proxytest

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A World makes random States that have much in common with the one before,
// as those of a cluster do.
type World struct{ *rand.Rand }

func NewWorld(seed uint64) World { return World{rand.New(rand.NewPCG(seed, 1))} }

var worldNodes = []string{"n1", "n2", ""}

// Next derives a State from s: most VIPs stay the same pointer.
func (w World) Next(s state.State) state.State {
	out := state.State{Node: "n1", Owned: s.Owned, Clients: s.Clients, SNAT: s.SNAT}
	if w.IntN(4) == 0 {
		out.Owned = w.prefixes("192.0.2.0/27", "192.0.2.32/27", "192.0.2.64/26", "2001:db8:1::/64", "255.255.255.0/24")
		out.Clients = state.LocalClients{
			CIDRs:           w.prefixes("10.244.1.0/24", "10.245.0.0/16", "fd00:1::/64"),
			InterfacePrefix: Pick(w, "", "cali", "veth"),
			Bridge:          Pick(w, "", "cni0", "cali0"),
		}
	}
	if w.IntN(4) == 0 {
		out.SNAT = w.snat()
	}
	var vips []*state.VIP
	for v := range s.VIPs.All() {
		switch w.IntN(6) {
		case 0: // goes
		case 1:
			vips = append(vips, w.vip(v.Addr))
		default:
			vips = append(vips, v)
		}
	}
	for range w.IntN(4) {
		a := Pick(w, netip.AddrFrom4([4]byte{192, 0, 2, byte(w.IntN(12))}),
			netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(w.IntN(8))}))
		if !slices.ContainsFunc(vips, func(v *state.VIP) bool { return v.Addr == a }) {
			vips = append(vips, w.vip(a))
		}
	}
	out.VIPs = VIPsOf(vips...)
	return out
}

func Pick[T any](w World, from ...T) T { return from[w.IntN(len(from))] }

// prefixes is some of those given, in order.
func (w World) prefixes(from ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range from {
		if w.IntN(2) == 0 {
			out = append(out, netip.MustParsePrefix(p))
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return out
}

func (w World) snat() state.SNAT {
	return state.SNAT{
		Ports:   Pick(w, state.PortFullyRandom, state.PortRandom, state.PortKept),
		Sources: Pick(w, nil, Addrs("10.0.2.2"), Addrs("fd00:2::2"), Addrs("10.0.2.9", "fd00:2::9")),
		Never:   w.prefixes("10.244.0.0/16", "10.245.0.0/16", "fd00:244::/32"),
		Mark: Pick(w, state.Mark{}, state.Mark{Value: 0x4000, Mask: 0x4000}, state.Mark{Mask: 0xff00},
			state.Mark{Value: 0xdeadbeef, Mask: 0xffffffff}),
	}
}

func (w World) vip(a netip.Addr) *state.VIP {
	v := &state.VIP{Addr: a}
	for _, p := range []state.Protocol{state.TCP, state.UDP, state.SCTP} {
		for _, port := range []uint16{53, 80, 443} {
			if w.IntN(3) == 0 {
				v.Frontends = append(v.Frontends, w.frontend(a, p, port))
			}
		}
	}
	return v
}

func (w World) frontend(vip netip.Addr, p state.Protocol, port uint16) state.Frontend {
	f := state.Frontend{Protocol: p, Port: port, External: w.target(vip), Internal: w.target(vip)}
	if w.IntN(4) == 0 {
		f.Internal = f.External
	}
	f.Scheduler = Pick(w, state.Random, state.RoundRobin, state.SourceHash)
	if w.IntN(60) == 0 { // its table is large
		f.Scheduler = state.Maglev
	}
	if n := len(f.External.Backends); n > 0 && w.IntN(60) == 0 {
		f.External.Backends[w.IntN(n)].Weight = uint16(w.IntN(4))
	}
	if w.IntN(4) == 0 {
		f.Affinity = Pick(w, time.Second, 3*time.Hour, 24*time.Hour)
	}
	if w.IntN(3) == 0 {
		f.Sources = Pick(w, []netip.Prefix{}, Prefixes("0.0.0.0/0"), Prefixes("::/0"),
			w.prefixes("10.0.0.0/24", "10.0.1.0/32", "192.168.0.0/16", "255.255.255.255/32", "fd00::/9", "fd80::1/128"),
			w.prefixes("10.0.0.0/8", "fd00::/8"))
	}
	for _, b := range w.target(vip).Backends {
		if !f.External.Has(b.Addr) && !f.Internal.Has(b.Addr) {
			f.Draining = append(f.Draining, b.Addr)
		}
	}
	return f
}

func (w World) target(vip netip.Addr) state.Target {
	t := state.Target{Miss: state.Miss(w.IntN(2)), Remote: state.Remote(w.IntN(2))}
	for i := range 9 {
		if w.IntN(4) != 0 {
			continue
		}
		a := netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})
		if vip.Is6() {
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})
		}
		t.Backends = append(t.Backends, state.Backend{Addr: netip.AddrPortFrom(a, 8080), Node: Pick(w, worldNodes...)})
	}
	return t
}
