package fastpath

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A pod's RST or ICMP error for a closed port reaches the client as the VIP's.
func TestClosedPort(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, each(state("pod1"), func(f *Frontend) {
			f.Backends[0].Addr = netip.AddrPortFrom(f.Backends[0].Addr.Addr(), 9)
		}))
		for _, family := range families {
			for _, network := range []string{"tcp", "udp"} {
				if got := l.probe(network, port("vip", family, 80)); got != "refused" {
					t.Errorf("%s: %s; want refused", network, got)
				}
			}
		}
		l.bypassed()
	})
}

// A connection to a removed backend is no longer translated, and reported. One to a draining
// backend continues, and new connections go to other backends.
func TestBackendRemoved(t *testing.T) {
	for _, family := range families {
		t.Run([]string{"IPv4", "IPv6"}[family], func(t *testing.T) {
			inNamespace(t, func(t *testing.T, l *lab) { l.backendGoes(family) })
		})
	}
}

func (l *lab) backendGoes(family int) {
	ended := make(chan []Flow, 10)
	o := l.options()
	o.Ended = func(f []Flow) { ended <- f }
	p := l.pathWith(o)
	l.set(p, state("pod1"))
	vip, pod := port("vip", family, 80), port("pod1", family, 8080)
	c, u := l.mustDial("tcp", 0, vip), l.mustDial("udp", 0, vip)
	ask(c, "?")
	ask(u, "?")

	l.set(p, each(state("pod2"), func(f *Frontend) {
		if f.Addr == vip && f.Protocol == TCP {
			f.Draining = []netip.AddrPort{pod}
		}
	}))
	l.await("the datagrams' flow to end", func() bool { return len(l.flows(p)) == 1 })
	if got := ask(c, "?"); got != "pod1 saw client" {
		l.t.Errorf("draining: %s", got)
	}
	if got := l.probe("tcp", vip); got != "pod2 saw client" {
		l.t.Errorf("new: %s", got)
	}
	if got := ask(u, "?"); got != "pod2 saw client" {
		l.t.Errorf("datagrams: %s", got)
	}
	l.bypassed()

	l.set(p, state("pod2"))
	select {
	case got := <-ended:
		if want := (Flow{netip.MustParseAddrPort(c.LocalAddr().String()), vip, pod, TCP}); len(got) != 1 ||
			got[0] != want {
			l.t.Errorf("%v ended; want %v", got, want)
		}
	case <-time.After(30 * time.Second):
		l.t.Fatal("nothing ended")
	}
	if _, err := c.Write([]byte("?")); err != nil {
		l.t.Error(err)
	}
	l.await("the rules to meet what is left of it", func() bool { return l.counted("vip") > 0 })
}

// A client may use its port for another connection as soon as one has ended.
func TestPortReuse(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1", "pod2", "pod3"))
		seen := make(map[string]bool)
		for i := range 40 {
			c := l.mustDial("tcp", 40000, port("vip", i%2, 80))
			seen[ask(c, "?")] = true
			// Half of the connections end by RST, half by FIN from both sides.
			if i%4 < 2 {
				_ = c.(*net.TCPConn).SetLinger(0)
				c.Close()
				continue
			}
			_ = c.(*net.TCPConn).CloseWrite()
			if _, err := io.ReadAll(c); err != nil {
				t.Fatal(err)
			}
			_ = c.(*net.TCPConn).SetLinger(0) // RST, so that no TIME_WAIT remains
			c.Close()
		}
		if len(seen) < 2 {
			t.Errorf("all connections have backend %v", seen)
		}
		l.bypassed()
	})
}

// A client may use one port for two VIPs with the same backend.
func TestOnePortTwoVIPs(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			for _, network := range []string{"tcp", "udp"} {
				a := l.mustDial(network, 40000, port("vip", family, 80))
				b := l.mustDial(network, 40000, port("vip2", family, 80))
				for range 3 {
					if x, y := ask(a, "?"), ask(b, "?"); x != "pod1 saw client" || y != x {
						t.Errorf("%s: %s, %s", network, x, y)
					}
				}
				if network == "tcp" {
					continue
				}
				// An ICMP error quotes the right one of the two.
				var port [2]string
				for i, c := range []net.Conn{a, b} {
					port[i] = p.flowOf(t, c).String()
				}
				if port[0] == port[1] {
					t.Errorf("the pod sees both as %s", port[0])
				}
			}
		}
		l.bypassed()
	})
}

// flowOf returns the client of a connection as its backend sees it.
func (d *Datapath) flowOf(t *testing.T, c net.Conn) netip.AddrPort {
	t.Helper()
	from, to := netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort(c.RemoteAddr().String())
	key := kernelTuple{
		Source: addressOf(from.Addr()), SourcePort: from.Port(),
		Destination: addressOf(to.Addr()), DestinationPort: to.Port(), Protocol: UDP, Direction: outward,
	}
	var f kernelFlow
	if err := d.kernel.Flows.Lookup(key, &f); err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(from.Addr(), f.ClientPort)
}

// UDP flows of the rules keep their backend when the fast path takes the frontend.
func TestSeedFromConntrack(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, each(state("pod1", "pod2", "pod3"), func(f *Frontend) { f.Take = false }))
		var open []net.Conn
		for _, family := range families {
			l.nft("table inet rules\ndelete table inet rules")
			l.rules(port("vip", family, 80), port("pod2", family, 8080))
			for range 8 {
				c := l.mustDial("udp", 0, port("vip", family, 80))
				if got := ask(c, "?"); got != "pod2 saw client" {
					t.Fatalf("by the rules: %s", got)
				}
				open = append(open, c)
			}
		}
		l.set(p, state("pod1", "pod2", "pod3"))
		l.nft("reset counters table inet watch")
		for _, c := range open {
			if got := ask(c, "?"); got != "pod2 saw client" {
				t.Errorf("taken over: %s", got)
			}
		}
		if n := l.counted("vip") + l.counted("pods"); n != 0 {
			t.Errorf("netfilter had %d packets of flows that were taken over", n)
		}
	})
}

// Without a lease, and between Shrink and Grow, existing flows continue and the rules get new
// ones.
func TestNoNewFlows(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		vip := port("vip", 0, 80)
		l.rules(vip, port("pod2", 0, 8081))
		c := l.mustDial("tcp", 0, vip)
		both := func(when, want string) {
			t.Helper()
			if got := ask(c, "?"); got != "pod1 saw client" {
				t.Errorf("%s: the old connection: %s", when, got)
			}
			if got := l.probe("tcp", vip); got != want {
				t.Errorf("%s: a new one: %s; want %s", when, got, want)
			}
		}
		both("with all", "pod1 saw client")
		if err := p.Shrink(t.Context(), State{}); err != nil {
			t.Fatal(err)
		}
		both("shrunk", "pod2 saw client")
		l.set(p, state("pod1"))
		both("grown", "pod1 saw client")
		if err := p.Close(); err != nil { // so that it does not renew the lease
			t.Fatal(err)
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(l.dir, version, "lease"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := m.Put(uint32(0), seconds()-1); err != nil {
			t.Fatal(err)
		}
		both("without a lease", "pod2 saw client")
		l.set(l.path(), state("pod1"))
		both("with one again", "pod1 saw client")
	})
}

// The error names the missing capability, and no pin remains.
func TestMissingCapabilities(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		without := func(bits ...uint) error {
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
				var all [2]unix.CapUserData
				header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
				err := unix.Capget(&header, &all[0])
				for _, bit := range bits {
					all[bit/32].Effective &^= 1 << (bit % 32)
				}
				if err = errors.Join(err, unix.Capset(&header, &all[0])); err == nil {
					_, err = New(t.Context(), l.options())
				}
				done <- err
			}()
			return <-done
		}
		pinned := func() []string {
			names, err := pins(l.dir).list()
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
			return names
		}
		for _, there := range []bool{false, true} {
			if there {
				l.set(l.path(), state("pod1"))
			}
			had := pinned()
			for name, bits := range map[string][]uint{
				"CAP_NET_ADMIN": {unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN},
				"CAP_BPF":       {unix.CAP_BPF, unix.CAP_SYS_ADMIN},
				"CAP_PERFMON":   {unix.CAP_PERFMON, unix.CAP_SYS_ADMIN},
			} {
				err := without(bits...)
				if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "the process lacks "+name+":") ||
					strings.Contains(err.Error(), "MEMLOCK") {
					t.Errorf("without %s: %v", name, err)
				}
				if now := pinned(); !slices.Equal(now, had) {
					t.Errorf("without %s: %v is pinned; before: %v", name, now, had)
				}
			}
			if _, err := os.Stat(l.dir); err == nil && !there {
				t.Error("an empty directory remains")
			}
		}
	})
}

// The error says why the fast path is not supported.
func TestUnsupported(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		_, err := New(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "x")})
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "not on a BPF file system: mount one") {
			t.Error(err)
		}
	})
}

// Status has the reason for each frontend that cannot be taken; others are taken.
func TestReasonsLeftToRules(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		s := state("pod1")
		s.Outward = []string{"eth0", "eth7", "lo"}
		s.VIPs = s.VIPs[:2]
		all := []*Frontend{&s.VIPs[0].Frontends[0], &s.VIPs[0].Frontends[1], &s.VIPs[1].Frontends[0],
			&s.VIPs[1].Frontends[1]}
		host := netip.AddrPortFrom(at("node", 0), 80)
		all[0].Backends = append(all[0].Backends, Backend{Addr: host, Weight: 1})
		all[1].Backends = nil
		all[2].Backends = []Backend{{Addr: netip.MustParseAddrPort("203.0.113.1:80")}}
		l.set(p, s)
		got := p.Status()
		want := []NotOffloaded{
			{all[0].Addr, TCP, "backend 10.0.1.1 is the node itself"},
			{all[1].Addr, UDP, "no backends"},
			{all[2].Addr, TCP, "no route to backend 203.0.113.1: network is unreachable"},
		}
		if !slices.Equal(got.NotOffloaded, want) {
			t.Errorf("left %+v; want %+v", got.NotOffloaded, want)
		}
		if len(got.Problems) != 2 || !strings.Contains(got.Problems[0], "eth7") ||
			!strings.Contains(got.Problems[1], "lo: its link type is loopback, not Ethernet") {
			t.Errorf("problems %q", got.Problems)
		}
		if got := l.probe("udp", all[3].Addr); got != "pod1 saw client" {
			t.Error(got)
		}
	})
}

// Open connections continue while frontends are added, changed and removed.
func TestFrontendChanges(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		c := l.mustDial("tcp", 0, port("vip", 0, 80))
		var stop atomic.Bool
		failed := make(chan string, 1)
		go func() {
			for !stop.Load() {
				if got := l.probe("tcp", port("vip", 1, 80)); !strings.HasSuffix(got, " saw client") {
					failed <- got
					return
				}
			}
			failed <- ""
		}()
		for i := range 30 {
			// one pod always remains
			pods := [][]string{{"pod1"}, {"pod1", "pod2"}, {"pod2", "pod3"}, {"pod1", "pod3"}}[i%4]
			l.set(p, each(state(pods...), func(f *Frontend) {
				for _, pod := range []string{"pod1", "pod2", "pod3"} {
					family := 0
					if f.Addr.Addr().Is6() {
						family = 1
					}
					if !slices.Contains(pods, pod) {
						f.Draining = append(f.Draining, port(pod, family, 8080))
					}
				}
			}))
			if got := ask(c, "?"); got != "pod1 saw client" {
				t.Fatalf("change %d: %s", i, got)
			}
		}
		stop.Store(true)
		if why := <-failed; why != "" {
			t.Errorf("a new connection: %s", why)
		}
		l.bypassed()
	})
}
