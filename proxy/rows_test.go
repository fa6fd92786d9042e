package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// remember lets the kernel have learned that, and nothing else.
func (s *scene) remember(t *testing.T) {
	t.Helper()
	forgetAll(t)
	for _, k := range s.Knows {
		if testMode == ModeNFTables {
			set, element := k.Entry()
			proxytest.AddElements(t, set, []string{element})
		} else {
			proxytest.IPSet(t, "add "+ipsetOf(k, &s.State)+" "+k.Client.String())
		}
	}
}

// forgetAll empties what remembers clients.
func forgetAll(t *testing.T) {
	t.Helper()
	if testMode == ModeNFTables {
		for f := range state.SetID(2) {
			proxytest.NFT(t, "flush map inet fanfare "+state.AffinityMap(f))
		}
		return
	}
	for _, name := range proxytest.IPSets(t) {
		if strings.HasPrefix(name, "fanfare-aff") {
			proxytest.IPSet(t, "flush "+name)
		}
	}
}

// Every kind of client, protocol and family, by reading the rules.
func TestTrace(t *testing.T) {
	for _, s := range scenes(t) {
		t.Run(s.Name, func(t *testing.T) {
			for _, m := range []Mode{ModeNFTables, ModeIPTables} {
				s.trace(t, m)
			}
		})
	}
}

// trace leads the packets of a scene through the rules of a mode.
func (s *scene) trace(t *testing.T, m Mode) {
	t.Helper()
	r, err := s.rules(m)
	if err != nil {
		t.Fatalf("%s: %v", m, err)
	}
	view := s.View()
	for _, row := range s.Rows {
		row = s.In(m, row)
		p, err := proxytest.LabPacket(row.From, row.Network, row.To, view)
		if err != nil {
			t.Fatalf("%s: %v", row, err)
		}
		if got := proxytest.Trace(r, view, p); !slices.Equal(got, row.Want) {
			t.Errorf("%s, %s: %q; want %q", m, row, got, row.Want)
		}
	}
}

// A packet in the middle of a connection that conntrack does not know meets the same in
// both modes, whatever that is.
func TestTraceMidstream(t *testing.T) {
	for _, s := range scenes(t) {
		t.Run(s.Name, func(t *testing.T) {
			nft, err := s.rules(ModeNFTables)
			if err != nil {
				t.Fatal(err)
			}
			xt, err := s.rules(ModeIPTables)
			if err != nil {
				t.Fatal(err)
			}
			view := s.View()
			for _, row := range s.Rows {
				if row.Network != "tcp" || s.In(ModeIPTables, row).Want[0] != row.Want[0] {
					continue
				}
				p, err := proxytest.LabPacket(row.From, row.Network, row.To, view)
				if err != nil {
					t.Fatalf("%s: %v", row, err)
				}
				p.Midstream = true
				if a, b := proxytest.Trace(nft, view, p), proxytest.Trace(xt, view, p); !slices.Equal(a, b) {
					t.Errorf("%s: %q by nftables and %q by iptables", row, a, b)
				}
			}
		})
	}
}

// The tracer passes over nothing that it does not understand.
func TestTraceRejectsUnknownSyntax(t *testing.T) {
	good := nftables.Script(state.RenderState(State{Node: "n1"}))
	for _, bad := range []string{
		"ip ttl 1 drop", "ip daddr @unknown drop", "tcp flags syn drop", "meta l4proto tcp limit rate 1/second drop",
		"ip daddr { 192.0.2.1 } drop", "dnat to 10.0.0.1", "reject", "accept please",
	} {
		at := "\tchain refuse {\n"
		if _, err := proxytest.ParseNft(strings.Replace(good, at, at+bad+"\n", 1)); err == nil {
			t.Errorf("%q is understood", bad)
		}
	}
	if _, err := proxytest.ParseNft(good +
		"add element inet fanfare xsvc4 { 192.0.2.1 . tcp . 80 : 10:9 }\n"); err == nil {
		t.Error("a number that leads nowhere is understood")
	}
	if _, err := proxytest.ParseNft(good +
		"add element inet fanfare learn4 { 192.0.2.1 . tcp . 80 : goto learn9 }\n"); err == nil {
		t.Error("a verdict that leads nowhere is understood")
	}
	good = iptables.Text(State{Node: "n1"})
	for table, all := range map[string][]string{
		"filter": {
			"-m ttl --ttl-eq 1 -j DROP", "-m set --match-set unknown dst -j DROP",
			"-m set --match-set fanfare-vips4 dst,src -j DROP",
			"-m set --match-set fanfare-vips4 dst --return-nomatch -j DROP", "-p tcp -m tcp --dport 80:90 -j DROP",
			"-p gre -j DROP", "-m conntrack --ctstate NEW -j DROP", "-m conntrack ! --ctstate INVALID -j DROP",
			"-d nowhere -j DROP", "-j LOG", "-j FANFARE-NOWHERE", "-g DROP", "-j REJECT",
			"-j REJECT --reject-with icmp-host-prohibited",
			"-j DNAT --to-destination 10.0.0.1", "-m addrtype --dst-type MULTICAST -j DROP",
			"--syn -j DROP", "-p tcp -m tcp --tcp-flags SYN SYN -j DROP", "-m limit --limit 1/second -j DROP",
		},
		"nat": {
			"-j DROP", "-j REJECT --reject-with tcp-reset", "-j DNAT --to-destination 10.0.0.1-10.0.0.9",
			"-j DNAT --to-destination 10.0.0.1 --persistent", "-j SNAT", "-j SET --add-set unknown src",
			"-j SET --add-set fanfare-vips4 src --exist", "-j MARK --set-mark 1", "-j MASQUERADE --to-ports 1-2",
			"-m statistic --mode often --every 2 -j RETURN",
			`-m bpf --bytecode "1,6 0 0" -j RETURN`, `-m bpf --bytecode "1,65535 0 0 0" -j RETURN`,
		},
		"raw": {"-j CT --zone 1", "-j NOTRACK", "-j DROP"},
	} {
		head := good + "# IPv4\n*" + table + "\n-A FANFARE-NEW "
		if _, err := proxytest.ParseXT(head +
			"-m set --match-set fanfare-vips4 dst -p tcp -m tcp --dport 80 -j RETURN\n"); err != nil {
			t.Errorf("table %s: %v", table, err)
		}
		for _, bad := range all {
			if _, err := proxytest.ParseXT(head + bad + "\n"); err == nil {
				t.Errorf("table %s: %q is understood", table, bad)
			}
		}
	}
	for _, bad := range []string{"-D PREROUTING 1", "fanfare-vips4 nothing", "fanfare-xdrop4 192.0.2.1,gre:80"} {
		if _, err := proxytest.ParseXT(good + bad + "\n"); err == nil {
			t.Errorf("%q is understood", bad)
		}
	}
}

// The same by real packets, one State after the other.
func TestPackets(t *testing.T) {
	onAll(t, func(t *testing.T) {
		playScenes(t, newLab(t), func(s scene) bool { return !s.BesideIPVS() })
	})
}

// The node has the VIP, as kube-proxy in ipvs mode gives it every address of a
// Service, on an interface without a cable.
func TestPacketsBesideIPVS(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		l.Node.Bridge("kube-ipvs0")
		playScenes(t, l, scene.BesideIPVS)
	})
}

// playScenes sends the packets of those scenes that fit.
func playScenes(t *testing.T, l *lab, fit func(scene) bool) {
	t.Helper()
	p := newProxy(t)
	for _, s := range scenes(t) {
		if !fit(s) {
			continue
		}
		for _, b := range s.Bound {
			prefix := netip.PrefixFrom(b.Addr, b.Addr.BitLen()).String()
			l.Node.Addr(b.Iface, prefix)
			l.Router.Route(prefix, proxytest.At("node", state.Family(b.Addr)).String(), "")
		}
		mustSet(t, p, s.State)
		checkKernel(t, s.State)
		s.remember(t)
		swept(t, p) // else a port used again may go on with a flow of the scene before
		l.play(t, s)
		for v := range s.State.VIPs.All() {
			for _, f := range l.flows(v.Addr) {
				if !f.DNAT && !s.Binds(v.Addr) {
					t.Errorf("%s: a flow from %s to port %d of %s passed without a rule", s.Name, f.Client, f.Port.Port,
						v.Addr)
				}
			}
		}
	}
}

// play sends the packets of a scene. What could take the ICMP errors of another for
// its own is sent one after the other.
func (l *lab) play(t *testing.T, s scene) {
	t.Helper()
	type line struct {
		from, network string
		family        state.SetID
	}
	lines := make(map[line][]proxytest.SceneRow)
	for _, row := range s.Rows {
		row = s.In(testMode, row)
		k := line{row.From, row.Network, state.Family(row.To.Addr())}
		lines[k] = append(lines[k], row)
	}
	start := time.Now()
	var wg sync.WaitGroup
	for _, rows := range lines {
		wg.Go(func() {
			for _, row := range rows {
				if got := l.playRow(row); !row.Ok(got) {
					t.Errorf("%s: %s: %q; want %q", s.Name, row, got, row.Want)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%s: %d kinds of packets in %v", s.Name, len(s.Rows), time.Since(start).Round(time.Millisecond))
}

// maxTries is how often a packet is sent in order to see each of its outcomes: of
// four, one is missed once in 10^12 times.
const maxTries = 100

// playRow sends a packet until all that should come of it has, and returns all that
// did, sorted.
func (l *lab) playRow(row proxytest.SceneRow) []string {
	var got []string
	tries := maxTries
	if row.Same {
		tries = 10
	}
	for range tries {
		one := l.playOnce(row)
		if i, seen := slices.BinarySearch(got, one); !seen {
			got = slices.Insert(got, i, one)
		}
		if len(got) == len(row.Want) && !row.Same || !slices.Contains(row.Want, one) {
			break
		}
	}
	return got
}

func (l *lab) playOnce(row proxytest.SceneRow) string {
	want := row.Want[0]
	if len(row.Want) > 1 && want == "silence" {
		want = row.Want[1]
	}
	if row.Network == "ping" {
		return l.Ping(l.Ns(row.From), row.To.Addr(), want)
	}
	return l.Probe(l.Ns(row.From), row.Network, row.To, want)
}
