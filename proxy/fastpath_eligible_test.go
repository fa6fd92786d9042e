package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// text is a frontend for the fast path in words: "take tcp 192.0.2.1:80 to pod1 pod2*3; drains pod3".
func (l fastNames) text(f fastpath.Frontend) string {
	words := []string{"leave"}
	if f.Take {
		words[0] = "take"
	}
	words = append(words, Protocol(f.Protocol).String(), f.Addr.String())
	for _, b := range f.Backends {
		word := l.name(b.Addr)
		if b.Weight != 1 {
			word += fmt.Sprintf("*%d", b.Weight)
		}
		words = append(words, word)
	}
	for _, d := range f.Draining {
		words = append(words, "drains", l.name(d))
	}
	for _, r := range f.Replying {
		words = append(words, "replies", l.name(r))
	}
	if f.Sources != nil {
		words = append(words, "for", fmt.Sprint(f.Sources))
	}
	return strings.Join(words, " ")
}

// fastFrontends are those of all VIPs.
func fastFrontends(s fastpath.State) (all []fastpath.Frontend) {
	for _, v := range s.VIPs {
		all = append(all, v.Frontends...)
	}
	return all
}

type fastNames map[netip.Addr]string

func (l fastNames) name(a netip.AddrPort) string { return l[a.Addr()] }

// Which frontends take new flows, and which backends keep their flows.
func TestFastFrontends(t *testing.T) {
	pods := fastNames{}
	for _, name := range []string{"pod1", "pod2", "pod3", "remote"} {
		pods[proxytest.At(name, 0)] = name
	}
	front := func(external, internal string, with ...func(*Frontend)) Frontend {
		f := Frontend{
			Protocol: TCP, Port: 80, External: Target{Backends: proxytest.Backends(0, strings.Fields(external)...)},
			Internal: Target{Backends: proxytest.Backends(0, strings.Fields(internal)...)},
		}
		for _, do := range with {
			do(&f)
		}
		return f
	}
	udp := func(f *Frontend) { f.Protocol = UDP }
	drain := func(names ...string) func(*Frontend) {
		return func(f *Frontend) {
			for _, b := range proxytest.Backends(0, names...) {
				f.Draining = append(f.Draining, b.Addr)
			}
		}
	}
	for _, tc := range []struct {
		name string
		f    Frontend
		want string // "" for none
		why  string
	}{
		{"all here", front("pod1 pod2", "pod1 pod2"), "take tcp 192.0.2.1:80 pod1 pod2", ""},
		{"Local, others elsewhere", front("pod1", "pod1 remote"), "take tcp 192.0.2.1:80 pod1", ""},
		{"weights", front("pod1 pod2", "", func(f *Frontend) { f.External.Backends[1].Weight = 3 }),
			"take tcp 192.0.2.1:80 pod1 pod2*3", ""},
		{"over UDP", front("pod1", "pod1", udp), "take udp 192.0.2.1:80 pod1", ""},
		{"over SCTP", front("pod1", "pod1", func(f *Frontend) { f.Protocol = SCTP }), "", "SCTP"},
		// From Local to Cluster and back: backends that are here keep their flows.
		{"one elsewhere", front("pod1 remote", "pod1 remote"), "leave tcp 192.0.2.1:80 pod1",
			"backends on other nodes"},
		{"one on an unknown node", front("pod1", "pod1", func(f *Frontend) { f.External.Backends[0].Node = "" }),
			"leave tcp 192.0.2.1:80", "backends on other nodes"},
		{"one less for external clients", front("pod1", "pod1 pod2"), "take tcp 192.0.2.1:80 pod1 drains pod2", ""},
		{"the same over UDP", front("pod1", "pod1 pod2", udp), "take udp 192.0.2.1:80 pod1", ""},
		{"one that drains", front("pod2", "pod2", drain("pod1")), "take tcp 192.0.2.1:80 pod2 drains pod1", ""},
		{"datagrams leave what drains", front("pod2", "pod2", udp, drain("pod1")),
			"take udp 192.0.2.1:80 pod2 replies pod1", ""},
		{"and stay where there is no other", front("", "", udp, drain("pod1")), "leave udp 192.0.2.1:80 drains pod1",
			"no backend"},
		{"none left", front("", "", drain("pod1", "pod3")), "leave tcp 192.0.2.1:80 drains pod1 drains pod3",
			"no backend"},
		{"turns", front("pod1", "pod1", func(f *Frontend) { f.Scheduler = RoundRobin }), "leave tcp 192.0.2.1:80 pod1",
			"scheduler round robin"},
		{"a hash", front("pod1", "pod1", func(f *Frontend) { f.Scheduler = SourceHash }), "leave tcp 192.0.2.1:80 pod1",
			"scheduler source hash"},
		{"a table", front("pod1", "pod1", func(f *Frontend) { f.Scheduler = Maglev }), "leave tcp 192.0.2.1:80 pod1",
			"scheduler maglev"},
		{"affinity", front("pod1", "pod1", func(f *Frontend) { f.Affinity = time.Hour }), "leave tcp 192.0.2.1:80 pod1",
			"affinity"},
		{"sources", front("pod1", "pod1", func(f *Frontend) { f.Sources = proxytest.Prefixes("10.0.0.0/8") }),
			"leave tcp 192.0.2.1:80 pod1 for [10.0.0.0/8]", "not every source may use it"},
		{"no sources", front("pod1", "pod1", func(f *Frontend) { f.Sources = []netip.Prefix{} }),
			"leave tcp 192.0.2.1:80 pod1 for []", "not every source may use it"},
	} {
		s := State{Node: "n1", VIPs: proxytest.VIPsOf(&VIP{Addr: proxytest.At("vip", 0), Frontends: []Frontend{tc.f}})}
		var got []string
		for _, f := range fastFrontends(newSelection("n1").state(&s)) {
			got = append(got, pods.text(f))
		}
		if text := strings.Join(got, "\n"); text != tc.want {
			t.Errorf("%s: %q; want %q", tc.name, text, tc.want)
		}
		if why := whyRules(&tc.f, "n1"); why != tc.why {
			t.Errorf("%s: left to the rules for %q; want %q", tc.name, why, tc.why)
		}
	}
}

// Frontends with a backend in common are taken together or not at all, and so are those
// with one in common with these.
func TestFastFrontendsShareBackends(t *testing.T) {
	state := func(last func(*Frontend)) State {
		v := &VIP{Addr: proxytest.At("vip", 0)}
		for i, names := range [][]string{{"pod1", "pod2"}, {"pod2", "pod3"}, {"pod3"}} {
			for _, p := range []Protocol{TCP, UDP} {
				to := Target{Backends: proxytest.Backends(0, names...)}
				v.Frontends = append(v.Frontends, Frontend{
					Protocol: p, Port: uint16(80 + i), External: to, Internal: to,
				})
			}
		}
		last(&v.Frontends[4])
		slices.SortFunc(v.Frontends, func(a, b Frontend) int { return state.CompareFrontends(&a, &b) })
		return State{Node: "n1", VIPs: proxytest.VIPsOf(v)}
	}
	for _, tc := range []struct {
		name string
		last func(*Frontend)
		want []string // left to the rules
	}{
		{"all alike", func(*Frontend) {}, nil},
		{"affinity", func(f *Frontend) { f.Affinity = time.Hour }, []string{
			"192.0.2.1:80 tcp: backend 10.244.1.12:8080 is that of 192.0.2.1 tcp/81 as well, which " +
				"is left to the rules",
			"192.0.2.1:81 tcp: backend 10.244.1.13:8080 is that of 192.0.2.1 tcp/82 as well, which " +
				"is left to the rules",
			"192.0.2.1:82 tcp: affinity",
		}},
		{"affinity, and another port", func(f *Frontend) {
			f.Affinity, f.External.Backends = time.Hour,
				[]Backend{{Addr: netip.MustParseAddrPort("10.244.1.13:9"), Node: "n1"}}
		}, []string{"192.0.2.1:82 tcp: affinity"}},
		{"a pod of another node of the same address", func(f *Frontend) { f.External.Backends[0].Node = "n2" },
			[]string{"192.0.2.1:82 tcp: backends on other nodes"}},
		{"none", func(f *Frontend) { f.External.Backends = nil }, []string{"192.0.2.1:82 tcp: no backend"}},
	} {
		s := state(tc.last)
		var got []string
		n := newSelection("n1")
		fronts := fastFrontends(n.state(&s))
		for key := range n.fronts {
			if why := n.why(key); why != "" {
				got = append(got, fmt.Sprintf("%s %s: %s", key.addr, key.protocol, why))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: left\n%s\nwant\n%s", tc.name, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
		}
		taken := 0
		for _, f := range fronts {
			if f.Take {
				taken++
			}
		}
		if taken+len(tc.want) != 6 {
			t.Errorf("%s: %d are taken", tc.name, taken)
		}
	}
}

// Everything else that a State says to the fast path.
func TestFastState(t *testing.T) {
	s := proxytest.PacketState(LocalClients{
		CIDRs: proxytest.Prefixes("10.244.1.0/24"), InterfacePrefix: "cali", Bridge: "cni0",
	})
	s.Outward = []string{"cali1", "cni0", "cni01", "eth0"}
	s.VIPs = proxytest.WithVIPs(s.VIPs, &VIP{Addr: netip.MustParseAddr("2001:db8::ffff")})
	f := newSelection("n1").state(&s)
	if want := []string{"cni01", "eth0"}; !slices.Equal(f.Outward, want) {
		t.Errorf("outward %q; want %q: by the others this node's pods come", f.Outward, want)
	}
	if !slices.Equal(f.Clients, s.Clients.CIDRs) || !slices.Equal(f.Owned, s.Owned) {
		t.Errorf("clients %s, owned %s", f.Clients, f.Owned)
	}
	if len(f.VIPs) != 3 || !slices.IsSortedFunc(f.VIPs,
		func(a, b *fastpath.VIP) int { return a.Addr.Compare(b.Addr) }) {
		t.Errorf("%d VIPs, or not in order", len(f.VIPs))
	}
	if all := fastFrontends(f); len(all) != 2*2*7 || !slices.IsSortedFunc(all, compareFast) {
		t.Errorf("%d frontends, or not in order", len(all))
	}
}
