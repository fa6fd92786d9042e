package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
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
		s := packetState(LocalClients{Bridge: "cni0"})
		mustSet(t, first, s)
		conn := l.connect(l.client, "tcp", 0, netip.AddrPortFrom(at("vip", 0), portLocal))
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		checkKernel(t, s)

		second := newProxy(t)
		if want := []netip.Addr{at("vip", 0), at("vip", 1)}; !slices.Equal(second.Adopted(), want) {
			t.Errorf("adopted %v, want %v", second.Adopted(), want)
		}
		checkKernel(t, s) // New changes nothing
		mustSet(t, second, s)
		if got := second.Status(); got.Generation != 0 || got.Repairs != 0 {
			t.Errorf("for an equal state %d transactions and %d repairs", got.Generation, got.Repairs)
		}
		s.VIPs = s.VIPs[:1]
		mustSet(t, second, s)
		checkKernel(t, s)
		if got := l.ask(conn); got != "pod1 saw client" {
			t.Errorf("an old connection: %s", got)
		}
	})
}

// A table of another version is replaced whole, in one transaction: what goes
// through it goes on.
func TestAdoptionOfAnotherSchema(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		l := newLab(t)
		first := newProxy(t)
		s := packetState(LocalClients{})
		mustSet(t, first, s)
		conn := l.connect(l.client, "tcp", 0, netip.AddrPortFrom(at("vip", 0), portLocal))
		first.Close()
		schema := schemaOf(t)
		nftables(t, "delete chain inet fanfare "+schema+"\nadd chain inet fanfare schema-0-cafe-cafe\n"+
			"add map inet fanfare old { type ipv4_addr : verdict; }\nadd element inet fanfare vips4 { 192.0.2.200 }")

		second := newProxy(t)
		want := []netip.Addr{at("vip", 0), netip.MustParseAddr("192.0.2.200"), at("vip", 1)}
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
		if got := schemaOf(t); got != schema {
			t.Errorf("schema %s, want %s", got, schema)
		}
		if got := l.ask(conn); got != "pod1 saw client" {
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
		if got := l.probe(l.client, "tcp", netip.AddrPortFrom(at("vip", 0), portLocal), ""); got != "pod1 saw client" && bad == "" {
			bad = got
		}
	}
}

func schemaOf(t *testing.T) string {
	t.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := readTable(s)
	if err != nil {
		t.Fatal(err)
	}
	return got.schema
}

// Our own changes and those of other tables are no disturbance.
func TestOthersDoNotDisturb(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		w := newWorld(3)
		s := State{Node: "n1"}
		for range 20 {
			s = w.next(s)
			mustSet(t, p, s)
		}
		nftables(t, `table ip fanfare { chain a { }; }
			table inet other { set vips4 { type ipv4_addr; elements = { 1.1.1.1 }; }; }
			flush chain ip fanfare a`)
		// This notification comes after all earlier ones.
		nftables(t, "add element inet fanfare vips4 { 203.0.113.1 }")
		awaitChanged(t, p, "a change")
		mustSet(t, p, s)
		if got := p.Status(); got.Repairs != 1 || !strings.Contains(got.Found, "203.0.113.1") {
			t.Errorf("%d repairs, found %q", got.Repairs, got.Found)
		}
		nftables(t, "add table ip another")
		select {
		case <-p.Changed():
			t.Error("disturbed by another table, or by the repair")
		case <-time.After(50 * time.Millisecond):
		}
	})
}

// What is changed and not yet told is found when a transaction meets it.
func TestStaleKernel(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		s := packetState(LocalClients{})
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
			nftables(t, script)
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
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		s := packetState(LocalClients{})
		mustSet(t, p, s)
		nftables(t, "flush set inet fanfare vips6")
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
	inNamespace(t, func(t *testing.T) {
		if err := Cleanup(t.Context()); err != nil {
			t.Errorf("of nothing: %v", err)
		}
		p := newProxy(t)
		mustSet(t, p, packetState(LocalClients{}))
		p.Close()
		if err := Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		s, err := nfnl.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got, err := readTable(s); err != nil || got.found {
			t.Errorf("the table is still there: %v, %v", got.found, err)
		}
	})
}

// Without the right to change the kernel nothing is, and the error says why.
func TestBadStateChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		s := packetState(LocalClients{})
		mustSet(t, p, s)
		bad := s
		bad.VIPs = append(slices.Clone(s.VIPs), &VIP{Addr: at("other", 0)})
		err := p.Set(t.Context(), bad)
		if err == nil || !strings.Contains(err.Error(), "192.0.2.99") || p.Status().LastError == "" {
			t.Errorf("unsorted VIPs: %v; status %q", err, p.Status().LastError)
		}
		checkKernel(t, s)
		mustSet(t, p, s)
		if got := p.Status().LastError; got != "" {
			t.Errorf("afterwards: %s", got)
		}
	})
}
