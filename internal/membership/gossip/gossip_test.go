package gossip

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fanfare-lb/fanfare/internal/bubble"
	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// Fifty nodes find one another, notice who dies, is cut off, says farewell and comes
// back, and hear what is said.
func TestFifty(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newTown(t, 50)
		w.settle(w.names()...)
		w.await("all are there", w.names(), is("50"))

		if err := w.all["node-000"].SetMeta([]byte("eth0")); err != nil {
			t.Fatal(err)
		}
		if err := w.all["node-007"].Broadcast([]byte("released 192.0.2.1")); err != nil {
			t.Fatal(err)
		}
		w.await("metadata", w.names(), func(r *resident) error {
			if got := string(r.View().Members[0].Meta); got != "eth0" {
				return fmt.Errorf("metadata %q", got)
			}
			return nil
		})
		for _, name := range w.names("node-007") {
			if m := <-w.all[name].Received(); m.Node != "node-007" || string(m.Data) != "released 192.0.2.1" || len(w.all[name].Received()) > 0 {
				t.Errorf("%s has heard %s: %q, and %d more", name, m.Node, m.Data, len(w.all[name].Received()))
			}
		}

		if err := w.all["node-007"].Tell("node-008", []byte("to you alone")); err != nil {
			t.Fatal(err)
		}
		if m := <-w.all["node-008"].Received(); m.Node != "node-007" || string(m.Data) != "to you alone" {
			t.Errorf("node-008 has heard %s: %q", m.Node, m.Data)
		}
		if err := w.all["node-007"].Tell("node-999", nil); err == nil {
			t.Error("somebody was told who is not there")
		}

		w.hub.off(w.addr("node-001"), true)
		w.await("one is silent", w.names("node-001"), is("49 node-001 dead"))
		w.await("it misses somebody, too", []string{"node-001"}, func(r *resident) error {
			if got := states(r.View()); !strings.Contains(got, "dead") {
				return errors.New("sees " + got)
			}
			return nil
		})
		w.hub.off(w.addr("node-001"), false)
		if took := w.await("it is back", w.names(), is("50")); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}

		gone := w.all["node-002"]
		gone.Leave()
		gone.stop()
		w.await("one says farewell", w.names("node-002"), is("49 node-002 left"))
		w.settle("node-002")
		w.await("it is back", w.names(), is("50"))

		w.all["node-003"].stop()
		w.await("one dies", w.names("node-003"), is("49 node-003 dead"))
		w.all["node-004"].stop()
		w.settle("node-004")
		w.await("who starts anew is told", w.names("node-003"), is("49 node-003 dead"))
		for _, r := range w.all {
			r.Set(slices.Delete(slices.Clone(w.nodes), 3, 4))
		}
		w.await("its node is deleted", w.names("node-003"), is("49"))
		for _, name := range w.names("node-003") {
			if n := len(w.all[name].Received()); n > 0 {
				t.Errorf("%s has heard %d more", name, n)
			}
		}
	})
}

// A speaker that says farewell and starts again is there, also to those who have not
// heard how its first process ended when they hear of the second.
func TestRestartBeforeTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newTown(t, 3)
		w.settle(w.names()...)
		w.await("all are there", w.names(), is("3"))
		gone := w.all["node-002"]
		if err := gone.send(goodbye, nil); err != nil {
			t.Fatal(err)
		}
		gone.stop()
		w.await("it says farewell", w.names("node-002"), is("2 node-002 left"))
		w.settle("node-002")
		if took := w.await("it is back", w.names(), is("3")); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// A silent node is missed in less than half a second, mostly: by the timers alone, as
// if no processor were ever busy.
func TestSilenceIsNoticed(t *testing.T) {
	for _, tt := range []struct {
		nodes, deaths int
		limit         time.Duration // of the median
	}{{2, 10, 500 * time.Millisecond}, {3, 20, 500 * time.Millisecond}, {10, 10, 500 * time.Millisecond}, {50, 1, 1500 * time.Millisecond}} {
		t.Run(fmt.Sprint(tt.nodes), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newTown(t, tt.nodes)
				w.settle(w.names()...)
				w.await("all are there", w.names(), is(fmt.Sprint(tt.nodes)))
				var silent, back, whole []time.Duration
				for i := range tt.deaths {
					<-time.After(2 * time.Second) // Nobody is nervous any more.
					who := w.nodes[i%tt.nodes].Name
					w.hub.off(w.addr(who), true)
					silent = append(silent, w.await("silent", w.names(who), is(fmt.Sprintf("%d %s dead", tt.nodes-1, who))))
					w.hub.off(w.addr(who), false)
					returned := func(r *resident) error {
						for _, m := range r.View().Members {
							if m.Node == who && m.State != Alive {
								return errors.New(states(r.View()))
							}
						}
						return nil
					}
					back = append(back, w.await("back", w.names(who), returned))
					whole = append(whole, w.await("whole", w.names(), is(fmt.Sprint(tt.nodes))))
				}
				slices.Sort(silent)
				slices.Sort(back)
				slices.Sort(whole)
				n := tt.deaths
				t.Logf("%d nodes, all have noticed a silent one after %s, %s, %s (min, median, max), that it is back after %s, %s, %s, and it all others %s, %s, %s later",
					tt.nodes, silent[0], silent[n/2], silent[n-1], back[0], back[n/2], back[n-1], whole[0], whole[n/2], whole[n-1])
				if silent[n/2] > tt.limit || back[n/2] > 2*tt.limit {
					t.Errorf("that is too long")
				}
			})
		})
	}
}

// Who does not belong is no member, and said to somebody who can mend it.
func TestStrangers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newTown(t, 4)
		names := w.names("node-002", "node-003")
		w.settle(names...)
		w.await("both are there", names, is("2"))
		w.start("node-002", w.addr("node-002"), "another-key-that-nobody-else-has")
		w.await("another key", names, has("node node-002 (127.0.0.4) speaks to us with another key", "2"))
		if got := testutil.ToFloat64(w.all["node-000"].metrics.strangers); got == 0 {
			t.Error("no stranger was counted")
		}
		// It knows of no other place of node-003 than its own.
		w.start("node-003", netip.MustParseAddr("127.0.0.77"), testKey)
		w.await("another's name", names, has("somebody at 127.0.0.77 calls itself node-003, and node node-003 is at [127.0.0.5]", "2"))
		real := w.all["node-001"]
		w.start("node-001", netip.MustParseAddr("127.0.0.78"), testKey)
		w.all["node-001"] = real
		w.await("the name of one that is there", names[:1], has("somebody at 127.0.0.78 calls itself node-001, and node node-001 is at [127.0.0.3]", "2"))
		// One that is no node at all.
		w.nodes = append(w.nodes, Node{"elsewhere", []netip.Addr{netip.MustParseAddr("127.0.0.79")}})
		w.settle("elsewhere")
		w.await("it hears them", []string{"elsewhere"}, func(r *resident) error {
			if len(r.View().Members) < 3 {
				return errors.New(states(r.View()))
			}
			return nil
		})
		w.await("they do not hear it", names, is("2"))
	})
}

// A key changes, on one node after the other, and nobody is lost.
func TestKeyChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newTown(t, 3)
		w.settle(w.names()...)
		w.await("all are there", w.names(), is("3"))
		for _, name := range w.names() {
			if err := os.WriteFile(w.all[name].KeyFile, []byte("the-key-that-comes-after-the-first"), 0o600); err != nil {
				t.Fatal(err)
			}
			w.await(name+" has the key", []string{name}, func(r *resident) error {
				r.mu.Lock()
				defer r.mu.Unlock()
				if len(r.ring.GetKeys()) != 2 {
					return errors.New("has not read it")
				}
				return nil
			})
			for _, r := range w.all {
				if got := states(r.View()); got != "3" {
					t.Errorf("with a new key at %s, %s sees %s", name, r.Node, got)
				}
			}
		}
	})
}

// Without a key, or without a place to listen at, there are no members, and it is
// said. When it is mended, there are.
func TestNotListening(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newTown(t, 2)
		w.hub = nil
		w.start("node-000", w.addr("node-000"), "")
		w.start("node-001", netip.MustParseAddr("192.0.2.1"), testKey)
		w.await("no key", w.names("node-001"), has("has no key in it", "0"))
		w.await("no such address", w.names("node-000"), has("cannot listen at 192.0.2.1:7946", "0"))
		if err := w.all["node-000"].Broadcast(nil); err == nil {
			t.Error("somebody without a key has spoken")
		}
		w.all["node-001"].Set(w.nodes)
		if err := os.WriteFile(w.all["node-000"].KeyFile, []byte(testKey), 0o600); err != nil {
			t.Fatal(err)
		}
		w.await("both are mended", w.names(), is("2"))
	})
}

// A process that stands still is dead to the others after a second, in which its kernel
// accepts connections for it, and back when it goes on.
func TestFrozen(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newTown(t, 3)
		w.hub = nil
		w.settle("node-000", "node-001")
		path := w.all["node-000"].KeyFile
		cmd := exec.Command(os.Args[0], "-test.run=^TestResident$")
		cmd.Env = append(os.Environ(), "FANFARE_RESIDENT="+path)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
			}
		}()
		both := w.names("node-002")
		w.await("it is there", both, is("3"))
		for range 2 {
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if took := w.await("it stands still", both, is("2 node-002 dead")); took < patience*round {
				t.Errorf("it was borne for %s", took)
			}
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			w.await("it goes on", both, is("3"))
		}
	})
}

// TestResident is the process that TestFrozen freezes.
func TestResident(t *testing.T) {
	path := os.Getenv("FANFARE_RESIDENT")
	if path == "" {
		return // run by itself it has nothing to show
	}
	w := newTown(t, 3)
	g := New(Options{Node: "node-002", Port: 7946, KeyFile: path, Log: slog.New(slog.DiscardHandler)})
	g.Set(w.nodes)
	g.Run(context.Background()) // until it is killed
}

// What packets cost is what TrafficOf reckons with.
func TestTrafficIsMeasured(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 10
		w := newTown(t, n)
		for i := range w.nodes {
			w.nodes[i].Name = fmt.Sprintf("ip-10-0-0-%03d-abcd", i)
		}
		w.settle(w.names()...)
		w.await("all are there", w.names(), is(fmt.Sprint(n)))
		w.hub.mu.Lock()
		clear(w.hub.sent)
		w.hub.mu.Unlock()
		const seconds = 5
		<-time.After(seconds * time.Second)
		if err := w.all[w.nodes[0].Name].Tell(w.nodes[1].Name, make([]byte, 300)); err != nil {
			t.Fatal(err)
		}
		w.hub.mu.Lock()
		defer w.hub.mu.Unlock()
		// What docs/reference/layer2.md reckons with: our envelope, the name, a checksum and encryption.
		if size := 300 + 18 + len(w.nodes[0].Name) + 5 + 30; w.hub.sent[size] != 1 {
			t.Errorf("nobody was told in a packet of %d bytes: %v", size, w.hub.sent)
		}
		var sizes []int
		packets := 0
		for size, n := range w.hub.sent {
			sizes = append(sizes, size)
			packets += n
		}
		if each, want := float64(packets)/seconds/n, TrafficOf(n).Packets; math.Abs(each-want) > 0.2*want {
			t.Errorf("%.1f packets a second, reckoned with %.1f", each, want)
		}
		slices.SortFunc(sizes, func(a, b int) int { return w.hub.sent[b] - w.hub.sent[a] })
		usual := []int{sizes[0] + 28, sizes[1] + 28} // with the headers of IPv4 and UDP
		slices.Sort(usual)
		for i, reckoned := range []int{ackBytes, pingBytes} {
			if math.Abs(float64(usual[i]-reckoned)) > 0.1*float64(reckoned) {
				t.Errorf("packets of %v bytes, reckoned with %d and %d", usual, ackBytes, pingBytes)
			}
		}
	})
}

// More nodes hardly cost more.
func TestTrafficOf(t *testing.T) {
	for _, n := range []int{0, 1} {
		if got := TrafficOf(n); got != (Traffic{}) {
			t.Errorf("%d: %+v", n, got)
		}
	}
	few, many := TrafficOf(10), TrafficOf(1000)
	if few.Packets < 30 || few.Bytes < 3000 || many.Bytes > 3*few.Bytes || many.Packets > 2*few.Packets {
		t.Errorf("10 nodes: %+v, 1,000: %+v", few, many)
	}
}

// What the documentation says of the costs is what is reckoned.
func TestTrafficIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/layer2.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{3, 10, 100, 1000} {
		c := TrafficOf(n)
		row := fmt.Sprintf("| %d | %.0f | %.0f |", n, c.Packets, math.Round(c.Bytes/100)*100)
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/reference/layer2.md has no row %s", row)
		}
	}
}
