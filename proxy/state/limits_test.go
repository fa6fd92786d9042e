package state_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// All addresses of a node together are limited, too: the largest of the grown ones are
// refused, until the rest fits.
func TestEntriesOfAllAddresses(t *testing.T) {
	vip := func(i byte, endpoints int) *state.VIP {
		v := proxytest.LargeVIP(1, endpoints, state.Random)
		v.Addr = netip.AddrFrom4([4]byte{192, 0, 2, i})
		return v
	}
	have, want := []*state.VIP{vip(1, 100), vip(2, 100), vip(3, 300)},
		[]*state.VIP{vip(1, 150), vip(2, 400), vip(4, 300), vip(5, 1)}
	changes := state.DiffVIPs(proxytest.VIPsOf(have...), proxytest.VIPsOf(want...))
	total := 0
	for _, v := range have {
		total += v.Entries(state.ModeNFTables)
	}
	for most, expected := range map[int]string{
		1 << 20: "[]", 8 * 840: "[192.0.2.2]", 8 * 500: "[192.0.2.2 192.0.2.4]",
		0: "[192.0.2.1 192.0.2.2 192.0.2.4 192.0.2.5]",
	} {
		l, refused := state.DefaultLimits(state.ModeNFTables), make(state.Refusals)
		l.Total = most
		l.RefuseTotal(total, changes, refused)
		got := slices.SortedFunc(maps.Keys(refused), netip.Addr.Compare)
		if fmt.Sprint(got) != expected {
			t.Errorf("of %d entries at most, %v are refused; want %s", most, got, expected)
		}
	}
}

// When no entry is left, addresses are refused, and what remains of them is not: else no Set would
// succeed, and no address of the node be announced.
func TestRefusedAddressesFit(t *testing.T) {
	for _, mode := range []state.Mode{state.ModeNFTables, state.ModeIPTables} {
		l := state.DefaultLimits(mode)
		var vips []*state.VIP
		for i := range byte(50) {
			v := proxytest.LargeVIP(1, 8, state.Random)
			v.Addr = netip.AddrFrom4([4]byte{192, 0, 2, i})
			vips = append(vips, v)
		}
		l.Total = 40 * vips[0].Entries(mode)
		refuse := func(have int, was, want []*state.VIP) state.Refusals {
			changes := state.DiffVIPs(proxytest.VIPsOf(was...), proxytest.VIPsOf(want...))
			refused := make(state.Refusals)
			l.RefuseTotal(have, changes, refused)
			return refused
		}
		refused := refuse(0, nil, vips)
		if len(refused) != 10 {
			t.Errorf("%s: %d addresses are refused, want 10", mode, len(refused))
		}
		var accepted, remaining []*state.VIP
		for _, v := range vips {
			if _, is := refused[v.Addr]; is {
				remaining = append(remaining, &state.VIP{Addr: v.Addr})
			} else {
				accepted, remaining = append(accepted, v), append(remaining, v)
			}
		}
		if again := refuse(l.Total, accepted, remaining); len(again) > 0 {
			t.Errorf("%s: %d addresses without frontends are refused", mode, len(again))
		}
	}
}

// Each limit has a message that names what exceeds it, by how much, and what to do.
func TestLimits(t *testing.T) {
	sources := func(n int) (all []netip.Prefix) {
		for i := range n {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
		}
		return all
	}
	for _, c := range []struct {
		name string
		mode state.Mode
		v    *state.VIP
		want string // of the error; empty: none
	}{
		{"an address without ports", state.ModeNFTables, &state.VIP{Addr: netip.MustParseAddr("192.0.2.1")}, ""},
		{"2,600 ports with maglev", state.ModeNFTables, proxytest.LargeVIP(2600, 2, state.Maglev), ""},
		{"10,000 ports", state.ModeNFTables, proxytest.LargeVIP(10000, 2, state.Random), ""},
		{"60,000 endpoints", state.ModeNFTables, proxytest.LargeVIP(1, 60000, state.Random), ""},
		{"all endpoints that there may be", state.ModeNFTables, proxytest.LargeVIP(1, 65535, state.Random), ""},
		{"one endpoint too many", state.ModeNFTables, proxytest.LargeVIP(1, 65536, state.Random),
			"endpoints of port tcp/1: 65536; in nftables mode an address can have 65535: use several Services, each " +
				"with a part of the endpoints"},
		{"more than a table has slots", state.ModeNFTables, proxytest.LargeVIP(1, 65522, state.Maglev),
			"endpoints of port tcp/1 with the scheduler maglev: 65522; in nftables mode an address can have 65521: " +
				"choose another scheduler, or use several Services"},
		{"too many ports", state.ModeNFTables, proxytest.LargeVIP(16385, 1, state.Random),
			"ports: 16385; in nftables mode an address can have 16384: give some of them to another Service with " +
				"an address of its own"},
		{"too many turns", state.ModeNFTables, proxytest.LargeVIP(4097, 2, state.RoundRobin),
			"ports with the scheduler round robin: 4097; in nftables mode an address can have 4096: choose another " +
				"scheduler, or use several Services"},
		{"too much together", state.ModeNFTables, proxytest.LargeVIP(8000, 2, state.Maglev),
			"ports, endpoints and source ranges together, as entries in the kernel: "},
		{"too many sources", state.ModeNFTables,
			&state.VIP{Addr: netip.MustParseAddr("192.0.2.1"),
				Frontends: []state.Frontend{{Protocol: state.UDP, Port: 53, Sources: sources(16385)}}},
			"source ranges of port udp/53: 16385; in nftables mode an address can have 16384: join ranges, or leave " +
				"the list to a firewall"},
		{"many endpoints for iptables", state.ModeIPTables, proxytest.LargeVIP(1, 4097, state.Random),
			"endpoints of port tcp/1: 4097; in iptables mode an address can have 4096: use several Services, each " +
				"with a part of the endpoints"},
		// both kinds of clients, which differ
		{"many programs", state.ModeIPTables, proxytest.LargeVIP(5, 50, state.Maglev),
			"rules for session affinity and the schedulers maglev and source hash: 490; in iptables mode an address " +
				"can have 450: choose the scheduler random without affinity for some ports, or use nftables mode"},
		{"many programs that are none in nftables", state.ModeNFTables, proxytest.LargeVIP(5, 50, state.Maglev), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := state.DefaultLimits(c.mode).Check(c.v)
			got := fmt.Sprint(err)
			if c.want == "" && err != nil || c.want != "" && !strings.Contains(got, c.want) {
				t.Errorf("%s; want %q", got, c.want)
			}
			if strings.Count(got, "\n") >= 4 {
				t.Errorf("%d lines", strings.Count(got, "\n")+1)
			}
		})
	}
}

// A refused address is as it was before, or is not forwarded. One that the State does not have remains away.
func TestWithoutRefused(t *testing.T) {
	vip := func(i int) *state.VIP { return proxytest.BenchVIP(i, 0) }
	kept, old, gone := vip(1), vip(2), vip(4)
	have := state.State{VIPs: proxytest.VIPsOf(kept, old, gone)}
	want := state.State{VIPs: proxytest.VIPsOf(kept, vip(2), vip(3))}
	refused := state.Refusals{old.Addr: {}, vip(3).Addr: {}, gone.Addr: {}}
	if got := want.Without(have, refused).VIPs.Slice(); !slices.Equal(got, []*state.VIP{kept, old}) {
		t.Errorf("%d addresses remain: %v", len(got), got)
	}
	if got := want.VIPs.Slice(); len(got) != 3 || got[1] == old {
		t.Errorf("the State has changed: %v", got)
	}
}

// Rules with programs are limited for all addresses of a node together. Addresses that have
// theirs keep them.
func TestProgramsOfAllAddresses(t *testing.T) {
	vip := func(i byte, ports int) *state.VIP {
		v := proxytest.LargeVIP(ports, 50, state.Maglev)
		v.Addr = netip.AddrFrom4([4]byte{192, 0, 2, i})
		return v
	}
	have := state.State{VIPs: proxytest.VIPsOf(vip(5, 4), vip(6, 4))} // 392 rules each
	want := state.State{VIPs: proxytest.VIPsOf(vip(1, 1), vip(2, 4), have.VIPs.At(0), have.VIPs.At(1), vip(7, 1))}
	changes := state.DiffVIPs(have.VIPs, want.VIPs)
	l, refused := state.DefaultLimits(state.ModeIPTables), make(state.Refusals)
	l.RefusePrograms(have.VIPs, changes, refused)
	var got []string
	for a := range refused {
		got = append(got, a.String())
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"192.0.2.2", "192.0.2.7"}) {
		t.Errorf("refused %v", got)
	}
	state.DefaultLimits(state.ModeNFTables).RefusePrograms(have.VIPs, changes, refused)
	if len(refused) != 2 {
		t.Errorf("nftables has no such rules, and refuses %d", len(refused))
	}
}

// What an address needs is never counted too low: for States of all kinds.
func TestEntriesCountWhatIsRendered(t *testing.T) {
	w := proxytest.NewWorld(11)
	s := state.State{Node: "n1"}
	shared := len(state.RenderState(s))
	for range 300 {
		s = w.Next(s)
		for v := range s.VIPs.All() {
			one := state.State{Node: s.Node, VIPs: proxytest.VIPsOf(v)}
			if n := len(state.RenderState(one)) - shared; n > v.Entries(state.ModeNFTables) {
				t.Fatalf("%d entries for %d elements of\n%s", v.Entries(state.ModeNFTables), n, one)
			}
		}
	}
}
