package proxy

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// xtText is what a State is in iptables, as iptables-restore reads it, and in sets.
func xtText(s State) string {
	var b strings.Builder
	for f := range state.SetID(2) {
		k := iptables.Kernel{Others: make(map[string]iptables.ChainSet)}
		p := iptables.PlanTables(nil, iptables.Chains(s, f)).Entries(nil, iptables.AllEntries(s, f)).Remember(nil, s.VIPs, f)
		p.Jumps = k.JumpLines(f)
		script, _ := p.Script()
		fmt.Fprintf(&b, "# IPv%c\n%s", "46"[f], script)
		for _, e := range p.Add {
			fmt.Fprintln(&b, e)
		}
		var names []string
		for name, set := range p.Create {
			names = append(names, fmt.Sprintf("%s %s", name, set.Timeout))
		}
		slices.Sort(names)
		for _, name := range names {
			fmt.Fprintln(&b, name)
		}
	}
	return b.String()
}

// xtGoldenStates are States whose chains are worth reading.
func xtGoldenStates() map[string]State {
	all := goldenStates()
	states := map[string]State{"empty": all["empty"], "cluster": all["cluster"], "none": all["none"], "sources": all["sources"], "snat": all["snat"], "ipv6": all["ipv6"]}
	s := all["cluster"]
	fe := s.VIPs[0].Frontends[0]
	one := func(change func(*Frontend)) State {
		f := fe
		change(&f)
		return State{Node: s.Node, VIPs: []*VIP{{Addr: s.VIPs[0].Addr, Frontends: []Frontend{f}}}}
	}
	states["affinity"] = one(func(f *Frontend) { f.Affinity = 3 * time.Hour })
	states["roundrobin"] = one(func(f *Frontend) { f.Scheduler = RoundRobin })
	states["sourcehash"] = one(func(f *Frontend) { f.Scheduler = SourceHash })
	states["maglev"] = one(func(f *Frontend) { f.Scheduler = Maglev })
	states["tree"] = treeState("192.0.2.1", "192.0.2.2", "192.0.2.17", "198.51.100.1", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")
	return states
}

func treeState(addrs ...string) State {
	s := State{Node: "n1", Owned: prefixes("192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32")}
	for _, a := range addrs {
		s.VIPs = append(s.VIPs, &VIP{Addr: netip.MustParseAddr(a), Frontends: []Frontend{{Protocol: TCP, Port: 80}}})
	}
	return s
}

// The golden files hold a State in words and what iptables gets for it.
func TestChainsGolden(t *testing.T) {
	for name, s := range xtGoldenStates() {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		golden(t, filepath.Join("testdata", "iptables", name+".golden"), s.String()+"--\n"+xtText(s))
	}
}

// A tree leads each address to its own leaf and no other there, past a number of
// rules that hardly grows.
func TestTree(t *testing.T) {
	w := newWorld(17)
	var dense, sparse []*VIP
	for i := range 10_000 {
		dense = append(dense, &VIP{Addr: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})})
		a := [16]byte{0x20, 1, 0xd, 0xb8}
		for j := 8; j < 16; j++ {
			a[j] = byte(w.IntN(256))
		}
		sparse = append(sparse, &VIP{Addr: netip.AddrFrom16(a)})
	}
	slices.SortFunc(sparse, func(a, b *VIP) int { return a.Addr.Compare(b.Addr) })
	for name, vips := range map[string][]*VIP{"dense": dense, "sparse": sparse, "one": dense[:1], "none": nil} {
		chains := make(iptables.ChainSet)
		tr := iptables.Tree{Root: "root", Name: netip.Prefix.String, Leaf: func(v *VIP) []string {
			return []string{"-d " + netip.PrefixFrom(v.Addr, v.Addr.BitLen()).String() + " -g " + v.Addr.String()}
		}}
		tr.Add(chains, vips)
		for _, v := range vips {
			chain, met := "root", 0
			for chain != v.Addr.String() {
				i := slices.IndexFunc(chains[chain], func(rule string) bool { return iptables.ParseRule(rule).Dest.Contains(v.Addr) })
				if i < 0 {
					t.Fatalf("%s: %s ends in %s", name, v.Addr, chain)
				}
				met += i + 1
				chain = iptables.ParseRule(chains[chain][i]).Target
			}
			if met > 80 {
				t.Fatalf("%s: %s meets %d rules", name, v.Addr, met)
			}
		}
	}
}

// Names are no longer than the kernel takes, whatever the address.
func TestChainNames(t *testing.T) {
	for _, a := range []string{"255.255.255.255", "2001:db8::1", "2001:db8:1111:2222:3333:4444:5555:6666"} {
		v := &VIP{Addr: netip.MustParseAddr(a)}
		for _, p := range []Protocol{TCP, UDP, SCTP} {
			fe := &Frontend{Protocol: p, Port: 65535}
			for _, name := range []string{
				iptables.FrontendName(state.External, v, fe), iptables.ChainName(state.Internal, "", a), iptables.ChainName(state.External, "", netip.PrefixFrom(v.Addr, 28).String()),
				iptables.BackendName(state.Internal, v, fe, Backend{}),
			} {
				if len(name) > iptables.MaxChainName || !iptables.Ours(name) {
					t.Errorf("%s has %d bytes, or is not ours", name, len(name))
				}
			}
			if name := iptables.AffinityName(v, fe, Backend{}); len(name) > 31 {
				t.Errorf("%s has %d bytes", name, len(name))
			}
		}
	}
}

// From any State to any other by the difference alone is the same as from scratch: for the
// chains and for the sets.
func TestPlanStepIsTheDifference(t *testing.T) {
	t.Parallel()
	w := newWorld(23)
	have := State{Node: "n1"}
	for range 300 {
		want := w.next(have)
		vips, err := state.DiffVIPs(have.VIPs, want.VIPs)
		if err != nil {
			t.Fatal(err)
		}
		for f := range state.SetID(2) {
			p := iptables.PlanStep(renderer.Step{Have: have, Want: want, VIPs: vips}, f)
			got, entries := iptables.Chains(have, f), iptables.AllEntries(have, f)
			for table, chains := range p.Write {
				for name, rules := range chains {
					got[table][name] = rules
				}
			}
			for table, names := range p.Drop {
				for _, name := range names {
					delete(got[table], name)
				}
			}
			for _, e := range p.Del {
				delete(entries, e)
			}
			entries.Add(p.Add...)
			if diff := cmp.Diff(iptables.Chains(want, f), got); diff != "" {
				t.Fatalf("chains (-want +got)\n%s", diff)
			}
			if n := len(entries.Without(iptables.AllEntries(want, f))) + len(iptables.AllEntries(want, f).Without(entries)); n > 0 {
				t.Fatalf("%d entries differ", n)
			}
		}
		have = want
	}
}

// What chains and sets hold is what a process that finds them takes for held before.
func TestHeldElements(t *testing.T) {
	w := newWorld(29)
	s := State{Node: "n1"}
	for range 50 {
		s = w.next(s)
		for f := range state.SetID(2) {
			held := iptables.HeldElements(iptables.Chains(s, f)["nat"], iptables.AllEntries(s, f), f)
			p := conntrack.PlanPurge(state.DiffElements(held, state.RenderState(State{Node: s.Node, VIPs: iptables.OfFamily(s.VIPs, f)})))
			for vip, v := range p {
				if v.Born || len(v.Ports) > 0 || len(v.Gone) > 0 {
					t.Fatalf("%s: born %v, new ports %v, gone backends %v; want nothing to be news\n%s", vip, v.Born, v.Ports, v.Gone, s)
				}
			}
		}
	}
}

// What iptables cannot do is said.
func TestUnsupported(t *testing.T) {
	s := State{VIPs: []*VIP{{Addr: at("vip", 0), Frontends: []Frontend{
		{Protocol: TCP, Port: 80, Name: "a/b", Scheduler: Maglev, External: crowd(0, at("pod1", 0), 50)},
		{Protocol: TCP, Port: 82, Name: "a/c", Scheduler: Maglev, External: crowd(0, at("pod1", 0), 49), Internal: crowd(0, at("pod1", 0), 49)},
		{Protocol: TCP, Port: 81, Scheduler: SourceHash, Internal: crowd(0, at("pod1", 0), state.MaxHashed)},
		{Protocol: TCP, Port: 83, Scheduler: RoundRobin},
	}}, {Addr: at("vip", 1), Frontends: []Frontend{
		{Protocol: UDP, Port: 53, Scheduler: SourceHash, Internal: Target{Backends: backends(1, "pod1", "pod2")}},
	}}}}
	want := []string{"192.0.2.1 tcp/80 a/b: with iptables Maglev has room for 50 backends; these 51 are chosen at random"}
	if diff := cmp.Diff(want, iptables.Unsupported(s)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// crowd is a target with so many backends besides that of an address, of which some come
// before it.
func crowd(before int, a netip.Addr, others int) (t Target) {
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
		t.Backends = append(t.Backends, Backend{Addr: netip.AddrPortFrom(one, 8080), Node: "n1"})
	}
	return t
}
