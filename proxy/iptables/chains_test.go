package iptables

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// xtGoldenStates are States whose chains are worth reading.
func xtGoldenStates() map[string]state.State {
	all := proxytest.GoldenStates()
	states := map[string]state.State{
		"empty": all["empty"], "cluster": all["cluster"], "none": all["none"], "sources": all["sources"],
		"snat": all["snat"], "ipv6": all["ipv6"],
	}
	s := all["cluster"]
	fe := s.VIPs.At(0).Frontends[0]
	one := func(change func(*state.Frontend)) state.State {
		f := fe
		change(&f)
		return state.State{
			Node: s.Node, VIPs: proxytest.VIPsOf(&state.VIP{Addr: s.VIPs.At(0).Addr, Frontends: []state.Frontend{f}}),
		}
	}
	states["affinity"] = one(func(f *state.Frontend) { f.Affinity = 3 * time.Hour })
	states["roundrobin"] = one(func(f *state.Frontend) { f.Scheduler = state.RoundRobin })
	states["sourcehash"] = one(func(f *state.Frontend) { f.Scheduler = state.SourceHash })
	states["maglev"] = one(func(f *state.Frontend) { f.Scheduler = state.Maglev })
	states["tree"] = treeState("192.0.2.1", "192.0.2.2", "192.0.2.17", "198.51.100.1", "2001:db8::1", "2001:db8::2",
		"2001:db8:0:1::1")
	return states
}

func treeState(addrs ...string) state.State {
	s := state.State{Node: "n1", Owned: proxytest.Prefixes("192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32")}
	for _, a := range addrs {
		s.VIPs = proxytest.WithVIPs(s.VIPs, &state.VIP{
			Addr: netip.MustParseAddr(a), Frontends: []state.Frontend{{Protocol: state.TCP, Port: 80}},
		})
	}
	return s
}

// The golden files hold a State in words and what iptables gets for it.
func TestChainsGolden(t *testing.T) {
	for name, s := range xtGoldenStates() {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		proxytest.Golden(t, filepath.Join("testdata", name+".golden"), s.String()+"--\n"+Text(s))
	}
}

// A tree leads each address to its own leaf and no other there, past a number of
// rules that hardly grows.
func TestTree(t *testing.T) {
	w := proxytest.NewWorld(17)
	var dense, sparse []*state.VIP
	for i := range 10_000 {
		dense = append(dense, &state.VIP{Addr: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})})
		a := [16]byte{0x20, 1, 0xd, 0xb8}
		for j := 8; j < 16; j++ {
			a[j] = byte(w.IntN(256))
		}
		sparse = append(sparse, &state.VIP{Addr: netip.AddrFrom16(a)})
	}
	slices.SortFunc(sparse, func(a, b *state.VIP) int { return a.Addr.Compare(b.Addr) })
	for name, vips := range map[string][]*state.VIP{"dense": dense, "sparse": sparse, "one": dense[:1], "none": nil} {
		chains := make(chainSet)
		tr := tree{root: "root", name: netip.Prefix.String, leaf: func(v *state.VIP) []string {
			return []string{"-d " + netip.PrefixFrom(v.Addr, v.Addr.BitLen()).String() + " -g " + v.Addr.String()}
		}}
		tr.add(chains, vips)
		for _, v := range vips {
			chain, met := "root", 0
			for chain != v.Addr.String() {
				i := slices.IndexFunc(chains[chain],
					func(rule string) bool { return parseRule(rule).dest.Contains(v.Addr) })
				if i < 0 {
					t.Fatalf("%s: %s ends in %s", name, v.Addr, chain)
				}
				met += i + 1
				chain = parseRule(chains[chain][i]).target
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
		v := &state.VIP{Addr: netip.MustParseAddr(a)}
		for _, p := range []state.Protocol{state.TCP, state.UDP, state.SCTP} {
			fe := &state.Frontend{Protocol: p, Port: 65535}
			for _, name := range []string{
				frontendName(state.External, v, fe), chainName(state.Internal, "", a),
				chainName(state.External, "", netip.PrefixFrom(v.Addr, 28).String()),
				backendName(state.Internal, v, fe, state.Backend{}),
			} {
				if len(name) > maxChainName || !Ours(name) {
					t.Errorf("%s has %d bytes, or is not ours", name, len(name))
				}
			}
			if name := AffinityName(v, fe, state.Backend{}); len(name) > 31 {
				t.Errorf("%s has %d bytes", name, len(name))
			}
		}
	}
}

// From any State to any other by the difference alone is the same as from scratch: for the
// chains and for the sets.
func TestPlanStepIsTheDifference(t *testing.T) {
	t.Parallel()
	w := proxytest.NewWorld(23)
	have := state.State{Node: "n1"}
	replies := state.RepliesOf(have.VIPs)
	for range 300 {
		want := w.Next(have)
		vips := state.DiffVIPs(have.VIPs, want.VIPs)
		elements := state.DiffStates(have, want, vips, replies)
		for _, c := range vips {
			replies.Record(c)
		}
		for f := range state.SetID(2) {
			p := planStep(renderer.Step{Have: have, Want: want, VIPs: vips, Elements: elements}, f)
			got, entries := chainsOf(have, f), allEntries(have, f)
			for table, chains := range p.write {
				for name, rules := range chains {
					got[table][name] = rules
				}
			}
			for table, names := range p.drop {
				for _, name := range names {
					delete(got[table], name)
				}
			}
			for _, e := range p.del {
				delete(entries, e)
			}
			entries.add(p.add...)
			if diff := cmp.Diff(chainsOf(want, f), got); diff != "" {
				t.Fatalf("chains (-want +got)\n%s", diff)
			}
			if n := len(entries.without(allEntries(want, f))) + len(allEntries(want, f).without(entries)); n > 0 {
				t.Fatalf("%d entries differ", n)
			}
		}
		have = want
	}
}

// What chains and sets hold is what a process that finds them takes for held before: no VIP and
// no port is news, and no backend is held for another one.
func TestHeldElements(t *testing.T) {
	w := proxytest.NewWorld(29)
	s := state.State{Node: "n1"}
	for range 50 {
		s = w.Next(s)
		for f := range state.SetID(2) {
			held := facts(readElements(chainsOf(s, f)["nat"], allEntries(s, f), f))
			wanted := facts(state.RenderState(state.State{
				Node: s.Node, VIPs: proxytest.VIPsOf(ofFamily(s.VIPs, f)...),
			}))
			for fact := range wanted {
				if !held[fact] && !strings.Contains(fact, "backend") {
					t.Fatalf("not held: %s of\n%s", fact, s)
				}
			}
			for fact := range held {
				if !wanted[fact] {
					t.Fatalf("held: %s, which is not of\n%s", fact, s)
				}
			}
		}
	}
}

// facts lists the VIPs, ports and backends of elements, whatever the slot.
func facts(all []state.Element) map[string]bool {
	out := make(map[string]bool)
	frontend := func(e state.Element) string {
		vip, proto, port := state.FrontendOf(e.Set, e.Key)
		return fmt.Sprintf("%s %s %s/%d", state.Specs[e.Set].Name, vip, proto, port)
	}
	for _, e := range all {
		switch state.Base(e.Set) {
		case state.SetVIPs:
			out[e.String()] = true
		case state.SetExtSvc, state.SetIntSvc:
			out[frontend(e)] = true
		case state.SetExtEps, state.SetIntEps:
			out[frontend(e)+" backend "+state.BackendOf(e.Data).String()] = true
		default: // says nothing of these
		}
	}
	return out
}

// What iptables cannot do is said.
func TestUnsupported(t *testing.T) {
	s := state.State{VIPs: proxytest.VIPsOf(&state.VIP{Addr: proxytest.At("vip", 0), Frontends: []state.Frontend{
		{Protocol: state.TCP, Port: 80, Name: "a/b", Scheduler: state.Maglev,
			External: proxytest.Crowd(0, proxytest.At("pod1", 0), 50)},
		{Protocol: state.TCP, Port: 82, Name: "a/c", Scheduler: state.Maglev,
			External: proxytest.Crowd(0, proxytest.At("pod1", 0), 49),
			Internal: proxytest.Crowd(0, proxytest.At("pod1", 0), 49)},
		{Protocol: state.TCP, Port: 81, Scheduler: state.SourceHash,
			Internal: proxytest.Crowd(0, proxytest.At("pod1", 0), state.MaxHashed)},
		{Protocol: state.TCP, Port: 83, Scheduler: state.RoundRobin},
	}}, &state.VIP{Addr: proxytest.At("vip", 1), Frontends: []state.Frontend{
		{Protocol: state.UDP, Port: 53, Scheduler: state.SourceHash,
			Internal: state.Target{Backends: proxytest.Backends(1, "pod1", "pod2")}},
	}})}
	want := []string{"192.0.2.1 tcp/80 a/b: with iptables Maglev has room for 50 backends; these 51 " +
		"are chosen at random"}
	if diff := cmp.Diff(want, unsupportedBy(s)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
