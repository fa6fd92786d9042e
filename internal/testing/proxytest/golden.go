package proxytest

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// VIPsOf returns the set of a list. Of several VIPs with the same address, the first one counts.
func VIPsOf(list ...*state.VIP) state.VIPs { return sortedset.SetOf(list, state.CompareVIPs) }

// ElementsText writes one element a line.
func ElementsText(all []state.Element) string {
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// GoldenStates are states that show what is rendered from what.
func GoldenStates() map[string]state.State {
	local := state.Backend{Addr: netip.MustParseAddrPort("10.244.1.11:8080"), Node: "n1"}
	local2 := state.Backend{Addr: netip.MustParseAddrPort("10.244.1.12:8080"), Node: "n1"}
	remote := state.Backend{Addr: netip.MustParseAddrPort("10.244.2.11:8080"), Node: "n2"}
	unknown := state.Backend{Addr: netip.MustParseAddrPort("10.244.9.9:8080")}
	local6 := state.Backend{Addr: netip.MustParseAddrPort("[fd00:244:1::11]:53"), Node: "n1"}
	remote6 := state.Backend{Addr: netip.MustParseAddrPort("[fd00:244:2::11]:53"), Node: "n2"}
	to := func(remote state.Remote, b ...state.Backend) state.Target {
		return state.Target{Backends: b, Remote: remote}
	}
	one := func(addr string, f ...state.Frontend) state.State {
		return state.State{Node: "n1", VIPs: VIPsOf(&state.VIP{Addr: netip.MustParseAddr(addr), Frontends: f})}
	}
	return map[string]state.State{
		"empty": {Node: "n1"},
		"shared": {
			Node:  "n1",
			Owned: Prefixes("192.0.2.0/25", "192.0.2.128/26", "255.255.255.0/24", "2001:db8::/64"),
			Clients: state.LocalClients{
				CIDRs: Prefixes("10.244.1.0/24", "fd00:244:1::/64"), InterfacePrefix: "cali", Bridge: "cni0",
			},
		},
		"sources": one("192.0.2.1",
			state.Frontend{Protocol: state.TCP, Port: 80, External: to(state.Masquerade, local),
				Internal: to(state.Preserve, local),
				Sources:  Prefixes("10.0.0.0/8", "203.0.113.7/32", "2001:db8:9::/48")},
			state.Frontend{
				Protocol: state.TCP, Port: 443, External: to(state.Masquerade, local),
				Internal: to(state.Preserve, local), Sources: Prefixes("0.0.0.0/0"),
			},
			state.Frontend{Protocol: state.UDP, Port: 53, Sources: []netip.Prefix{}}),
		"sources6": one("2001:db8::1", state.Frontend{Protocol: state.TCP, Port: 80,
			External: to(state.Masquerade, local6), Internal: to(state.Preserve, local6),
			Sources: Prefixes("10.0.0.0/8", "2001:db8:9::/48")}),
		"draining": one("192.0.2.1", state.Frontend{Protocol: state.TCP, Port: 80,
			External: state.Target{Miss: state.Drop}, Internal: to(state.Preserve, remote),
			Draining: []netip.AddrPort{local.Addr, local2.Addr}}),
		"snat": {Node: "n1", SNAT: state.SNAT{
			Ports: state.PortRandom, Sources: Addrs("10.0.2.2"), Never: Prefixes("10.244.0.0/16", "fd00:244::/32"),
			Mark: state.Mark{Value: 0x4000, Mask: 0x4000},
		}},
		"noports": one("192.0.2.1"),
		"local": one("192.0.2.1", state.Frontend{Protocol: state.TCP, Port: 80, Name: "shop/web:http",
			External: state.Target{Backends: []state.Backend{local}, Miss: state.Drop, Remote: state.Preserve},
			Internal: to(state.Preserve, local, remote)}),
		"away": one("192.0.2.1", state.Frontend{Protocol: state.TCP, Port: 80, Name: "shop/web:http",
			External: state.Target{Miss: state.Drop}, Internal: to(state.Preserve, remote)}),
		"none": one("192.0.2.1", state.Frontend{
			Protocol: state.TCP, Port: 80, External: state.Target{Miss: state.Drop},
			Internal: state.Target{Miss: state.Reject},
		}),
		"cluster": one("192.0.2.1", state.Frontend{Protocol: state.TCP, Port: 80, Name: "shop/web:http",
			External: to(state.Masquerade, local, local2, remote),
			Internal: to(state.Preserve, local, local2, remote)}),
		"roundrobin": one("2001:db8::1", state.Frontend{Protocol: state.UDP, Port: 53, Scheduler: state.RoundRobin,
			External: to(state.Masquerade, local6, remote6), Internal: to(state.Preserve, local6)}),
		"sourcehash": one("192.0.2.1", state.Frontend{Protocol: state.TCP, Port: 80, Scheduler: state.SourceHash,
			External: to(state.Preserve, local, local2), Internal: to(state.Preserve, local, local2, remote)}),
		"affinity": one("192.0.2.1",
			state.Frontend{Protocol: state.TCP, Port: 80, Affinity: 3 * time.Hour, Scheduler: state.RoundRobin,
				External: state.Target{Backends: []state.Backend{local, local2}, Miss: state.Drop,
					Remote: state.Preserve}, Internal: to(state.Preserve, local, local2, remote)},
			state.Frontend{
				Protocol: state.TCP, Port: 81, Affinity: 10 * time.Second, External: state.Target{Miss: state.Drop},
				Internal: state.Target{Miss: state.Reject},
			}),
		// What is here must stay: nodes of different versions have to agree.
		"maglev": one("192.0.2.1", state.Frontend{Protocol: state.TCP, Port: 80, Scheduler: state.Maglev,
			External: to(state.Masquerade, local, local2, remote),
			Internal: to(state.Preserve, local, local2, remote)}),
		"unknown": one("192.0.2.1", state.Frontend{
			Protocol: state.SCTP, Port: 80, External: to(state.Masquerade, unknown),
			Internal: to(state.Preserve, unknown),
		}),
		"ipv6": one("2001:db8::1", state.Frontend{Protocol: state.UDP, Port: 53, Name: "kube-system/dns:dns",
			External: to(state.Masquerade, local6, remote6), Internal: to(state.Masquerade, local6, remote6)}),
	}
}

// Golden compares with what a file holds, or writes it with -update.
func Golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got)\n%s", file, diff)
	}
}
