package proxy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// A world makes random States that have much in common with the one before,
// as those of a cluster do.
type world struct{ *rand.Rand }

func newWorld(seed uint64) world { return world{rand.New(rand.NewPCG(seed, 1))} }

var worldNodes = []string{"n1", "n2", ""}

// next derives a State from s: most VIPs stay the same pointer.
func (w world) next(s State) State {
	out := State{Node: "n1", Owned: s.Owned, Clients: s.Clients, SNAT: s.SNAT}
	if w.IntN(4) == 0 {
		out.Owned = w.prefixes("192.0.2.0/27", "192.0.2.32/27", "192.0.2.64/26", "2001:db8:1::/64", "255.255.255.0/24")
		out.Clients = LocalClients{
			CIDRs:           w.prefixes("10.244.1.0/24", "10.245.0.0/16", "fd00:1::/64"),
			InterfacePrefix: pick(w, "", "cali", "veth"),
			Bridge:          pick(w, "", "cni0", "cali0"),
		}
	}
	if w.IntN(4) == 0 {
		out.SNAT = w.snat()
	}
	for _, v := range s.VIPs {
		switch w.IntN(6) {
		case 0: // goes
		case 1:
			out.VIPs = append(out.VIPs, w.vip(v.Addr))
		default:
			out.VIPs = append(out.VIPs, v)
		}
	}
	for range w.IntN(4) {
		a := pick(w, netip.AddrFrom4([4]byte{192, 0, 2, byte(w.IntN(12))}),
			netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(w.IntN(8))}))
		i, found := slices.BinarySearchFunc(out.VIPs, a, func(v *VIP, a netip.Addr) int { return v.Addr.Compare(a) })
		if !found {
			out.VIPs = slices.Insert(out.VIPs, i, w.vip(a))
		}
	}
	return out
}

func pick[T any](w world, from ...T) T { return from[w.IntN(len(from))] }

// prefixes is some of those given, in order.
func (w world) prefixes(from ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range from {
		if w.IntN(2) == 0 {
			out = append(out, netip.MustParsePrefix(p))
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return out
}

func (w world) snat() SNAT {
	return SNAT{
		Ports:   pick(w, PortFullyRandom, PortRandom, PortKept),
		Sources: pick(w, nil, addrs("10.0.2.2"), addrs("fd00:2::2"), addrs("10.0.2.9", "fd00:2::9")),
		Never:   w.prefixes("10.244.0.0/16", "10.245.0.0/16", "fd00:244::/32"),
		Mark:    pick(w, Mark{}, Mark{Value: 0x4000, Mask: 0x4000}, Mark{Mask: 0xff00}, Mark{Value: 0xdeadbeef, Mask: 0xffffffff}),
	}
}

func (w world) vip(a netip.Addr) *VIP {
	v := &VIP{Addr: a}
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		for _, port := range []uint16{53, 80, 443} {
			if w.IntN(3) == 0 {
				v.Frontends = append(v.Frontends, w.frontend(a, p, port))
			}
		}
	}
	return v
}

func (w world) frontend(vip netip.Addr, p Protocol, port uint16) Frontend {
	f := Frontend{Protocol: p, Port: port, External: w.target(vip), Internal: w.target(vip)}
	if w.IntN(4) == 0 {
		f.Internal = f.External
	}
	f.Scheduler = pick(w, Random, RoundRobin, SourceHash)
	if w.IntN(60) == 0 { // its table is large
		f.Scheduler = Maglev
	}
	if n := len(f.External.Backends); n > 0 && w.IntN(60) == 0 {
		f.External.Backends[w.IntN(n)].Weight = uint16(w.IntN(4))
	}
	if w.IntN(4) == 0 {
		f.Affinity = pick(w, time.Second, 3*time.Hour, 24*time.Hour)
	}
	if w.IntN(3) == 0 {
		f.Sources = pick(w, []netip.Prefix{}, prefixes("0.0.0.0/0"), prefixes("::/0"),
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

func (w world) target(vip netip.Addr) Target {
	t := Target{Miss: Miss(w.IntN(2)), Remote: Remote(w.IntN(2))}
	for i := range 9 {
		if w.IntN(4) != 0 {
			continue
		}
		a := netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})
		if vip.Is6() {
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})
		}
		t.Backends = append(t.Backends, Backend{Addr: netip.AddrPortFrom(a, 8080), Node: pick(w, worldNodes...)})
	}
	return t
}
