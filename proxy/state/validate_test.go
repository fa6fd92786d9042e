package state_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

func TestValidate(t *testing.T) {
	v := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	ap := func(s string) state.Backend { return state.Backend{Addr: netip.MustParseAddrPort(s)} }
	with := func(f ...state.Frontend) state.State {
		return state.State{VIPs: proxytest.VIPsOf(&state.VIP{Addr: v("192.0.2.1"), Frontends: f})}
	}
	external := func(b ...state.Backend) state.State {
		return with(state.Frontend{Protocol: state.TCP, Port: 80, External: state.Target{Backends: b}})
	}
	for _, tc := range []struct {
		name  string
		s     state.State
		wants []string // parts of the error; none: valid
	}{
		{"nothing", state.State{}, nil},
		{"good", external(ap("10.0.0.1:80"), ap("10.0.0.2:80")), nil},
		{"no address", state.State{VIPs: proxytest.VIPsOf(&state.VIP{})}, []string{"invalid IP"}},
		{"zone", state.State{VIPs: proxytest.VIPsOf(&state.VIP{Addr: v("fe80::1%eth0")})}, []string{"zone"}},
		{"mapped", state.State{VIPs: proxytest.VIPsOf(&state.VIP{Addr: v("::ffff:192.0.2.1")})},
			[]string{"::ffff:192.0.2.1"}},
		{"multicast", state.State{VIPs: proxytest.VIPsOf(&state.VIP{Addr: v("224.0.0.1")})}, []string{"unicast"}},
		{"ports unsorted", with(state.Frontend{Protocol: state.TCP, Port: 81},
			state.Frontend{Protocol: state.TCP, Port: 80}), []string{"192.0.2.1 tcp/80", "after 192.0.2.1 tcp/81"}},
		{"port twice", with(state.Frontend{Protocol: state.TCP, Port: 80},
			state.Frontend{Protocol: state.TCP, Port: 80}), []string{"no two alike"}},
		{"scheduler", with(state.Frontend{Protocol: state.TCP, Port: 80, Scheduler: 7}),
			[]string{"192.0.2.1 tcp/80", "scheduler is 7", "Maglev"}},
		{"affinity", with(state.Frontend{Protocol: state.TCP, Port: 80, Affinity: 24 * time.Hour}), nil},
		{"affinity too long", with(state.Frontend{Protocol: state.TCP, Port: 80, Affinity: 24*time.Hour + time.Second}),
			[]string{"192.0.2.1 tcp/80", "24h0m1s", "want whole seconds, 1s to 24h"}},
		{"affinity of a fraction", with(state.Frontend{Protocol: state.TCP, Port: 80,
			Affinity: 1500 * time.Millisecond}), []string{"1.5s"}},
		{"negative affinity", with(state.Frontend{Protocol: state.TCP, Port: 80, Affinity: -time.Second}),
			[]string{"-1s"}},
		{"protocol", with(state.Frontend{Protocol: 1, Port: 80}), []string{"protocol 1", "want TCP"}},
		{"port 0", with(state.Frontend{Protocol: state.TCP}), []string{"port 0"}},
		{"family", external(ap("[fd00::1]:80")), []string{"192.0.2.1 tcp/80 external", "[fd00::1]:80", "family"}},
		{"backend twice", external(ap("10.0.0.1:80"), ap("10.0.0.1:80")), []string{"no two alike"}},
		{"backends unsorted", external(ap("10.0.0.2:80"), ap("10.0.0.1:80")),
			[]string{"10.0.0.1:80 comes after 10.0.0.2:80"}},
		{"no port", external(ap("10.0.0.1:0")), []string{"port"}},
		{"miss", with(state.Frontend{Protocol: state.TCP, Port: 80, Internal: state.Target{Miss: 7}}),
			[]string{"internal", "miss is 7"}},
		{"remote", with(state.Frontend{Protocol: state.TCP, Port: 80, Internal: state.Target{Remote: 7}}),
			[]string{"internal", "remote is 7"}},
		{"owned unsorted", state.State{Owned: proxytest.Prefixes("192.0.2.0/24", "10.0.0.0/8")},
			[]string{"owned", "sorted"}},
		{"owned overlaps", state.State{Owned: proxytest.Prefixes("10.0.0.0/8", "10.1.0.0/16")},
			[]string{"10.1.0.0/16 overlaps 10.0.0.0/8"}},
		{"host bits", state.State{Clients: state.LocalClients{CIDRs: proxytest.Prefixes("10.0.0.1/8")}},
			[]string{"clients", "want 10.0.0.0/8"}},
		{"long name", state.State{Clients: state.LocalClients{Bridge: "abcdefghijklmnop"}},
			[]string{"bridge", "15 bytes"}},
		{"ports", state.State{SNAT: state.SNAT{Ports: 7}}, []string{"snat", "ports is 7", "PortKept"}},
		{"mark", state.State{SNAT: state.SNAT{Mark: state.Mark{Value: 3, Mask: 1}}},
			[]string{"snat", "0x3/0x1", "mask"}},
		{"sources", state.State{SNAT: state.SNAT{Sources: proxytest.Addrs("10.0.0.1", "fd00::1")}}, nil},
		{"two sources", state.State{SNAT: state.SNAT{Sources: proxytest.Addrs("10.0.0.1", "10.0.0.2")}},
			[]string{"snat", "10.0.0.2", "second of its family"}},
		{"source", state.State{SNAT: state.SNAT{Sources: proxytest.Addrs("127.0.0.1")}},
			[]string{"snat", "127.0.0.1", "unicast"}},
		{"never", state.State{SNAT: state.SNAT{Never: proxytest.Prefixes("10.0.0.1/8")}},
			[]string{"snat: never", "want 10.0.0.0/8"}},
		{"sources", with(state.Frontend{Protocol: state.TCP, Port: 80,
			Sources: proxytest.Prefixes("10.0.0.0/8", "2001:db8::/32")}), nil},
		{"sources unsorted", with(state.Frontend{
			Protocol: state.TCP, Port: 80, Sources: proxytest.Prefixes("10.0.0.0/8", "10.0.0.0/8"),
		}),
			[]string{"192.0.2.1 tcp/80 sources", "10.0.0.0/8 overlaps"}},
		{"draining", with(state.Frontend{Protocol: state.TCP, Port: 80,
			Draining: []netip.AddrPort{ap("10.0.0.1:80").Addr, ap("10.0.0.2:80").Addr}}), nil},
		{"draining unsorted", with(state.Frontend{
			Protocol: state.TCP, Port: 80, Draining: []netip.AddrPort{ap("10.0.0.2:80").Addr, ap("10.0.0.1:80").Addr},
		}),
			[]string{"192.0.2.1 tcp/80 draining", "10.0.0.1:80 comes after 10.0.0.2:80"}},
		{"draining family", with(state.Frontend{Protocol: state.TCP, Port: 80,
			Draining: []netip.AddrPort{ap("[fd00::1]:80").Addr}}), []string{"draining", "family"}},
		{"draining port", with(state.Frontend{Protocol: state.TCP, Port: 80, Draining: []netip.AddrPort{{}}}),
			[]string{"draining", "port"}},
		{"two at once", state.State{Owned: proxytest.Prefixes("10.0.0.1/8"), VIPs: proxytest.VIPsOf(&state.VIP{})},
			[]string{"owned", "vip"}},
	} {
		err := tc.s.Validate()
		if err == nil && tc.wants != nil || err != nil && tc.wants == nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		for _, want := range tc.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", tc.name, err, want)
			}
		}
	}
}

func TestValidateRedirects(t *testing.T) {
	good := state.Redirect{
		VIP: netip.MustParseAddr("192.0.2.1"), Interface: "eth0", Via: netip.MustParseAddr("10.9.0.1"),
	}
	with := func(change func(*state.Redirect)) []state.Redirect {
		h := good
		change(&h)
		return []state.Redirect{h}
	}
	for _, c := range []struct {
		name string
		all  []state.Redirect
		want string
	}{
		{"good", []state.Redirect{good}, ""},
		{"family", with(func(h *state.Redirect) { h.Via = netip.MustParseAddr("fd00:9::1") }), "same family"},
		{"onward only", with(func(h *state.Redirect) { h.Via, h.Onward = h.Onward, h.Via }), ""},
		{"family onward", with(func(h *state.Redirect) { h.Onward = netip.MustParseAddr("fd00:9::1") }), "same family"},
		{"nowhere", with(func(h *state.Redirect) { h.Via = netip.Addr{} }), "leads to"},
		{"no address", with(func(h *state.Redirect) { h.VIP = netip.Addr{} }), "unicast"},
		{"quote", with(func(h *state.Redirect) { h.Interface = `eth"` }), "interface"},
		{"all interfaces", with(func(h *state.Redirect) { h.Interface = "eth+" }), "interface"},
		{"twice", []state.Redirect{good, good}, "no two alike"},
	} {
		err := state.State{Redirects: c.all}.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}
