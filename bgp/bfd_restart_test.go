package bgp

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

var (
	bfdRepeat     = flag.Int("repeat", 1, "how often TestBFDRestarts plays each event")
	bfdMultiplier = flag.Int("detect-multiplier", 3, "the detection multiplier of both ends in TestBFDRestarts")
	bfdTranscript = flag.String("transcript", "", "the file to which TestBFDRestarts appends what was on the wire")
)

// A restartable is a router whose process can be stopped and started again.
type restartable interface {
	start()
	kill()
	freeze(yes bool)
}

const frrRestartConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.2 passive
 neighbor 10.0.0.2 bfd %[1]d 50 50
 neighbor fd00::2 remote-as 65010
 neighbor fd00::2 bfd %[1]d 50 50
 neighbor fd00::2 passive
`

// A restartableFRR freezes by its BFD; its other daemons go on.
type restartableFRR struct{ *frr }

func (r restartableFRR) freeze(yes bool) { r.signal("bfdd", stopOrContinue(yes)) }

func stopOrContinue(stop bool) syscall.Signal {
	if stop {
		return syscall.SIGSTOP
	}
	return syscall.SIGCONT
}

const birdRestartConfig = `
router id 10.255.0.1;
protocol device { }
protocol bfd { interface "*" { interval 50 ms; multiplier %[1]d; }; }
template bgp node {
	local as 65001;
	passive on;
	bfd on;
	error wait time 1, 1;
	ipv4 { import all; export none; };
}
protocol bgp node4 from node { neighbor 10.0.0.2 as 65010; }
protocol bgp node6 from node { neighbor fd00::2 as 65010; ipv4 { import all; export none; extended next hop on; }; }
`

// A restartableBIRD is one process for BGP and BFD.
type restartableBIRD struct {
	t   *testing.T
	ns  *nstest.NS
	dir string
	*birdProcess
}

func (r *restartableBIRD) start() {
	program, err := exec.LookPath("bird")
	if err != nil {
		nstest.Missing(r.t, err.Error())
	}
	r.birdProcess = startBIRD(r.t, r.ns, program, r.dir)
}

func (r *restartableBIRD) kill() { r.stop() }

func (r *restartableBIRD) freeze(yes bool) { must(r.t, r.process.Signal(stopOrContinue(yes))) }

// A bfdLab is a node in a process of its own, a router, and all BFD packets between them, over
// IPv4 and IPv6.
type bfdLab struct {
	t       *testing.T
	router  restartable
	node    *exec.Cmd
	capture *bfdCapture
	ends    map[netip.Addr]string
}

// Both ends start, end, crash and freeze, in any order. After each event their sessions are up
// again, and remain so: no end leaves the state Up without a cause.
func TestBFDRestarts(t *testing.T) {
	for name, start := range map[string]func(*testing.T) restartable{
		"FRR": func(t *testing.T) restartable {
			return restartableFRR{startFRRWith(t, fmt.Sprintf(frrRestartConfig, *bfdMultiplier), "bfdd")}
		},
		"BIRD": func(t *testing.T) restartable {
			node, router := nstest.Node(t), nstest.New(t, "router")
			nstest.Link(t, node, "uplink", router, "eth0")
			node.Addr("uplink", "10.0.0.2/24", "fd00::2/64")
			router.Addr("eth0", "10.0.0.1/24", "fd00::1/64")
			r := &restartableBIRD{t: t, ns: router, dir: t.TempDir()}
			must(t, os.WriteFile(filepath.Join(r.dir, "bird.conf"), fmt.Appendf(nil, birdRestartConfig, *bfdMultiplier),
				0o644))
			r.start()
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				l := &bfdLab{t: t, router: start(t), capture: captureBFD(t), ends: map[netip.Addr]string{}}
				for _, network := range []string{"10.0.0.", "fd00::"} {
					l.ends[netip.MustParseAddr(network+"1")] = "router"
					l.ends[netip.MustParseAddr(network+"2")] = "node"
				}
				l.play()
			})
		})
	}
}

// play runs all events, and reports how soon sessions were stable.
func (l *bfdLab) play() {
	detection := time.Duration(*bfdMultiplier) * 50 * time.Millisecond
	pause := func() { // beyond the detection time or not
		await(l.t, rand.N(time.Second))
	}
	freeze := func() { await(l.t, 2*detection+rand.N(time.Second)) }
	events := []struct {
		name string
		do   func()
	}{
		{"start", func() { l.end(syscall.SIGTERM); pause(); l.start() }},
		{"crash of the node", func() { l.end(syscall.SIGKILL); pause(); l.start() }},
		{"freeze of the node", func() {
			must(l.t, l.node.Process.Signal(syscall.SIGSTOP))
			freeze()
			must(l.t, l.node.Process.Signal(syscall.SIGCONT))
		}},
		{"crash of the router", func() { l.router.kill(); pause(); l.router.start() }},
		{"freeze of the router", func() { l.router.freeze(true); freeze(); l.router.freeze(false) }},
	}
	begin := time.Now()
	l.start()
	l.stable("first start", begin, time.Now())
	took, losses := map[string][]time.Duration{}, map[string]int{}
	for range *bfdRepeat {
		for _, i := range rand.Perm(len(events)) {
			e := events[i]
			begin := time.Now()
			e.do()
			d, more := l.stable(e.name, begin, time.Now())
			took[e.name], losses[e.name] = append(took[e.name], d), losses[e.name]+more
		}
	}
	for _, e := range events {
		all := took[e.name]
		slices.Sort(all)
		l.t.Logf("%-20s %d times: up for good after %s (median), %s (at most); lost again: %d", e.name, len(all),
			all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond), losses[e.name])
	}
}

// await lets time pass that belongs to an event.
func await(t *testing.T, d time.Duration) {
	begin := time.Now()
	eventually(t, "pause", func() bool { return time.Since(begin) >= d })
}

func (l *bfdLab) start() {
	l.node = startNode(l.t, "fast", "-detect-multiplier="+strconv.Itoa(*bfdMultiplier))
}

func (l *bfdLab) end(sig syscall.Signal) {
	must(l.t, l.node.Process.Signal(sig))
	_ = l.node.Wait() // its exit status after the kill
}

// stable waits until all ends have been up for a second, and returns how long after the event
// that began, and how often a session was lost again meanwhile. Each end may leave the state Up
// once, because of the event. More losses are of a machine that has no processor for either end
// for the detection time, and are few. Ends that disagree on intervals lose hundreds.
func (l *bfdLab) stable(event string, begin, after time.Time) (took time.Duration, more int) {
	l.t.Helper()
	var packets []bfdSighting
	defer func() {
		if l.t.Failed() || *bfdTranscript != "" {
			l.write(event, packets)
		}
	}()
	eventually(l.t, event+": all ends up for a second", func() bool {
		packets = l.capture.since(begin)
		took = 0
		for end := range l.ends {
			since, up := upSince(packets, end)
			if !up || time.Since(since) < time.Second {
				return false
			}
			took = max(took, since.Sub(after))
		}
		return true
	})
	for end := range l.ends {
		more = max(more, leaves(packets, end)-1)
	}
	if more > 5 {
		l.t.Errorf("%s: a session was lost %d times without a cause", event, more)
	}
	return took, more
}

// write appends a transcript for each address family to a file, or to the test's log.
func (l *bfdLab) write(event string, packets []bfdSighting) {
	for _, is4 := range []bool{true, false} {
		family := slices.DeleteFunc(slices.Clone(packets), func(s bfdSighting) bool { return s.from.Is4() != is4 })
		if len(family) == 0 {
			continue
		}
		text := fmt.Sprintf("# %s: %s\n%s", strings.TrimPrefix(l.t.Name(), "TestBFDRestarts/"), event,
			transcript(family, l.ends))
		if *bfdTranscript == "" {
			l.t.Log(text[:min(len(text), 1<<14)])
			continue
		}
		f, err := os.OpenFile(*bfdTranscript, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		must(l.t, err)
		_, err = f.WriteString(text)
		must(l.t, err)
		must(l.t, f.Close())
	}
}

const frrProfileConfig = `
hostname tor1
bfd
 profile nodes
  detect-multiplier 9
  transmit-interval 100
  receive-interval 100
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.2 bfd profile nodes
 neighbor 10.0.0.2 timers connect 1
`

// An operator changes the router's BFD while the session is up: intervals become longer and
// shorter, and the multiplier changes, without a loss. A router whose BFD is switched off
// (AdminDown) keeps its BGP session.
func TestBFDRouterReconfigured(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		r := startFRRWith(t, frrProfileConfig, "bfdd")
		l := &bfdLab{t: t, capture: captureBFD(t), ends: map[netip.Addr]string{
			netip.MustParseAddr("10.0.0.1"): "router", netip.MustParseAddr("10.0.0.2"): "node"}}
		begin := time.Now()
		s := newServer(t, Options{})
		conf := bfdSession("10.0.0.1", "10.0.0.2")
		conf.BFD = BFD{Transmit: 100 * time.Millisecond, Receive: 100 * time.Millisecond, Multiplier: 9}
		_, err := s.Set(t.Context(), state([]Session{conf}, routes("192.0.2.1/32")))
		must(t, err)
		detection := func() time.Duration {
			if st := s.sessionStatus("tor1").BFD; st != nil {
				return st.Detection
			}
			return 0
		}
		eventually(t, "BFD up", func() bool { return upWithBFD(s) && detection() == 900*time.Millisecond })
		before := s.sessionStatus("tor1")
		change := func(lines ...string) {
			args := []string{"-c", "configure terminal", "-c", "bfd", "-c", "profile nodes"}
			for _, line := range lines {
				args = append(args, "-c", line)
			}
			r.vtysh(args...)
		}
		for _, c := range []struct {
			line      string
			detection time.Duration
			receive   time.Duration
		}{
			{"transmit-interval 300", 2700 * time.Millisecond, 100 * time.Millisecond},
			{"receive-interval 400", 2700 * time.Millisecond, 400 * time.Millisecond},
			{"receive-interval 100", 2700 * time.Millisecond, 100 * time.Millisecond},
			{"transmit-interval 100", 900 * time.Millisecond, 100 * time.Millisecond},
			{"detect-multiplier 20", 2 * time.Second, 100 * time.Millisecond},
			{"detect-multiplier 9", 900 * time.Millisecond, 100 * time.Millisecond},
		} {
			changed := time.Now()
			change(c.line)
			eventually(t, c.line, func() bool {
				return detection() == c.detection &&
					slices.ContainsFunc(l.capture.since(changed), func(s bfdSighting) bool {
						return s.from == conf.PeerAddress && !s.poll && s.receive == c.receive
					})
			})
		}
		if st := s.sessionStatus("tor1"); st.BFD.Since != before.BFD.Since || st.Since != before.Since {
			t.Errorf("changes of intervals: %+v", st.BFD)
		}
		change("shutdown")
		const off = "the router has switched it off"
		eventually(t, off, func() bool { return s.sessionStatus("tor1").BFD.Reason == off })
		change("no shutdown")
		eventually(t, "BFD up again", func() bool { return upWithBFD(s) })
		if st := s.sessionStatus("tor1"); st.BFD.Flaps != 0 || st.Since != before.Since {
			t.Errorf("BFD switched off and on: %+v, loss %q", st.BFD, st.LossReason)
		}
		if t.Failed() || *bfdTranscript != "" {
			l.write("changes of the router", l.capture.since(begin))
		}
	})
}

// runFastNode is the node of TestBFDRestarts: two sessions, with BFD at 50 ms.
func runFastNode(t *testing.T) {
	s := New(Options{})
	var sessions []Session
	for _, network := range []string{"10.0.0.", "fd00::"} {
		conf := bfdSession(network+"1", network+"2")
		conf.Name, conf.ConnectTime, conf.BFD.Multiplier = network, 300*time.Millisecond, uint8(*bfdMultiplier)
		sessions = append(sessions, conf)
	}
	_, err := s.Set(t.Context(), state(sessions, routes("192.0.2.1/32")))
	must(t, err)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	<-ended
	must(t, s.Close(t.Context(), Restart))
}
