package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// staleText is a purge in words, sorted.
func staleText(p StaleEntries) string {
	var lines []string
	for vip, v := range p {
		if v.newVIP {
			lines = append(lines, fmt.Sprintf("%s new VIP", vip))
		}
		if v.removedVIP {
			lines = append(lines, fmt.Sprintf("%s removed VIP", vip))
		}
		for k := range v.newPorts {
			if !v.newVIP {
				lines = append(lines, fmt.Sprintf("%s %s/%d new", vip, k.Proto, k.Port))
			}
		}
		for k := range v.restricted {
			lines = append(lines, fmt.Sprintf("%s %s/%d fewer sources", vip, k.Proto, k.Port))
		}
		for k, s := range v.removedBackends {
			side := map[state.Sides]string{state.SideExternal: "external", state.SideInternal: "internal",
				state.SideExternal | state.SideInternal: "all"}[s]
			lines = append(lines, fmt.Sprintf("%s %s/%d %s removed for %s", vip, k.Proto, k.Port.Port, k.Backend, side))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestStaleAfter(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	target := func(names ...string) state.Target {
		return state.Target{Backends: proxytest.Backends(0, names...), Remote: state.Preserve}
	}
	stateWith := func(frontends ...state.Frontend) state.State {
		return state.State{Node: "n1", VIPs: proxytest.VIPsOf(&state.VIP{Addr: vip, Frontends: frontends})}
	}
	fe := func(p state.Protocol, port uint16, external, internal state.Target) state.Frontend {
		return state.Frontend{Protocol: p, Port: port, External: external, Internal: internal}
	}
	restricted := func(sources ...string) state.State {
		f := fe(state.TCP, 80, target("pod1"), target("pod1"))
		f.Sources = append([]netip.Prefix{}, proxytest.Prefixes(sources...)...)
		return stateWith(f)
	}
	none := state.State{Node: "n1"}
	for _, tc := range []struct {
		name       string
		have, want state.State
		stale      string
	}{
		{"a new VIP", none, stateWith(fe(state.TCP, 80, target("pod1"), target("pod1"))), "192.0.2.1 new VIP"},
		{"nothing", stateWith(), stateWith(), ""},
		{"a new port", stateWith(), stateWith(fe(state.TCP, 80, target("pod1"), target())), "192.0.2.1 tcp/80 new"},
		{"a VIP goes, TCP", stateWith(fe(state.TCP, 80, target("pod1"), target("pod1"))), none,
			"192.0.2.1 removed VIP\n192.0.2.1 tcp/80 10.244.1.11:8080 removed for all"},
		{"a VIP goes, UDP", stateWith(fe(state.UDP, 53, target("pod1"), target("pod1"))), none,
			"192.0.2.1 removed VIP\n192.0.2.1 udp/53 10.244.1.11:8080 removed for all"},
		{"the first of two goes, the other takes its slot",
			stateWith(fe(state.UDP, 53, target("pod1", "pod2"), target("pod1", "pod2"))),
			stateWith(fe(state.UDP, 53, target("pod2"), target("pod2"))),
			"192.0.2.1 udp/53 10.244.1.11:8080 removed for all"},
		{"one comes before another",
			stateWith(fe(state.UDP, 53, target("pod2"), target("pod2"))),
			stateWith(fe(state.UDP, 53, target("pod1", "pod2"), target("pod1", "pod2"))), ""},
		{"local only from now on",
			stateWith(fe(state.SCTP, 53, target("pod1", "remote"), target("pod1", "remote"))),
			stateWith(fe(state.SCTP, 53, target("pod1"), target("pod1", "remote"))),
			"192.0.2.1 sctp/53 10.244.2.11:8080 removed for external"},
		{"one for external, another for internal",
			stateWith(fe(state.TCP, 53, target("pod1", "remote"), target("pod1"))),
			stateWith(fe(state.TCP, 53, target("pod1"), target())),
			"192.0.2.1 tcp/53 10.244.1.11:8080 removed for internal\n192.0.2.1 tcp/53 10.244.2.11:8080 " +
				"removed for external"},
		{"restricted", stateWith(fe(state.TCP, 80, target("pod1"), target("pod1"))), restricted("10.0.0.0/8"),
			"192.0.2.1 tcp/80 fewer sources"},
		{"restricted for all", stateWith(fe(state.TCP, 80, target("pod1"), target("pod1"))), restricted("0.0.0.0/0"),
			""},
		{"a source more", restricted("10.0.0.0/8"), restricted("10.0.0.0/8", "11.0.0.0/8"), ""},
		{"a source less", restricted("10.0.0.0/8", "11.0.0.0/8"), restricted("11.0.0.0/8"),
			"192.0.2.1 tcp/80 fewer sources"},
		{"a smaller source", restricted("10.0.0.0/8"), restricted("10.0.0.0/9"), "192.0.2.1 tcp/80 fewer sources"},
		{"no longer restricted", restricted("10.0.0.0/8"), stateWith(fe(state.TCP, 80, target("pod1"), target("pod1"))),
			"192.0.2.1 tcp/80 fewer sources"},
	} {
		c := state.DiffElements(state.RenderState(tc.have), state.RenderState(tc.want))
		if diff := cmp.Diff(tc.stale, staleText(StaleAfter(c))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, diff)
		}
	}
}

// Only entries that a change makes wrong are stale.
func TestStaleEntriesInclude(t *testing.T) {
	vip, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	gone := netip.MustParseAddrPort("10.244.1.11:8080")
	stays := netip.MustParseAddrPort("10.244.1.12:8080")
	outside, pod := netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.244.1.99")
	served := netip.MustParseAddr("192.0.2.3")
	want := state.State{
		Clients: state.LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24")},
		VIPs: proxytest.VIPsOf(&state.VIP{
			Addr: served, Frontends: []state.Frontend{{Protocol: state.TCP, Port: 80}},
		}),
	}
	dns, web := state.Port{Proto: state.UDP, Port: 53}, state.Port{Proto: state.TCP, Port: 80}
	newVIP := StaleEntries{vip: {newVIP: true}}
	added := StaleEntries{vip: {newPorts: map[state.Port]bool{web: true}}}
	away := StaleEntries{vip: {removedBackends: map[removedBackend]state.Sides{{Port: dns,
		Backend: gone}: state.SideExternal}}}
	all := StaleEntries{vip: {removedBackends: map[removedBackend]state.Sides{{Port: dns,
		Backend: gone}: state.SideExternal | state.SideInternal}}}
	tcp := StaleEntries{
		vip:    {removedBackends: map[removedBackend]state.Sides{{Port: web, Backend: gone}: state.SideExternal}},
		served: {removedBackends: map[removedBackend]state.Sides{{Port: web, Backend: gone}: state.SideExternal}},
	}
	for _, tc := range []struct {
		name string
		p    StaleEntries
		f    Flow
		want bool
	}{
		{"began before its VIP", newVIP, Flow{Client: outside, VIP: vip, Port: web}, true},
		{"a ping from before its VIP", newVIP, Flow{Client: outside, VIP: vip, Port: state.Port{Proto: 1, Port: 0}},
			true},
		{"to another address", newVIP, Flow{Client: outside, VIP: other, Port: web}, false},
		{"translated by us or others", newVIP, Flow{Client: outside, VIP: vip, Port: web, DNAT: true, Backend: gone},
			false},
		{"began before its port", added, Flow{Client: outside, VIP: vip, Port: web}, true},
		{"to another port", added, Flow{Client: outside, VIP: vip, Port: dns}, false},
		{"at a removed backend", all, Flow{Client: pod, VIP: vip, Port: dns, DNAT: true, Backend: gone}, true},
		{"at another backend", all, Flow{Client: pod, VIP: vip, Port: dns, DNAT: true, Backend: stays}, false},
		{"at a removed backend, other port", all, Flow{Client: pod, VIP: vip, Port: web, DNAT: true, Backend: gone},
			false},
		{"external, at one removed for external", away,
			Flow{Client: outside, VIP: vip, Port: dns, DNAT: true, Backend: gone}, true},
		{"TCP, waiting for a removed backend", tcp,
			Flow{Client: outside, VIP: vip, Port: web, DNAT: true, Backend: gone}, true},
		{"TCP, at a removed backend", tcp, Flow{Client: outside, VIP: vip, Port: web, DNAT: true, Backend: gone,
			replied: true}, false},
		{"TCP, at a removed backend of a frontend that is there", tcp,
			Flow{Client: outside, VIP: served, Port: web, DNAT: true, Backend: gone, replied: true}, true},
		{"TCP, ended there, and blocks its port", tcp,
			Flow{Client: outside, VIP: served, Port: web, DNAT: true, Backend: gone, replied: true, Ended: true}, true},
		{"TCP, ended there, and blocks no port", tcp,
			Flow{Client: outside, VIP: served, Port: web, DNAT: true, Backend: gone, replied: true, Ended: true,
				yields: true}, false},
		{"UDP, at a removed backend that answers", all,
			Flow{Client: pod, VIP: vip, Port: dns, DNAT: true, Backend: gone, replied: true}, true},
		{"internal, at one removed for external", away,
			Flow{Client: pod, VIP: vip, Port: dns, DNAT: true, Backend: gone}, false},
	} {
		if got := tc.p.includes(&tc.f, &want); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// Of what a change makes wrong, flows of UDP that leave a backend which drains can wait, and no
// others.
func TestSplitDraining(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.1")
	b := netip.MustParseAddrPort("10.244.1.11:8080")
	to := state.Target{Backends: proxytest.Backends(0, "pod2")}
	want := state.State{VIPs: proxytest.VIPsOf(&state.VIP{Addr: vip, Frontends: []state.Frontend{
		{Protocol: state.UDP, Port: 53, External: to, Internal: to, Draining: []netip.AddrPort{b}},
		{Protocol: state.UDP, Port: 54, External: to, Internal: to},
		{Protocol: state.TCP, Port: 80, External: to, Internal: to, Draining: []netip.AddrPort{b}},
	}})}
	p := make(StaleEntries)
	for _, port := range []state.Port{{Proto: state.UDP, Port: 53}, {Proto: state.UDP, Port: 54},
		{Proto: state.TCP, Port: 80}} {
		p.at(vip).removedBackends[removedBackend{port, b}] = state.SideExternal
	}
	draining := p.splitDraining(&want)
	if got, want := staleText(draining), "192.0.2.1 udp/53 10.244.1.11:8080 removed for external"; got != want {
		t.Errorf("can wait: %q, want %q", got, want)
	}
	if got, want := staleText(p), "192.0.2.1 tcp/80 10.244.1.11:8080 removed for external\n192.0.2.1 udp/54 "+
		"10.244.1.11:8080 removed for external"; got != want {
		t.Errorf("cannot wait: %q, want %q", got, want)
	}

	// What had stayed for want of another leaves when there is one.
	p = make(StaleEntries)
	p.at(vip).recovered[state.Port{Proto: state.UDP, Port: 53}] = true
	draining = p.splitDraining(&want)
	if got, want := staleText(draining), "192.0.2.1 udp/53 10.244.1.11:8080 removed for all"; got != want ||
		len(p) > 0 {
		t.Errorf("can wait: %q, want %q; other %q", got, want, staleText(p))
	}
}
