package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

const frrBFDConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.2 timers connect 1
 neighbor 10.0.0.2 bfd 3 50 50
 neighbor fd00::2 remote-as 65010
 neighbor fd00::2 bfd 3 50 50
 neighbor fd00::2 timers connect 1
`

// So slow that a busy machine is not taken for a silent one.
var (
	slowBFD          = BFD{Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 7}
	frrSlowBFDConfig = strings.ReplaceAll(frrBFDConfig, "3 50 50", "7 300 300")
)

// bfdSession has a hold time that plays no part.
func bfdSession(peer, source string) Session {
	return Session{
		Name: "tor1", PeerAddress: netip.MustParseAddr(peer), PeerASN: 65001,
		SourceAddress: netip.MustParseAddr(source), HoldTime: 10 * time.Minute, ConnectTime: time.Second, BFD: fastBFD,
	}
}

func upWithBFD(s *Server) bool {
	st := s.sessionStatus("tor1")
	return st.State == Established && st.BFD != nil && st.BFD.State == "Up"
}

// signal sends a signal to a daemon of the router.
func (r *frr) signal(daemon string, sig syscall.Signal) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, daemon+".pid"))
	must(r.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(r.t, err)
	must(r.t, syscall.Kill(pid, sig))
}

// A router that falls silent is noticed, over IPv4 and IPv6, and comes back.
func TestFRRBFD(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		r := startFRRWith(t, frrBFDConfig, "bfdd")
		for _, c := range []struct{ peer, source string }{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
			t.Run(c.peer, func(t *testing.T) {
				s := newServer(t, Options{})
				_, err := s.Set(t.Context(), state([]Session{bfdSession(c.peer, c.source)}, routes("192.0.2.1/32")))
				must(t, err)
				eventually(t, "BFD up", func() bool {
					return upWithBFD(s) && s.sessionStatus("tor1").BFD.Detection == 150*time.Millisecond
				})
				before := s.sessionStatus("tor1")
				r.signal("bfdd", syscall.SIGSTOP)
				took := within(t, time.Minute, "silence noticed",
					func() bool { return s.sessionStatus("tor1").Flaps > before.Flaps })
				r.signal("bfdd", syscall.SIGCONT)
				t.Logf("a silent router is noticed after %s at 3x50 ms", took.Round(time.Millisecond))
				if st := s.sessionStatus("tor1"); st.BFD.Flaps <= before.BFD.Flaps ||
					st.LossReason != "BFD: nothing received from the router for 150ms" {
					t.Errorf("it was not BFD: %s", st.LossReason)
				}
				eventually(t, "BFD up again", func() bool { return upWithBFD(s) })

				must(t, s.Close(t.Context(), Withdraw))
				eventually(t, "withdrawal", func() bool { return r.kernel() == "" })
			})
		}
	})
}

// A node that is stopped in its tracks loses its routes in far less than any hold
// time; when it goes on, its session comes back once and stays: nothing from before
// the stop ends it again.
func TestFRRBFDFreeze(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		r := startFRRWith(t, frrSlowBFDConfig, "bfdd")
		node := startNode(t, "plain")
		bfd := func() string { return r.vtysh("-c", "show bfd peers brief") }
		// Connections are counted by the router, which has seen all of them.
		drops := func() string {
			_, text, _ := strings.Cut(r.vtysh("-c", "show bgp neighbors 10.0.0.2"), "Connections established ")
			line, _, _ := strings.Cut(text, "\n")
			return line
		}
		up := func() bool {
			return r.kernel() == "192.0.2.1/32 via 10.0.0.2" && strings.Contains(bfd(), "up")
		}
		eventually(t, "route and BFD", up)
		for i := 1; i <= 3; i++ {
			must(t, node.Process.Signal(syscall.SIGSTOP))
			took := within(t, time.Minute, "route gone", func() bool { return r.kernel() == "" })
			t.Logf("the route of a silent node is gone after %s at 7x300 ms", took.Round(time.Millisecond))
			must(t, node.Process.Signal(syscall.SIGCONT))
			eventually(t, "route and BFD again", up)
			r.happened()
			// BFD up is later than anything that the stop could have left behind.
			want := fmt.Sprintf("%d; dropped %d", i+1, i)
			begin := time.Now()
			eventually(t, "a second in peace", func() bool {
				if got := drops(); got != want {
					t.Fatalf("connections established %s, want %s", got, want)
				}
				return time.Since(begin) > time.Second
			})
			if events := r.happened(); len(events) != 0 {
				t.Errorf("after it came back: %v", events)
			}
		}
	})
}

// BFD is taken off one end: off the router, which says nothing but "down", and the
// session is reset once; and off the node, which signals AdminDown: then it is reset,
// as after any change, and once more if the router is late to understand. Afterwards
// it stays, without BFD.
func TestFRRBFDRemoved(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		r := startFRRWith(t, frrSlowBFDConfig, "bfdd")
		s := newServer(t, Options{})
		conf := bfdSession("10.0.0.1", "10.0.0.2")
		conf.BFD = slowBFD
		set := func() {
			t.Helper()
			_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
			must(t, err)
		}
		configure := func(line string) {
			r.vtysh("-c", "configure terminal", "-c", "router bgp 65001", "-c", line)
		}
		set()
		eventually(t, "BFD up", func() bool { return upWithBFD(s) })

		configure("no neighbor 10.0.0.2 bfd")
		eventually(t, "session without BFD", func() bool {
			st := s.sessionStatus("tor1")
			return st.Flaps == 1 && st.State == Established && !st.BFD.Up()
		})
		if st := s.sessionStatus("tor1").BFD; st.Flaps != 1 ||
			st.Reason != "the router says that it does not hear this node" {
			t.Errorf("BFD: %+v", st)
		}
		configure("neighbor 10.0.0.2 bfd 7 300 300")
		eventually(t, "BFD up again", func() bool { return upWithBFD(s) })
		if st := s.sessionStatus("tor1"); st.Flaps != 1 {
			t.Errorf("lost %d times: %s", st.Flaps, st.LastError)
		}

		conf.BFD = BFD{}
		set()
		eventually(t, "session without BFD on this side", func() bool {
			return s.sessionStatus("tor1").State == Established && r.kernel() != "" &&
				strings.Contains(r.vtysh("-c", "show bfd peers brief"), "down")
		})
		// FRR may process AdminDown after the session was reset, and closes it.
		eventually(t, "two seconds in peace", func() bool {
			st := s.sessionStatus("tor1")
			return st.State == Established && time.Since(st.Since) > 2*time.Second
		})
		st := s.sessionStatus("tor1")
		if st.BFD != nil || st.Flaps > 1 || st.Flaps == 1 &&
			st.LastError != "router ended the session: Cease/BFD Down received" {
			t.Errorf("status: %+v", st)
		}
		eventually(t, "route", func() bool { return r.kernel() == "192.0.2.1/32 via 10.0.0.2" })
	})
}

const frrSecureBFDConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.11 remote-as 65010
 neighbor 10.0.0.11 bfd 7 300 300
 neighbor 10.0.0.11 ttl-security hops 1
`

// With ttl-security FRR speaks BFD as with a router several hops away, which no host here
// receives. The session is up all the same, and BFD says what is in its way.
func TestFRRBFDWithGTSM(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrSecureBFDConfig, "bfdd")
		nstest.Node(t).Addr("uplink", "10.0.0.11/24")
		s := newServer(t, Options{})
		conf := bfdSession("10.0.0.1", "10.0.0.11")
		conf.BFD, conf.TTLSecurityHops = slowBFD, 1
		_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
		must(t, err)
		eventually(t, "route", func() bool { return r.kernel() == "192.0.2.1/32 via 10.0.0.11" })
		// A release of FRR that gets it right passes, too.
		eventually(t, "BFD, or why there is none", func() bool {
			st := s.sessionStatus("tor1").BFD
			multihop := strings.Contains(r.vtysh("-c", "show bfd peers"), "multihop")
			return st != nil && (st.Up() && !multihop ||
				!st.Up() && multihop && strings.Contains(st.Reason, "have either bfd or ttlSecurityHops"))
		})
		if st := s.sessionStatus("tor1"); st.State != Established || st.Flaps != 0 {
			t.Errorf("status: %+v", st)
		}
	})
}

// A node that has crashed and restarts, faster than BFD notices, finds that the router
// has kept its routes, and its new session stays. So does one that says goodbye.
func TestFRRBFDRestart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		r := startFRRWith(t, frrSlowBFDConfig, "bfdd")
		up := func() bool {
			return r.kernel() == "192.0.2.1/32 via 10.0.0.2" &&
				strings.Contains(r.vtysh("-c", "show bfd peers brief"), "up")
		}
		node := startNode(t, "graceful")
		eventually(t, "route and BFD", up)
		r.happened()
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			must(t, node.Process.Signal(sig))
			_ = node.Wait() // its exit status after the kill
			node = startNode(t, "restarting")
			eventually(t, "BFD noticed", func() bool { return !up() })
			eventually(t, "route and BFD again", up)
			begin := time.Now()
			eventually(t, "a second in peace", func() bool { return time.Since(begin) > time.Second })
			if events := r.happened(); len(events) != 0 {
				t.Errorf("%s, and another process: %v", sig, events)
			}
		}
	})
}

// aNode says to a process of this test that it is a node, and of which kind.
const aNode = "FANFARE_TEST_NODE"

// startNode starts a node in a process of its own, until the test ends.
func startNode(t *testing.T, kind string, flags ...string) *exec.Cmd {
	t.Helper()
	node := exec.Command(os.Args[0], append([]string{"-test.run=^TestNode$", "-test.v"}, flags...)...)
	node.Env = append(os.Environ(), aNode+"="+kind)
	node.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, over := make(chan error, 1), make(chan struct{})
	go func() {
		// The thread that starts a process with Pdeathsig must outlive it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- node.Start()
		<-over
	}()
	must(t, <-started)
	t.Cleanup(func() { _ = node.Process.Kill(); _ = node.Wait(); close(over) })
	return node
}

// TestNode is a node in a process that can be stopped and killed. Told to end, it
// leaves its routes behind.
func TestNode(t *testing.T) {
	kind := os.Getenv(aNode)
	if kind == "" {
		return
	}
	if kind == "fast" {
		runFastNode(t)
		return
	}
	s := New(Options{Restarting: kind == "restarting"})
	conf := bfdSession("10.0.0.1", "10.0.0.2")
	conf.BFD, conf.GracefulRestart = slowBFD, kind != "plain"
	_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
	must(t, err)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	<-ended
	must(t, s.Close(t.Context(), Restart))
}
