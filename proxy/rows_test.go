package proxy

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// rules are those of a mode, and what it has learned.
func (s *scene) rules(m Mode) (rules, error) {
	if m == ModeIPTables {
		text := xtText(s.state)
		for _, k := range s.knows {
			text += k.set(&s.state) + " " + k.client.String() + "\n"
		}
		return parseXT(text)
	}
	all := state.RenderState(s.state)
	for _, k := range s.knows {
		all = append(all, k.element())
	}
	slices.SortFunc(all, state.Element.Compare)
	return parseNft(replaceScript(all))
}

// remember lets the kernel have learned that, and nothing else.
func (s *scene) remember(t *testing.T) {
	t.Helper()
	sock, err := nfnl.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	forgetAll(t, sock)
	b := newBatch(0)
	for _, k := range s.knows {
		if testMode == ModeNFTables {
			b.addElements([]state.Element{k.element()})
			continue
		}
		client := iptables.Entry{Addr: netip.PrefixFrom(k.client, k.client.BitLen())}
		if err := iptables.ChangeSet(sock, iptables.CommandAdd, k.set(&s.state), []iptables.Entry{client}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.commit(sock); err != nil {
		t.Fatal(err)
	}
}

// forgetAll empties what remembers clients.
func forgetAll(t *testing.T, s *nfnl.Socket) {
	t.Helper()
	if testMode == ModeNFTables {
		nftables(t, "flush map inet fanfare aff4; flush map inet fanfare aff6")
		return
	}
	names, err := iptables.SetNames(s)
	for _, name := range names {
		if strings.HasPrefix(name, iptables.AffinityPrefix(0)) || strings.HasPrefix(name, iptables.AffinityPrefix(1)) {
			err = errors.Join(err, iptables.RequestSet(s, 4, 0, 0, name, nil)) // IPSET_CMD_FLUSH
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Every kind of client, protocol and family, by reading the rules.
func TestTrace(t *testing.T) {
	for _, s := range scenes(t) {
		t.Run(s.name, func(t *testing.T) {
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
	view := s.view()
	for _, row := range s.rows {
		row = s.in(m, row)
		p, err := labPacket(row.from, row.network, row.to, view)
		if err != nil {
			t.Fatalf("%s: %v", row, err)
		}
		if got := trace(r, view, p); !slices.Equal(got, row.want) {
			t.Errorf("%s, %s: %q; want %q", m, row, got, row.want)
		}
	}
}

// A packet in the middle of a connection that conntrack does not know meets the same in
// both modes, whatever that is.
func TestTraceMidstream(t *testing.T) {
	for _, s := range scenes(t) {
		t.Run(s.name, func(t *testing.T) {
			nft, err := s.rules(ModeNFTables)
			if err != nil {
				t.Fatal(err)
			}
			xt, err := s.rules(ModeIPTables)
			if err != nil {
				t.Fatal(err)
			}
			view := s.view()
			for _, row := range s.rows {
				if row.network != "tcp" || s.in(ModeIPTables, row).want[0] != row.want[0] {
					continue
				}
				p, err := labPacket(row.from, row.network, row.to, view)
				if err != nil {
					t.Fatalf("%s: %v", row, err)
				}
				p.midstream = true
				if a, b := trace(nft, view, p), trace(xt, view, p); !slices.Equal(a, b) {
					t.Errorf("%s: %q by nftables and %q by iptables", row, a, b)
				}
			}
		})
	}
}

// in is a row where modes differ.
func (s *scene) in(m Mode, row sceneRow) sceneRow {
	if m != ModeIPTables {
		return row
	}
	if row.from == "node" && row.to.Addr() == at("other", 0) && !servesState(s.state, row.to.Addr()) {
		row.want = []string{"silence"} // it comes back from the router as a martian, before filter chains
	}
	return row
}

// The tracer passes over nothing that it does not understand.
func TestTraceRejectsUnknownSyntax(t *testing.T) {
	good := replaceScript(state.RenderState(State{Node: "n1"}))
	for _, bad := range []string{
		"ip ttl 1 drop", "ip daddr @unknown drop", "tcp flags syn drop", "meta l4proto tcp limit rate 1/second drop",
		"ip daddr { 192.0.2.1 } drop", "dnat to 10.0.0.1", "reject", "accept please",
	} {
		at := "\tchain refuse {\n"
		if _, err := parseNft(strings.Replace(good, at, at+bad+"\n", 1)); err == nil {
			t.Errorf("%q is understood", bad)
		}
	}
	if _, err := parseNft(good + "add element inet fanfare xsvc4 { 192.0.2.1 . tcp . 80 : 10:9 }\n"); err == nil {
		t.Error("a number that leads nowhere is understood")
	}
	if _, err := parseNft(good + "add element inet fanfare learn4 { 192.0.2.1 . tcp . 80 : goto learn9 }\n"); err == nil {
		t.Error("a verdict that leads nowhere is understood")
	}
	good = xtText(State{Node: "n1"})
	for table, all := range map[string][]string{
		"filter": {
			"-m ttl --ttl-eq 1 -j DROP", "-m set --match-set unknown dst -j DROP", "-m set --match-set fanfare-vips4 dst,src -j DROP",
			"-m set --match-set fanfare-vips4 dst --return-nomatch -j DROP", "-p tcp -m tcp --dport 80:90 -j DROP", "-p gre -j DROP",
			"-m conntrack --ctstate NEW -j DROP", "-m conntrack ! --ctstate INVALID -j DROP", "-d nowhere -j DROP", "-j LOG", "-j FANFARE-NOWHERE", "-g DROP",
			"-j REJECT", "-j REJECT --reject-with icmp-host-prohibited", "-j DNAT --to-destination 10.0.0.1", "-m addrtype --dst-type MULTICAST -j DROP",
			"--syn -j DROP", "-p tcp -m tcp --tcp-flags SYN SYN -j DROP", "-m limit --limit 1/second -j DROP",
		},
		"nat": {
			"-j DROP", "-j REJECT --reject-with tcp-reset", "-j DNAT --to-destination 10.0.0.1-10.0.0.9", "-j DNAT --to-destination 10.0.0.1 --persistent",
			"-j SNAT", "-j SET --add-set unknown src --exist", "-j SET --add-set fanfare-vips4 src", "-j MARK --set-mark 1", "-j MASQUERADE --to-ports 1-2",
			"-m statistic --mode often --every 2 -j RETURN", `-m bpf --bytecode "1,6 0 0" -j RETURN`, `-m bpf --bytecode "1,65535 0 0 0" -j RETURN`,
		},
		"raw": {"-j CT --zone 1", "-j NOTRACK", "-j DROP"},
	} {
		head := good + "# IPv4\n*" + table + "\n-A FANFARE-NEW "
		if _, err := parseXT(head + "-m set --match-set fanfare-vips4 dst -p tcp -m tcp --dport 80 -j RETURN\n"); err != nil {
			t.Errorf("table %s: %v", table, err)
		}
		for _, bad := range all {
			if _, err := parseXT(head + bad + "\n"); err == nil {
				t.Errorf("table %s: %q is understood", table, bad)
			}
		}
	}
	for _, bad := range []string{"-D PREROUTING 1", "fanfare-vips4 nothing", "fanfare-xdrop4 192.0.2.1,gre:80"} {
		if _, err := parseXT(good + bad + "\n"); err == nil {
			t.Errorf("%q is understood", bad)
		}
	}
}

// The same by real packets, one State after the other.
func TestPackets(t *testing.T) {
	onAll(t, func(t *testing.T) {
		playScenes(t, newLab(t), func(s scene) bool { return !s.besideIPVS() })
	})
}

// The node has the VIP, as kube-proxy in ipvs mode gives it every address of a
// Service, on an interface without a cable.
func TestPacketsBesideIPVS(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		l.node.Bridge("kube-ipvs0")
		playScenes(t, l, scene.besideIPVS)
	})
}

func (s scene) besideIPVS() bool {
	return slices.ContainsFunc(s.bound, func(b binding) bool { return b.iface == "kube-ipvs0" })
}

// playScenes sends the packets of those scenes that fit.
func playScenes(t *testing.T, l *lab, fit func(scene) bool) {
	t.Helper()
	p := newProxy(t)
	for _, s := range scenes(t) {
		if !fit(s) {
			continue
		}
		for _, b := range s.bound {
			prefix := netip.PrefixFrom(b.addr, b.addr.BitLen()).String()
			l.node.Addr(b.iface, prefix)
			l.router.Route(prefix, at("node", state.Family(b.addr)).String(), "")
		}
		mustSet(t, p, s.state)
		checkKernel(t, s.state)
		s.remember(t)
		swept(t, p) // else a port used again may go on with a flow of the scene before
		l.play(t, s)
		for _, v := range s.state.VIPs {
			for _, f := range l.flows(v.Addr) {
				if !f.DNAT && !s.binds(v.Addr) {
					t.Errorf("%s: a flow from %s to port %d of %s passed without a rule", s.name, f.Client, f.Port.Port, v.Addr)
				}
			}
		}
	}
}

func (s scene) binds(a netip.Addr) bool {
	return slices.ContainsFunc(s.bound, func(b binding) bool { return b.addr == a })
}

// play sends the packets of a scene. What could take the ICMP errors of another for
// its own is sent one after the other.
func (l *lab) play(t *testing.T, s scene) {
	t.Helper()
	type line struct {
		from, network string
		family        state.SetID
	}
	lines := make(map[line][]sceneRow)
	for _, row := range s.rows {
		row = s.in(testMode, row)
		k := line{row.from, row.network, state.Family(row.to.Addr())}
		lines[k] = append(lines[k], row)
	}
	start := time.Now()
	var wg sync.WaitGroup
	for _, rows := range lines {
		wg.Go(func() {
			for _, row := range rows {
				if got := l.playRow(row); !row.ok(got) {
					t.Errorf("%s: %s: %q; want %q", s.name, row, got, row.want)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%s: %d kinds of packets in %v", s.name, len(s.rows), time.Since(start).Round(time.Millisecond))
}

// maxTries is how often a packet is sent in order to see each of its outcomes: of
// four, one is missed once in 10^12 times.
const maxTries = 100

// ok says whether a row's outcomes are as they should be.
func (r sceneRow) ok(got []string) bool {
	if r.same {
		return len(got) == 1 && slices.Contains(r.want, got[0])
	}
	return slices.Equal(got, r.want)
}

// playRow sends a packet until all that should come of it has, and returns all that
// did, sorted.
func (l *lab) playRow(row sceneRow) []string {
	var got []string
	tries := maxTries
	if row.same {
		tries = 10
	}
	for range tries {
		one := l.playOnce(row)
		if i, seen := slices.BinarySearch(got, one); !seen {
			got = slices.Insert(got, i, one)
		}
		if len(got) == len(row.want) && !row.same || !slices.Contains(row.want, one) {
			break
		}
	}
	return got
}

func (l *lab) playOnce(row sceneRow) string {
	want := row.want[0]
	if len(row.want) > 1 && want == "silence" {
		want = row.want[1]
	}
	if row.network == "ping" {
		return l.ping(l.ns(row.from), row.to.Addr(), want)
	}
	return l.probe(l.ns(row.from), row.network, row.to, want)
}
