package gossip

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Fifty nodes find one another, detect a node that dies, is cut off, leaves and returns,
// and receive messages.
func TestFiftyNodes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 50)
		c.startAll(c.names()...)
		c.await("all are alive", c.names(), sees("50"))

		if err := c.running["node-000"].SetMeta([]byte("eth0")); err != nil {
			t.Fatal(err)
		}
		if err := c.running["node-007"].Broadcast([]byte("released 192.0.2.1")); err != nil {
			t.Fatal(err)
		}
		c.await("metadata", c.names(), func(r *testNode) error {
			if got := string(r.View().Members[0].Meta); got != "eth0" {
				return fmt.Errorf("metadata %q", got)
			}
			return nil
		})
		for _, name := range c.names("node-007") {
			if m := <-c.running[name].Received(); m.Node != "node-007" || string(m.Data) != "released 192.0.2.1" ||
				len(c.running[name].Received()) > 0 {
				t.Errorf("%s received %s: %q, and %d more", name, m.Node, m.Data, len(c.running[name].Received()))
			}
		}

		if err := c.running["node-007"].Send("node-008", []byte("to you alone")); err != nil {
			t.Fatal(err)
		}
		if m := <-c.running["node-008"].Received(); m.Node != "node-007" || string(m.Data) != "to you alone" {
			t.Errorf("node-008 received %s: %q", m.Node, m.Data)
		}
		if err := c.running["node-007"].Send("node-999", nil); err == nil {
			t.Error("Send to an unknown node returned no error")
		}

		c.network.partition(c.addr("node-001"), true)
		c.await("one is cut off", c.names("node-001"), sees("49 node-001 dead"))
		c.await("it takes others for dead, too", []string{"node-001"}, func(r *testNode) error {
			if got := states(r.View()); !strings.Contains(got, "dead") {
				return errors.New("sees " + got)
			}
			return nil
		})
		c.network.partition(c.addr("node-001"), false)
		if took := c.await("it is back", c.names(), sees("50")); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}

		gone := c.running["node-002"]
		gone.Leave()
		gone.stop()
		c.await("one leaves", c.names("node-002"), sees("49 node-002 left"))
		c.startAll("node-002")
		c.await("it is back", c.names(), sees("50"))

		c.running["node-003"].stop()
		c.await("one dies", c.names("node-003"), sees("49 node-003 dead"))
		c.running["node-004"].stop()
		c.startAll("node-004")
		c.await("a node that restarts learns of it", c.names("node-003"), sees("49 node-003 dead"))
		for _, r := range c.running {
			r.Set(slices.Delete(slices.Clone(c.nodes), 3, 4))
		}
		c.await("its node is deleted", c.names("node-003"), sees("49"))
		for _, name := range c.names("node-003") {
			if n := len(c.running[name].Received()); n > 0 {
				t.Errorf("%s received %d more", name, n)
			}
		}
	})
}

// A speaker that leaves and restarts is alive, also for nodes that learn of the second
// process before the end of the first.
func TestRestartSoonAfterLeave(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 3)
		c.startAll(c.names()...)
		c.await("all are alive", c.names(), sees("3"))
		gone := c.running["node-002"]
		if err := gone.broadcast(kindLeave, nil); err != nil {
			t.Fatal(err)
		}
		gone.stop()
		c.await("it leaves", c.names("node-002"), sees("2 node-002 left"))
		c.startAll("node-002")
		if took := c.await("it is back", c.names(), sees("3")); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// The median time to detect a dead node is below half a second, by the timers alone: in the
// bubble no processor is ever busy.
func TestDetectionTime(t *testing.T) {
	for _, tt := range []struct {
		nodes, deaths int
		limit         time.Duration // of the median
	}{{2, 10, 500 * time.Millisecond}, {3, 20, 500 * time.Millisecond}, {10, 10, 500 * time.Millisecond},
		{50, 1, 1500 * time.Millisecond}} {
		t.Run(fmt.Sprint(tt.nodes), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := newTestCluster(t, tt.nodes)
				c.startAll(c.names()...)
				c.await("all are alive", c.names(), sees(fmt.Sprint(tt.nodes)))
				var silent, back, whole []time.Duration
				for i := range tt.deaths {
					<-time.After(2 * time.Second) // No node is suspect or has raised its awareness.
					name := c.nodes[i%tt.nodes].Name
					c.network.partition(c.addr(name), true)
					silent = append(silent, c.await("silent", c.names(name),
						sees(fmt.Sprintf("%d %s dead", tt.nodes-1, name))))
					c.network.partition(c.addr(name), false)
					returned := func(r *testNode) error {
						for _, m := range r.View().Members {
							if m.Node == name && m.State != Alive {
								return errors.New(states(r.View()))
							}
						}
						return nil
					}
					back = append(back, c.await("back", c.names(name), returned))
					whole = append(whole, c.await("whole", c.names(), sees(fmt.Sprint(tt.nodes))))
				}
				slices.Sort(silent)
				slices.Sort(back)
				slices.Sort(whole)
				n := tt.deaths
				t.Logf("%d nodes: dead after %s, %s, %s (min, median, max), back after %s, %s, %s, and all alive in "+
					"all views %s, %s, %s later",
					tt.nodes, silent[0], silent[n/2], silent[n-1], back[0], back[n/2], back[n-1], whole[0], whole[n/2],
					whole[n-1])
				if silent[n/2] > tt.limit || back[n/2] > 2*tt.limit {
					t.Errorf("want a median of %s at most, and twice that to return", tt.limit)
				}
			})
		})
	}
}

// A node with another key, another name or without a Node is not a member, and is reported.
func TestUnknownSenders(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 4)
		names := c.names("node-002", "node-003")
		c.startAll(names...)
		c.await("both are alive", names, sees("2"))
		c.start("node-002", c.addr("node-002"), "another-key-of-some-other-cluster")
		c.await("another key", names, seesProblem("node node-002 (127.0.0.4) sends messages with another key", "2"))
		if got := testutil.ToFloat64(c.running["node-000"].metrics.rejected); got == 0 {
			t.Error("no rejected message was counted")
		}
		// It has only its own address of node-003.
		c.start("node-003", netip.MustParseAddr("127.0.0.77"), testKey)
		c.await("an address of no node", names,
			seesProblem("127.0.0.77, which is the InternalIP of no Node, sends to port 7874", "2"))
		real := c.running["node-001"]
		c.start("node-001", c.addr("node-003"), testKey)
		c.running["node-001"] = real
		c.await("the name of an alive node", names[:1],
			seesProblem("a speaker at 127.0.0.5 uses the name node-001, but node node-001 has the "+
				"addresses [127.0.0.3]", "2"))
		// A speaker without a Node learns nothing.
		c.nodes = append(c.nodes, Node{"elsewhere", []netip.Addr{netip.MustParseAddr("127.0.0.79")}})
		c.startAll("elsewhere")
		c.await("they reject it", names, seesProblem("127.0.0.79, which is the InternalIP of no Node", "2"))
		c.await("it receives nothing", []string{"elsewhere"}, sees("1"))
	})
}

// A key changes on one node after the other, and no node is dead meanwhile.
func TestKeyChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 3)
		c.startAll(c.names()...)
		c.await("all are alive", c.names(), sees("3"))
		for _, name := range c.names() {
			if err := os.WriteFile(c.running[name].KeyFile, []byte("the-key-that-comes-after-the-first"),
				0o600); err != nil {
				t.Fatal(err)
			}
			c.await(name+" has the key", []string{name}, func(r *testNode) error {
				if len(r.keysInUse.Load().accepted) != 2 {
					return errors.New("has not read it")
				}
				return nil
			})
			for _, r := range c.running {
				if got := states(r.View()); got != "3" {
					t.Errorf("with a new key at %s, %s sees %s", name, r.Node, got)
				}
			}
		}
	})
}

// Without a key or an address to listen at there are no members, and the problem is
// reported. When it is corrected, there are members.
func TestNotListening(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := newTestCluster(t, 2)
		c.network = nil
		c.start("node-000", c.addr("node-000"), "")
		c.start("node-001", netip.MustParseAddr("192.0.2.1"), testKey)
		c.await("no key", c.names("node-001"), seesProblem("has no key in it", "0"))
		c.await("no such address", c.names("node-000"), seesProblem("cannot listen at 192.0.2.1:7874", "0"))
		if err := c.running["node-000"].Broadcast(nil); err == nil {
			t.Error("a node without a key sent a message")
		}
		c.running["node-001"].Set(c.nodes)
		if err := os.WriteFile(c.running["node-000"].KeyFile, []byte(testKey), 0o600); err != nil {
			t.Fatal(err)
		}
		c.await("both are corrected", c.names(), sees("2"))
	})
}

// A suspended process is dead after a second, in which its kernel accepts connections, and
// back when it continues.
func TestSuspendedProcess(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := newTestCluster(t, 3)
		c.network = nil
		c.startAll("node-000", "node-001")
		path := c.running["node-000"].KeyFile
		cmd := exec.Command(os.Args[0], "-test.run=^TestSuspendedProcessHelper$")
		cmd.Env = append(os.Environ(), "FANFARE_GOSSIP_HELPER="+path)
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
		both := c.names("node-002")
		c.await("it is alive", both, sees("3"))
		for range 2 {
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if took := c.await("it is suspended", both, sees("2 node-002 dead")); took < maxRounds*round {
				t.Errorf("it was dead after %s, want %s or more", took, maxRounds*round)
			}
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			c.await("it continues", both, sees("3"))
		}
	})
}

// TestSuspendedProcessHelper is the process that TestSuspendedProcess suspends.
func TestSuspendedProcessHelper(t *testing.T) {
	path := os.Getenv("FANFARE_GOSSIP_HELPER")
	if path == "" {
		return // It is not a test.
	}
	c := newTestCluster(t, 3)
	g := New(Options{Node: "node-002", Port: 7874, KeyFile: path, Log: slog.New(slog.DiscardHandler)})
	g.Set(c.nodes)
	g.Run(context.Background()) // until it is killed
}
