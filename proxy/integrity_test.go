package proxy

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
)

// A report makes the rules doubtful until a comparison that began after it. The first
// reason and the time of the first report stay.
func TestIntegrity(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	type step = func(i *integrity)
	doubt := func(reason string, second int) step { return func(i *integrity) { i.doubt(reason, at(second)) } }
	specify := func(found string) step { return func(i *integrity) { i.specify(found) } }
	// compare reads the kernel, and meanwhile something else happens.
	compare := func(second int, meanwhile ...step) step {
		return func(i *integrity) {
			mark := i.mark()
			for _, s := range meanwhile {
				s(i)
			}
			i.confirm(mark, at(second))
		}
	}
	for _, tt := range []struct {
		name  string
		steps []step
		want  Integrity
	}{
		{"at first", nil, Integrity{true, at(1), ""}},
		{"a comparison is no change", []step{compare(2)}, Integrity{true, at(1), ""}},
		{"nothing to specify", []step{specify("table missing")}, Integrity{true, at(1), ""}},
		{"a report", []step{doubt("flushed", 2)}, Integrity{false, at(2), "flushed"}},
		{"two reports", []step{doubt("flushed", 2), doubt("lost", 3)}, Integrity{false, at(2), "flushed"}},
		{"what was found", []step{doubt("lost", 2), specify("table missing")},
			Integrity{false, at(2), "table missing"}},
		{"compared after it", []step{doubt("lost", 2), compare(3)}, Integrity{true, at(3), ""}},
		{"another report meanwhile", []step{doubt("lost", 2), compare(3, doubt("flushed", 3))},
			Integrity{false, at(2), "lost"}},
		{"the first report meanwhile", []step{compare(3, doubt("flushed", 2))}, Integrity{false, at(2), "flushed"}},
		{"compared again", []step{doubt("lost", 2), compare(3, doubt("flushed", 3)), compare(4)},
			Integrity{true, at(4), ""}},
		{"a report after it", []step{doubt("lost", 2), compare(3), doubt("flushed", 5)},
			Integrity{false, at(5), "flushed"}},
	} {
		i := newIntegrity(at(1))
		for _, s := range tt.steps {
			s(i)
		}
		if got := i.get(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// awaitDoubt waits until the rules are reported to differ.
func awaitDoubt(t *testing.T, p *Proxy, what string) {
	t.Helper()
	for p.Intact().Intact {
		awaitChanged(t, p, what)
	}
}

// settleDoubts repairs until no report remains: one change may cause several reports.
func settleDoubts(t *testing.T, p *Proxy, s State) {
	t.Helper()
	for mustSet(t, p, s); !p.Intact().Intact; mustSet(t, p, s) {
		awaitChanged(t, p, "what makes the rules doubtful")
	}
}

// refused is a State that no Set accepts.
var refused = State{Node: "n1", Clients: LocalClients{Bridge: "a-name-that-is-too-long"}}

// mustRefuse makes a Set that fails before it changes anything.
func mustRefuse(t *testing.T, p *Proxy) {
	t.Helper()
	if err := p.Set(t.Context(), refused); err == nil {
		t.Fatal("an invalid State was set")
	}
}

// breakRules changes what is ours in a way that is noticed in each mode, and returns what of
// it is found.
func breakRules(t *testing.T, p *Proxy) (found string) {
	t.Helper()
	if testMode == ModeNFTables || testMode == "" {
		proxytest.NFT(t, "delete table inet fanfare")
		return "table missing"
	}
	iptablesRun(t, p.Status().Programs[0]+" -t nat -F")
	return "chains missing or changed"
}

// The rules are intact while they are as written, whatever else fails. When another program
// changes them they are not, until a Set repairs them.
func TestIntact(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{InterfacePrefix: "cali"})
		if got := p.Intact(); !got.Intact || got.Since.IsZero() {
			t.Errorf("before the first Set: %+v", got)
		}
		mustSet(t, p, s)
		mustRefuse(t, p)
		if got := p.Intact(); !got.Intact {
			t.Fatalf("after a Set that failed: %+v", got)
		}

		began := time.Now()
		found := breakRules(t, p)
		awaitDoubt(t, p, "damage")
		if got := p.Intact(); got.Since.Before(began) || !strings.Contains(got.Reason, "another program changed") {
			t.Errorf("reported: %+v", got)
		}
		mustRefuse(t, p)
		if got := p.Intact(); got.Intact || !strings.Contains(got.Reason, found) {
			t.Errorf("not repaired: %+v, want %q", got, found)
		}
		settleDoubts(t, p, s)
		checkKernel(t, s)
	})
}

// A report of a change that makes no difference, and of notifications that were lost, is
// settled by a comparison even in a Set that fails.
func TestIntactAfterAFalseReport(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{InterfacePrefix: "cali"})
		settleDoubts(t, p, s)
		p.watch.lost("notifications were lost")
		if got := p.Intact(); got.Intact || got.Reason != "notifications were lost" {
			t.Errorf("lost: %+v", got)
		}
		mustRefuse(t, p)
		if got := p.Intact(); !got.Intact {
			t.Errorf("compared: %+v", got)
		}
		// A Set that fails half-way leaves it open what the kernel has of the State that was
		// wanted. Here it has what it had.
		p.watch.lost("notifications were lost")
		real := p.rules.renderer
		p.rules.renderer = &stumbler{real, []error{os.ErrDeadlineExceeded}}
		if err := p.Set(t.Context(), s); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if got := p.Intact(); !got.Intact || p.rules.known {
			t.Errorf("compared after a Set that failed: %+v", got)
		}
		p.rules.renderer = real
		settleDoubts(t, p, s)
	})
}

// What a comparison finds without a report counts as well, if it cannot be repaired.
func TestNotIntactWithoutAReport(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		proxytest.NFT(t, "delete table inet fanfare")
		unlock := proxytest.LockTable(t)
		awaitDoubt(t, p, "another table")
		p.watch.take()
		p.watch.rules.confirm(p.watch.rules.mark(), time.Now()) // as if it had been lost
		p.Recheck()
		if err := p.Set(t.Context(), s); err == nil {
			t.Fatal("repaired a table of another program")
		}
		if got, want := p.Intact(), "schema unknown"; got.Intact || got.Reason != want {
			t.Errorf("%+v, want %q", got, want)
		}
		unlock()
		settleDoubts(t, p, s)
	})
}

// Obstacles, FORWARD that cannot be opened and a fast path that fails are news, and the rules
// are intact all the same.
func TestIntactBesideOtherChanges(t *testing.T) {
	onEach(t, func(t *testing.T) {
		newLab(t)
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{})
		settleDoubts(t, p, s)
		awaitObstacles(t, p, "")
		told := p.Intact()
		proxytest.NFT(t, "table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }")
		awaitChanged(t, p, "an obstacle")
		awaitObstacles(t, p, "chain inet filter forward")
		mustRefuse(t, p)
		proxytest.NFT(t, "delete table inet filter")
		awaitObstacles(t, p, "")
		if got := p.Intact(); got != told {
			t.Errorf("beside obstacles: %+v, before %+v", got, told)
		}
	})
}

// What is tried again wakes the caller, and says nothing about the rules.
func TestIntactBesideRetries(t *testing.T) {
	withIPTables(t, func(t *testing.T, lock string) {
		legacyOrSkip(t)
		path := &fakePath{fail: map[string]error{"grow": errors.New("no memory"), "rest": errors.New("no memory")}}
		p, err := New(t.Context(), Options{Mode: ModeNFTables, FastPath: path.opener()})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		told := p.Intact()
		dropForward(t, "legacy")
		held, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		s := proxytest.PacketState(LocalClients{})
		if err := p.Set(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if st := p.Status(); st.ForwardError == "" || st.FastPath.Error == "" {
			t.Fatalf("FORWARD: %q, fast path: %q; want both to fail", st.ForwardError, st.FastPath.Error)
		}
		for range 2 { // FORWARD and the fast path; the monitor may wake the caller too
			awaitChanged(t, p, "the next attempt")
			mustRefuse(t, p)
		}
		if got := p.Intact(); got != told {
			t.Errorf("beside attempts that fail: %+v, before %+v", got, told)
		}
		p.watch.lost("notifications were lost")
		if err := p.Set(t.Context(), State{Node: "n1",
			Owned: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}); err != nil {
			t.Fatal(err)
		}
		if got := p.Intact(); !got.Intact {
			t.Errorf("compared: %+v", got)
		}
	})
}
