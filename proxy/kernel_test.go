package proxy

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func newProxy(t testing.TB) *Proxy {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	p, err := New(t.Context(), Options{Logger: log, Mode: testMode, FastPath: openFast(log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// prepared waits until what the last Set began is done.
func prepared(p *Proxy) {
	p.mu.Lock()
	running := p.preparer.running
	p.mu.Unlock()
	if running != nil {
		<-running.done
	}
}

func mustSet(t testing.TB, p *Proxy, s State) {
	t.Helper()
	if testFast != "" {
		s.Outward = []string{"eth0"} // of the lab's node
	}
	if err := p.Set(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	prepared(p)
	if f := p.Status().FastPath; f != nil && f.Error != "" {
		t.Fatalf("fast path: %s", f.Error)
	}
}

// checkKernel compares what the kernel holds with what s means.
func checkKernel(t *testing.T, s State) {
	t.Helper()
	sock, err := nfnl.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	h := renderer.Host{Sock: sock, Dumped: func() {}}
	x := &iptables.Renderer{Host: h}
	for _, i := range iptables.Installed() {
		x.Programs[i.Family()] = &i
	}
	r := map[Mode]renderer.Renderer{ModeNFTables: &nftables.Renderer{Host: h}, ModeIPTables: x}[testMode]
	if differs, err := r.Differs(t.Context(), s); differs != "" || err != nil {
		t.Fatalf("the kernel: %s, %v; want\n%s", differs, err, s)
	}
	if testMode == ModeIPTables && slices.ContainsFunc(proxytest.IPSets(t),
		func(name string) bool { return strings.Contains(name, "probe") }) {
		t.Error("a set that was only tried was left")
	}
}

// The kernel holds each State, whatever the State before it was: first along a
// path, then visiting the States in random order.
func TestStatesInRandomOrder(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		w := proxytest.NewWorld(7)
		states := []State{{Node: "n1"}}
		for range 25 {
			states = append(states, w.Next(states[len(states)-1]))
		}
		visit := slices.Clone(states)
		for range 40 {
			visit = append(visit, proxytest.Pick(w, states...))
		}
		for _, s := range visit {
			mustSet(t, p, s)
			checkKernel(t, s)
		}
		if s := p.Status(); s.Repairs != 0 {
			t.Errorf("%d repairs, %s; no program interfered", s.Repairs, s.Found)
		}
	})
}

// The policy may change where nothing else does: with all backends on the node no
// element tells one from the other, but chains of iptables have other names.
func TestPolicyAlone(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		for _, remote := range []Remote{Masquerade, Preserve, Masquerade} {
			f := Frontend{Protocol: TCP, Port: 80, External: Target{Remote: remote}, Internal: Target{Remote: Preserve}}
			b := Backend{Addr: netip.MustParseAddrPort("10.244.1.11:8080"), Node: "n1"}
			f.External.Backends, f.Internal.Backends = []Backend{b}, []Backend{b}
			s := State{
				Node: "n1", VIPs: proxytest.VIPsOf(&VIP{
					Addr: netip.MustParseAddr("192.0.2.1"), Frontends: []Frontend{f},
				}),
			}
			mustSet(t, p, s)
			checkKernel(t, s)
		}
	})
}
