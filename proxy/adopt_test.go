package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
)

// A process that comes after another finds its table, says which addresses it
// forwards, and changes only what differs, without an interruption.
func TestAdoption(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		first := newProxy(t)
		if got := first.Adopted(); len(got) != 0 {
			t.Errorf("adopted %v from nothing", got)
		}
		s := proxytest.PacketState(LocalClients{Bridge: "cni0"})
		mustSet(t, first, s)
		conn := l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal))
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		checkKernel(t, s)

		second := newProxy(t)
		if want := []netip.Addr{proxytest.At("vip", 0), proxytest.At("vip", 1)}; !slices.Equal(second.Adopted(), want) {
			t.Errorf("adopted %v, want %v", second.Adopted(), want)
		}
		checkKernel(t, s) // New changes nothing
		mustSet(t, second, s)
		if got := second.Status(); got.Generation != 0 || got.Repairs != 0 {
			t.Errorf("for an equal state %d transactions and %d repairs", got.Generation, got.Repairs)
		}
		s.VIPs = proxytest.VIPsOf(s.VIPs.At(0))
		mustSet(t, second, s)
		checkKernel(t, s)
		if got := l.Ask(conn); got != "pod1 saw client" {
			t.Errorf("an old connection: %s", got)
		}
	})
}

// A table of another version is replaced whole, in one transaction: what goes
// through it goes on.
func TestAdoptionOfAnotherSchema(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		first := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, first, s)
		conn := l.Connect(l.Client, "tcp", 0, netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal))
		first.Close()
		schema := proxytest.Schema(t)
		proxytest.NFT(t, "delete chain inet fanfare "+schema+"\nadd chain inet fanfare schema-0-cafe-cafe\n"+
			"add map inet fanfare old { type ipv4_addr : verdict; }\nadd element inet fanfare vips4 { 192.0.2.200 }")

		second := newProxy(t)
		want := []netip.Addr{proxytest.At("vip", 0), netip.MustParseAddr("192.0.2.200"), proxytest.At("vip", 1)}
		if !slices.Equal(second.Adopted(), want) {
			t.Errorf("adopted %v, want %v", second.Adopted(), want)
		}
		stop := make(chan struct{})
		lost := make(chan string)
		go l.knock(stop, lost)
		mustSet(t, second, s)
		close(stop)
		if bad := <-lost; bad != "" {
			t.Errorf("while the table was replaced: %s", bad)
		}
		checkKernel(t, s)
		if got := proxytest.Schema(t); got != schema {
			t.Errorf("schema %s, want %s", got, schema)
		}
		if got := l.Ask(conn); got != "pod1 saw client" {
			t.Errorf("an old connection: %s", got)
		}
		if got := second.Status().Repairs; got != 0 {
			t.Errorf("%d repairs; nothing was broken", got)
		}
	})
}

// knock connects repeatedly until stop, and sends the first wrong outcome,
// else nothing.
func (l *lab) knock(stop <-chan struct{}, lost chan<- string) {
	bad := ""
	for {
		select {
		case <-stop:
			lost <- bad
			return
		default:
		}
		if got := l.Probe(l.Client, "tcp", netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal),
			""); got != "pod1 saw client" && bad == "" {
			bad = got
		}
	}
}

// Our own changes and those of other tables are no disturbance.
func TestOthersDoNotDisturb(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		w := proxytest.NewWorld(3)
		s := State{Node: "n1"}
		for range 20 {
			s = w.Next(s)
			mustSet(t, p, s)
		}
		proxytest.NFT(t, `table ip fanfare { chain a { }; }
			table inet other { set vips4 { type ipv4_addr; elements = { 1.1.1.1 }; }; }
			flush chain ip fanfare a`)
		// This notification comes after all earlier ones.
		proxytest.NFT(t, "add element inet fanfare vips4 { 203.0.113.1 }")
		awaitDamage(t, p, "a change")
		mustSet(t, p, s)
		if got := p.Status(); got.Repairs != 1 || !strings.Contains(got.Found, "203.0.113.1") {
			t.Errorf("%d repairs, found %q", got.Repairs, got.Found)
		}
		proxytest.NFT(t, "add table ip another")
		select {
		case <-p.Changed():
			t.Error("disturbed by another table, or by the repair")
		case <-time.After(50 * time.Millisecond):
		}
	})
}

// What is changed and not yet told is found when a transaction meets it.
func TestStaleKernel(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		if err := p.watch.conn.SetBPF([]bpf.RawInstruction{{Op: 0x6}}); err != nil { // ret #0: deaf from now on
			t.Fatal(err)
		}
		for _, script := range []string{
			"flush ruleset",
			"delete element inet fanfare xsvc4 { 192.0.2.1 . tcp . 80 }",
			"flush map inet fanfare xeps4",
			"flush set inet fanfare vips6",
		} {
			proxytest.NFT(t, script)
			want := State{Node: "n1"}
			mustSet(t, p, want)
			checkKernel(t, want)
			mustSet(t, p, s)
			checkKernel(t, s)
		}
	})
}

// A full check repairs what was never told.
func TestRecheck(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		proxytest.NFT(t, "flush set inet fanfare vips6")
		awaitChanged(t, p, "flush")
		p.watch.take() // as if it had been lost
		mustSet(t, p, s)
		if got := p.Status().Repairs; got != 0 {
			t.Fatalf("%d repairs without a reason to look", got)
		}
		p.Recheck()
		mustSet(t, p, s)
		checkKernel(t, s)
		if got := p.Status().Repairs; got != 1 {
			t.Errorf("%d repairs, want 1", got)
		}
	})
}

func TestCleanup(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		if err := Cleanup(t.Context()); err != nil {
			t.Errorf("of nothing: %v", err)
		}
		p := newProxy(t)
		mustSet(t, p, proxytest.PacketState(LocalClients{}))
		p.Close()
		if err := Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		if got := listTables(t); got != "" {
			t.Errorf("there is still %s", got)
		}
	})
}

// Without the right to change the kernel nothing is, and the error says why.
func TestBadStateChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		bad := s
		bad.VIPs = proxytest.WithVIPs(s.VIPs, &VIP{Addr: proxytest.At("other", 0)})
		bad.Owned = proxytest.Prefixes("192.0.2.99/24")
		err := p.Set(t.Context(), bad)
		if err == nil || !strings.Contains(err.Error(), "192.0.2.99") || p.Status().LastError == "" {
			t.Errorf("a prefix with bits set behind its length: %v; status %q", err, p.Status().LastError)
		}
		checkKernel(t, s)
		mustSet(t, p, s)
		if got := p.Status().LastError; got != "" {
			t.Errorf("afterwards: %s", got)
		}
	})
}
