package proxy

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// goldenStates are states that show what is rendered from what.
func goldenStates() map[string]State {
	local := Backend{Addr: netip.MustParseAddrPort("10.244.1.11:8080"), Node: "n1"}
	local2 := Backend{Addr: netip.MustParseAddrPort("10.244.1.12:8080"), Node: "n1"}
	remote := Backend{Addr: netip.MustParseAddrPort("10.244.2.11:8080"), Node: "n2"}
	unknown := Backend{Addr: netip.MustParseAddrPort("10.244.9.9:8080")}
	local6 := Backend{Addr: netip.MustParseAddrPort("[fd00:244:1::11]:53"), Node: "n1"}
	remote6 := Backend{Addr: netip.MustParseAddrPort("[fd00:244:2::11]:53"), Node: "n2"}
	to := func(remote Remote, b ...Backend) Target { return Target{Backends: b, Remote: remote} }
	one := func(addr string, f ...Frontend) State {
		return State{Node: "n1", VIPs: []*VIP{{Addr: netip.MustParseAddr(addr), Frontends: f}}}
	}
	return map[string]State{
		"empty": {Node: "n1"},
		"shared": {
			Node:    "n1",
			Owned:   prefixes("192.0.2.0/25", "192.0.2.128/26", "255.255.255.0/24", "2001:db8::/64"),
			Clients: LocalClients{CIDRs: prefixes("10.244.1.0/24", "fd00:244:1::/64"), InterfacePrefix: "cali", Bridge: "cni0"},
		},
		"sources": one("192.0.2.1",
			Frontend{Protocol: TCP, Port: 80, External: to(Masquerade, local), Internal: to(Preserve, local),
				Sources: prefixes("10.0.0.0/8", "203.0.113.7/32", "2001:db8:9::/48")},
			Frontend{Protocol: TCP, Port: 443, External: to(Masquerade, local), Internal: to(Preserve, local), Sources: prefixes("0.0.0.0/0")},
			Frontend{Protocol: UDP, Port: 53, Sources: []netip.Prefix{}}),
		"sources6": one("2001:db8::1", Frontend{Protocol: TCP, Port: 80, External: to(Masquerade, local6), Internal: to(Preserve, local6),
			Sources: prefixes("10.0.0.0/8", "2001:db8:9::/48")}),
		"draining": one("192.0.2.1", Frontend{Protocol: TCP, Port: 80, External: Target{Miss: Drop}, Internal: to(Preserve, remote),
			Draining: []netip.AddrPort{local.Addr, local2.Addr}}),
		"snat": {Node: "n1", SNAT: SNAT{
			Ports: PortRandom, Sources: addrs("10.0.2.2"), Never: prefixes("10.244.0.0/16", "fd00:244::/32"),
			Mark: Mark{Value: 0x4000, Mask: 0x4000},
		}},
		"noports": one("192.0.2.1"),
		"local": one("192.0.2.1", Frontend{Protocol: TCP, Port: 80, Name: "shop/web:http",
			External: Target{Backends: []Backend{local}, Miss: Drop, Remote: Preserve},
			Internal: to(Preserve, local, remote)}),
		"away": one("192.0.2.1", Frontend{Protocol: TCP, Port: 80, Name: "shop/web:http",
			External: Target{Miss: Drop}, Internal: to(Preserve, remote)}),
		"none": one("192.0.2.1", Frontend{Protocol: TCP, Port: 80, External: Target{Miss: Drop}, Internal: Target{Miss: Reject}}),
		"cluster": one("192.0.2.1", Frontend{Protocol: TCP, Port: 80, Name: "shop/web:http",
			External: to(Masquerade, local, local2, remote), Internal: to(Preserve, local, local2, remote)}),
		"roundrobin": one("2001:db8::1", Frontend{Protocol: UDP, Port: 53, Scheduler: RoundRobin,
			External: to(Masquerade, local6, remote6), Internal: to(Preserve, local6)}),
		"sourcehash": one("192.0.2.1", Frontend{Protocol: TCP, Port: 80, Scheduler: SourceHash,
			External: to(Preserve, local, local2), Internal: to(Preserve, local, local2, remote)}),
		"affinity": one("192.0.2.1",
			Frontend{Protocol: TCP, Port: 80, Affinity: 3 * time.Hour, Scheduler: RoundRobin,
				External: Target{Backends: []Backend{local, local2}, Miss: Drop, Remote: Preserve}, Internal: to(Preserve, local, local2, remote)},
			Frontend{Protocol: TCP, Port: 81, Affinity: 10 * time.Second, External: Target{Miss: Drop}, Internal: Target{Miss: Reject}}),
		// What is here must stay: nodes of different versions have to agree.
		"maglev": one("192.0.2.1", Frontend{Protocol: TCP, Port: 80, Scheduler: Maglev,
			External: to(Masquerade, local, local2, remote), Internal: to(Preserve, local, local2, remote)}),
		"unknown": one("192.0.2.1", Frontend{Protocol: SCTP, Port: 80, External: to(Masquerade, unknown), Internal: to(Preserve, unknown)}),
		"ipv6": one("2001:db8::1", Frontend{Protocol: UDP, Port: 53, Name: "kube-system/dns:dns",
			External: to(Masquerade, local6, remote6), Internal: to(Masquerade, local6, remote6)}),
	}
}

// The golden files hold a state in words and what the kernel gets for it.
func TestRenderGolden(t *testing.T) {
	for name, s := range goldenStates() {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		golden(t, filepath.Join("testdata", name+".golden"), s.String()+"--\n"+state.ElementsText(state.RenderState(s)))
	}
}

// golden compares with what a file holds, or writes it with -update.
func golden(t *testing.T, file, got string) {
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

// The text that replaces a table means to nft what the elements mean by netlink.
func TestReplaceScript(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		s, err := nfnl.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w := newWorld(11)
		random := State{Node: "n1"}
		states := goldenStates()
		for i := range 10 {
			random = w.next(random)
			states[string(rune('a'+i))] = random
		}
		for name, one := range states {
			all := state.RenderState(one)
			check := exec.Command("nft", "--check", "--file", "-")
			check.Stdin = strings.NewReader(replaceScript(all))
			if out, err := check.CombinedOutput(); err != nil {
				t.Fatalf("%s: nft --check: %v\n%s", name, err, out)
			}
			if err := nft(t.Context(), replaceScript(all)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := readStructure(s)
			if err == nil {
				err = got.readElements(s, true) // it lacks the schema's chain, which comes last
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(state.ElementsText(all), state.ElementsText(got.elements)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", name, diff)
			}
			if stray := got.strayMade(); len(stray) > 0 {
				t.Errorf("%s: chains by nft differ from their patterns: %v", name, stray)
			}
		}
	})
}

// nft lists what netlink wrote in the words of the golden files, so that an
// operator can compare.
func TestListedByNft(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		s := goldenStates()["cluster"]
		s.Clients = goldenStates()["shared"].Clients
		mustSet(t, p, s)
		out, err := exec.Command("nft", "list", "table", "inet", renderer.TableName).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{
			`192.0.2.1 . tcp . 80 : 10:3`,
			`10:3 : goto x3`,
			`192.0.2.1 . tcp . 80 . 2 : 10.244.2.11 . 8080`,
			`192.0.2.1 . tcp . 80 . 10.244.2.11 . 8080`,
			`192.0.2.1 . 10.244.1.11 . 10.244.1.11`,
			`"cali*"`,
			`10.244.1.0/24`,
			`dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @xeps4`,
			`dnat ip6 to ip6 daddr . meta l4proto . th dport . numgen random mod 3 map @ieps6`,
		} {
			if !strings.Contains(string(out), want) {
				t.Errorf("nft does not list %s", want)
			}
		}
		if t.Failed() {
			t.Logf("%s", out)
		}
	})
}

// A change that is too large for the socket is made in several transactions.
func TestTooLargeForSocket(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		mustSet(t, p, benchState(1))
		if err := unix.SetsockoptInt(p.sock.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1000, 2} {
			mustSet(t, p, benchState(n))
			checkKernel(t, benchState(n))
		}
	})
}

// Count chains come with their first use, and go when there are too many that
// nothing uses, in a transaction after the end of their last use.
func TestCountChainsComeAndGo(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		vip := netip.MustParseAddr("192.0.2.1")
		set := func(n int, port uint16) {
			t.Helper()
			to := Target{}
			for i := range n {
				a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
				to.Backends = append(to.Backends, Backend{Addr: netip.AddrPortFrom(a, 80), Node: "n1"})
			}
			f := Frontend{Protocol: TCP, Port: port, External: to, Internal: to}
			mustSet(t, p, State{Node: "n1", VIPs: []*VIP{{Addr: vip, Frontends: []Frontend{f}}}})
		}
		chains := func(want ...string) {
			t.Helper()
			got, err := readTable(p.sock)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got.madeChains()); diff != "" {
				t.Errorf("chains (-want +got)\n%s", diff)
			}
		}
		set(1, 80)
		chains()
		set(3, 80)
		chains("i3", "x3")
		set(4, 80)
		set(0, 81)
		set(4, 81)
		chains("i3", "i4", "x3", "x4")
		for n := range spareChains/2 + 1 {
			set(5+n, 80)
		}
		// All before these had gone idle; the first of them has only now.
		last := 5 + spareChains/2
		left := []string{fmt.Sprint("i", last-1), fmt.Sprint("i", last), fmt.Sprint("x", last-1), fmt.Sprint("x", last)}
		chains(left...)
		set(0, 80)
		p.Recheck()
		set(1, 81)
		chains(left...)
	})
}

func TestIntervals(t *testing.T) {
	for text, e := range map[string]state.Element{
		`owned4 { 0.0.0.0/0 }`:          state.PrefixElement(state.SetOwned, netip.MustParsePrefix("0.0.0.0/0")),
		`owned4 { 192.0.2.7/32 }`:       state.PrefixElement(state.SetOwned, netip.MustParsePrefix("192.0.2.7/32")),
		`owned4 { 255.255.255.255/32 }`: state.PrefixElement(state.SetOwned, netip.MustParsePrefix("255.255.255.255/32")),
		`owned6 { ::/0 }`:               state.PrefixElement(state.SetOwned, netip.MustParsePrefix("::/0")),
		`owned6 { 2001:db8::/127 }`:     state.PrefixElement(state.SetOwned, netip.MustParsePrefix("2001:db8::/127")),
		`clientifs { "cali*" }`:         state.IfnameElement("cali", true),
		`clientifs { "cni0" }`:          state.IfnameElement("cni0", false),
		`clients4 { 10.0.0.1-10.0.0.5 }`: {Set: state.SetClients,
			Key: "\x0a\x00\x00\x01", Data: "\x0a\x00\x00\x06"},
	} {
		if e.String() != text {
			t.Errorf("%s; want %s", e, text)
		}
	}
}

func TestValidate(t *testing.T) {
	v := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	ap := func(s string) Backend { return Backend{Addr: netip.MustParseAddrPort(s)} }
	with := func(f ...Frontend) State { return State{VIPs: []*VIP{{Addr: v("192.0.2.1"), Frontends: f}}} }
	external := func(b ...Backend) State {
		return with(Frontend{Protocol: TCP, Port: 80, External: Target{Backends: b}})
	}
	for _, tc := range []struct {
		name  string
		s     State
		wants []string // parts of the error; none: valid
	}{
		{"nothing", State{}, nil},
		{"good", external(ap("10.0.0.1:80"), ap("10.0.0.2:80")), nil},
		{"unsorted", State{VIPs: []*VIP{{Addr: v("192.0.2.2")}, {Addr: v("192.0.2.1")}}}, []string{"192.0.2.1", "after 192.0.2.2"}},
		{"twice", State{VIPs: []*VIP{{Addr: v("192.0.2.2")}, {Addr: v("192.0.2.2")}}}, []string{"no two alike"}},
		{"no address", State{VIPs: []*VIP{{}}}, []string{"invalid IP"}},
		{"zone", State{VIPs: []*VIP{{Addr: v("fe80::1%eth0")}}}, []string{"zone"}},
		{"mapped", State{VIPs: []*VIP{{Addr: v("::ffff:192.0.2.1")}}}, []string{"::ffff:192.0.2.1"}},
		{"multicast", State{VIPs: []*VIP{{Addr: v("224.0.0.1")}}}, []string{"unicast"}},
		{"ports unsorted", with(Frontend{Protocol: TCP, Port: 81}, Frontend{Protocol: TCP, Port: 80}), []string{"192.0.2.1 tcp/80", "after 192.0.2.1 tcp/81"}},
		{"port twice", with(Frontend{Protocol: TCP, Port: 80}, Frontend{Protocol: TCP, Port: 80}), []string{"no two alike"}},
		{"scheduler", with(Frontend{Protocol: TCP, Port: 80, Scheduler: 7}), []string{"192.0.2.1 tcp/80", "scheduler is 7", "Maglev"}},
		{"affinity", with(Frontend{Protocol: TCP, Port: 80, Affinity: 24 * time.Hour}), nil},
		{"affinity too long", with(Frontend{Protocol: TCP, Port: 80, Affinity: 24*time.Hour + time.Second}), []string{"192.0.2.1 tcp/80", "24h0m1s", "want whole seconds, 1s to 24h"}},
		{"affinity of a fraction", with(Frontend{Protocol: TCP, Port: 80, Affinity: 1500 * time.Millisecond}), []string{"1.5s"}},
		{"negative affinity", with(Frontend{Protocol: TCP, Port: 80, Affinity: -time.Second}), []string{"-1s"}},
		{"protocol", with(Frontend{Protocol: 1, Port: 80}), []string{"protocol 1", "want TCP"}},
		{"port 0", with(Frontend{Protocol: TCP}), []string{"port 0"}},
		{"family", external(ap("[fd00::1]:80")), []string{"192.0.2.1 tcp/80 external", "[fd00::1]:80", "family"}},
		{"backend twice", external(ap("10.0.0.1:80"), ap("10.0.0.1:80")), []string{"no two alike"}},
		{"backends unsorted", external(ap("10.0.0.2:80"), ap("10.0.0.1:80")), []string{"10.0.0.1:80 comes after 10.0.0.2:80"}},
		{"no port", external(ap("10.0.0.1:0")), []string{"port"}},
		{"miss", with(Frontend{Protocol: TCP, Port: 80, Internal: Target{Miss: 7}}), []string{"internal", "miss is 7"}},
		{"remote", with(Frontend{Protocol: TCP, Port: 80, Internal: Target{Remote: 7}}), []string{"internal", "remote is 7"}},
		{"owned unsorted", State{Owned: prefixes("192.0.2.0/24", "10.0.0.0/8")}, []string{"owned", "sorted"}},
		{"owned overlaps", State{Owned: prefixes("10.0.0.0/8", "10.1.0.0/16")}, []string{"10.1.0.0/16 overlaps 10.0.0.0/8"}},
		{"host bits", State{Clients: LocalClients{CIDRs: prefixes("10.0.0.1/8")}}, []string{"clients", "want 10.0.0.0/8"}},
		{"long name", State{Clients: LocalClients{Bridge: "abcdefghijklmnop"}}, []string{"bridge", "15 bytes"}},
		{"ports", State{SNAT: SNAT{Ports: 7}}, []string{"snat", "ports is 7", "PortKept"}},
		{"mark", State{SNAT: SNAT{Mark: Mark{Value: 3, Mask: 1}}}, []string{"snat", "0x3/0x1", "mask"}},
		{"sources", State{SNAT: SNAT{Sources: addrs("10.0.0.1", "fd00::1")}}, nil},
		{"two sources", State{SNAT: SNAT{Sources: addrs("10.0.0.1", "10.0.0.2")}}, []string{"snat", "10.0.0.2", "second of its family"}},
		{"source", State{SNAT: SNAT{Sources: addrs("127.0.0.1")}}, []string{"snat", "127.0.0.1", "unicast"}},
		{"never", State{SNAT: SNAT{Never: prefixes("10.0.0.1/8")}}, []string{"snat: never", "want 10.0.0.0/8"}},
		{"sources", with(Frontend{Protocol: TCP, Port: 80, Sources: prefixes("10.0.0.0/8", "2001:db8::/32")}), nil},
		{"sources unsorted", with(Frontend{Protocol: TCP, Port: 80, Sources: prefixes("10.0.0.0/8", "10.0.0.0/8")}),
			[]string{"192.0.2.1 tcp/80 sources", "10.0.0.0/8 overlaps"}},
		{"draining", with(Frontend{Protocol: TCP, Port: 80, Draining: []netip.AddrPort{ap("10.0.0.1:80").Addr, ap("10.0.0.2:80").Addr}}), nil},
		{"draining unsorted", with(Frontend{Protocol: TCP, Port: 80, Draining: []netip.AddrPort{ap("10.0.0.2:80").Addr, ap("10.0.0.1:80").Addr}}),
			[]string{"192.0.2.1 tcp/80 draining", "10.0.0.1:80 comes after 10.0.0.2:80"}},
		{"draining family", with(Frontend{Protocol: TCP, Port: 80, Draining: []netip.AddrPort{ap("[fd00::1]:80").Addr}}), []string{"draining", "family"}},
		{"draining port", with(Frontend{Protocol: TCP, Port: 80, Draining: []netip.AddrPort{{}}}), []string{"draining", "port"}},
		{"two at once", State{Owned: prefixes("10.0.0.1/8"), VIPs: []*VIP{{}}}, []string{"owned", "vip"}},
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

// Whatever stands in the way of a sorted list is found where only changed VIPs
// are looked at.
func TestDiffVIPsFindsDisorder(t *testing.T) {
	var all []*VIP
	for i := range 5 {
		all = append(all, &VIP{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})})
	}
	w := newWorld(5)
	for range 2000 {
		var have, want []*VIP
		for _, v := range all {
			if w.IntN(2) == 0 {
				have = append(have, v)
			}
			if w.IntN(2) == 0 {
				want = append(want, pick(w, v, &VIP{Addr: v.Addr}))
			}
		}
		w.Shuffle(len(want), func(i, j int) {
			if w.IntN(3) == 0 {
				want[i], want[j] = want[j], want[i]
			}
		})
		sorted := slices.IsSortedFunc(want, func(a, b *VIP) int { return a.Addr.Compare(b.Addr) })
		if _, err := state.DiffVIPs(have, want); (err == nil) != sorted {
			t.Fatalf("sorted %v, error %v", sorted, err)
		}
	}
}
