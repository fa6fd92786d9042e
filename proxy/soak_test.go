package proxy

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

var (
	soakChanges = flag.Int("soak", 100, "how many changes of State the soak makes")
	soakSeed    = flag.Uint64("soak-seed", 0, "what the soak's changes are drawn from; 0: another each time")
)

// A soak changes the State at random, under traffic. The tracer shows for each State
// what may come of a request; what does come must be the answer of a State that was in
// force during the request.
type soak struct {
	*lab
	t    *testing.T
	view *proxytest.NodeView

	mu    sync.Mutex
	steps []*soakStep

	requests, excused atomic.Int64
	stop              atomic.Bool
	taken             int // flows of the fast path at once, at most
}

// A soakStep is one State, and when it was set.
type soakStep struct {
	state       State
	begun, done time.Time

	mu    sync.Mutex
	rules proxytest.Rules
	known map[soakRequest][]string
}

type soakRequest struct {
	from, network string
	to            netip.AddrPort
}

func (r soakRequest) String() string { return fmt.Sprintf("%s to %s %s", r.from, r.network, r.to) }

// expect is what may come of a request in this State.
func (s *soakStep) expect(r soakRequest, n *proxytest.NodeView) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all, ok := s.known[r]; ok {
		return all, nil
	}
	if s.rules == nil {
		var err error
		if s.rules, err = (&scene{proxytest.Scene{State: s.state}}).rules(testMode); err != nil {
			return nil, err
		}
		s.known = make(map[soakRequest][]string)
	}
	p, err := proxytest.LabPacket(r.from, r.network, r.to, n)
	if err != nil {
		return nil, err
	}
	s.known[r] = proxytest.Trace(s.rules, n, p)
	if testMode == ModeIPTables && !proxytest.ServesState(s.state, r.to.Addr()) {
		// Its ports go a moment before it does.
		s.known[r] = append(s.known[r], "refused")
	}
	return s.known[r], nil
}

// begin notes that a State is being set; what it returns, that it is.
func (s *soak) begin(state State) (done func()) {
	step := &soakStep{state: state, begun: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		step.done = time.Now()
	}
}

// between are the States that were in force at a time from start to end.
func (s *soak) between(start, end time.Time) []*soakStep {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.steps)
	for last > 0 && s.steps[last-1].begun.After(end) {
		last--
	}
	first := last - 1
	for first > 0 && (s.steps[first].done.IsZero() || s.steps[first].done.After(start)) {
		first--
	}
	return s.steps[max(first, 0):last]
}

// A soakAnswer is what came of a request.
type soakAnswer struct {
	got        string
	start, end time.Time
	port       int // of the client
	// missed: the first packet got nowhere.
	missed bool
}

// firstPacket is how long after its start a request's first packet may meet the
// rules, on a busy machine.
const firstPacket = 300 * time.Millisecond

// judge compares an answer with what the States allow.
func (s *soak) judge(r soakRequest, a soakAnswer) {
	window := s.between(a.start, a.end)
	if a.missed {
		window = s.between(a.start, a.start.Add(firstPacket))
		a.got = "silence"
	}
	var allowed []string
	for _, step := range window {
		all, err := step.expect(r, s.view)
		if err != nil {
			s.t.Errorf("%s: %v", r, err)
			return
		}
		allowed = append(allowed, all...)
	}
	if slices.Contains(allowed, a.got) {
		return
	}
	// A flow to a backend that goes ends with it: by a reset, and where there is
	// none, by an answer that is not let through. So does a flow of a source that may
	// no longer use the frontend.
	if left(window, r) && (a.got == "reset" || a.got == "silence" && !a.missed) {
		s.excused.Add(1)
		return
	}
	slices.Sort(allowed)
	got := a.got
	if a.missed {
		got += ", its first packet got nowhere,"
	}
	s.t.Errorf("%s from port %d: %s after %v; want %q, by\n%s", r, a.port, got,
		a.end.Sub(a.start).Round(time.Millisecond), slices.Compact(allowed), texts(window, r))
}

// texts says how a request's frontend changed from State to State.
func texts(steps []*soakStep, r soakRequest) string {
	var all []string
	for _, step := range steps {
		line := "none\n"
		for v := range step.state.VIPs.All() {
			for _, f := range v.Frontends {
				if v.Addr == r.to.Addr() && f.Port == r.to.Port() && f.Protocol.String() == r.network {
					line = f.Text(v, step.state.Node)
				}
			}
		}
		all = append(all, line)
	}
	return strings.Join(slices.Compact(all), "")
}

// left reports whether a backend of the frontend went from one State to the next, or
// the client was shut out.
func left(steps []*soakStep, r soakRequest) bool {
	for i := range len(steps) - 1 {
		if shutsOut(steps[i+1].state, r) {
			return true
		}
		before, after := flowsTo(steps[i].state, r), flowsTo(steps[i+1].state, r)
		for b := range before {
			if !after[b] {
				return true
			}
		}
	}
	return false
}

// shutsOut reports whether the source of a request may not use the frontend.
func shutsOut(s State, r soakRequest) bool {
	proto := map[string]Protocol{"tcp": TCP, "udp": UDP}[r.network]
	f := s.Frontend(r.to.Addr(), state.Port{Proto: proto, Port: r.to.Port()})
	return f != nil && f.Sources != nil &&
		!sortedset.ContainsAddr(f.Sources, proxytest.At(r.from, state.Family(r.to.Addr())))
}

// flowsTo are the backends that flows of the request may be open to.
func flowsTo(s State, r soakRequest) map[netip.AddrPort]bool {
	all := make(map[netip.AddrPort]bool)
	for v := range s.VIPs.All() {
		for _, f := range v.Frontends {
			if v.Addr != r.to.Addr() || f.Port != r.to.Port() || f.Protocol.String() != r.network {
				continue
			}
			for _, b := range slices.Concat(f.External.Backends, f.Internal.Backends) {
				all[b.Addr] = true
			}
			for _, b := range f.Draining {
				all[b] = true
			}
		}
	}
	return all
}

// run sends requests of one kind from one namespace until the soak is over.
func (s *soak) run(from, network string, to []netip.AddrPort, seed uint64) {
	w := proxytest.NewWorld(seed)
	port := 10000
	s.Ns(from).Do(func() {
		for !s.stop.Load() {
			r := soakRequest{from, network, proxytest.Pick(w, to...)}
			port = 10000 + (port+1)%50000
			a, err := s.request(r, port)
			if errors.Is(err, syscall.EADDRINUSE) {
				continue
			}
			s.judge(r, a)
			s.requests.Add(1)
		}
	})
}

// wait is how long to wait for an answer. What should be silent is not waited for
// long.
func (s *soak) wait(r soakRequest) time.Duration {
	now := time.Now()
	for _, step := range s.between(now, now) {
		if all, err := step.expect(r, s.view); err == nil && slices.Contains(all, "silence") {
			return 100 * time.Millisecond
		}
	}
	return 5 * time.Second
}

// request connects, asks and hears. Each flow has a port that conntrack does not
// remember: it leads even a new connection of TCP to the backend of one that was reset.
func (s *soak) request(r soakRequest, port int) (a soakAnswer, err error) {
	d := net.Dialer{Timeout: s.wait(r), LocalAddr: &net.TCPAddr{Port: port}}
	if r.network == "udp" {
		d.LocalAddr = &net.UDPAddr{Port: port}
	}
	a.port, a.start = port, time.Now()
	defer func() { a.end = time.Now() }()
	c, err := d.Dial(r.network, r.to.String())
	if err != nil {
		a.got = proxytest.Outcome(err)
		a.missed = a.got == "silence"
		return a, err
	}
	defer c.Close()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // or its ports run out
		a.missed = sentTwice(tcp)
	}
	_ = c.SetDeadline(time.Now().Add(d.Timeout))
	what := fmt.Sprint(c.LocalAddr(), " asks ", r.to)
	a.got = s.exchange(c, what)
	if r.network == "udp" { // a connection may say the same, from the same port
		_, heard := s.Heard.LoadAndDelete(what)
		a.missed = a.got == "silence" && !heard
	}
	return a, nil
}

// exchange sends a line over a connection, and returns which pod answered and which client it saw.
func (s *soak) exchange(c net.Conn, what string) string {
	buf := make([]byte, 128)
	_, err := c.Write([]byte(what))
	n := 0
	if err == nil {
		n, err = c.Read(buf)
	}
	switch {
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case err != nil:
		return proxytest.Outcome(err)
	}
	return s.Named(string(buf[:n]))
}

// sentTwice reports whether the SYN of a connection had to be sent again.
func sentTwice(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var again bool
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		again = err == nil && info.Total_retrans > 0
	})
	return again
}

// No request is lost that had an endpoint before and after, whatever changes.
func TestSoak(t *testing.T) {
	onAll(t, func(t *testing.T) {
		changes := *soakChanges
		if testMode == ModeIPTables {
			changes /= 8 // each takes some processes
		}
		if testFast != "" {
			changes /= 2
		}
		seed := *soakSeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Logf("again with -soak-seed=%d", seed)
		s := &soak{lab: newLab(t), t: t, view: proxytest.LabView()}
		w := newSoakWorld(seed)
		if w.alike = testFast != ""; w.alike {
			for _, p := range w.ports {
				p.local = true
			}
		}
		p := newProxy(t)
		s.set(p, w.state())
		var workers sync.WaitGroup
		for _, from := range []string{"client", "pod1", "pod3", "node"} {
			for _, network := range []string{"tcp", "udp"} {
				seed := w.Uint64() // drawn here: one at a time
				workers.Go(func() { s.run(from, network, soakTargets(), seed) })
			}
		}
		p = s.churn(p, w, changes)
		s.stop.Store(true)
		workers.Wait()
		checkKernel(t, w.state())
		if testFast != "" && s.taken == 0 {
			t.Error("the fast path took no flow")
		}
		t.Logf("%d requests under %d changes; %d ended with their backend", s.requests.Load(), changes,
			s.excused.Load())
		if st := p.Status(); st.Repairs != 0 || st.ConntrackError != "" {
			t.Errorf("%d repairs, %q; conntrack: %q", st.Repairs, st.Found, st.ConntrackError)
		}
	})
}

// churn makes the changes, as fast as there are requests to meet them, and returns
// the last of the Proxies that made them.
func (s *soak) churn(p *Proxy, w *soakWorld, changes int) *Proxy {
	s.t.Helper()
	for i := range changes {
		s.await(20)
		if s.t.Failed() {
			break
		}
		if i%20 == 19 { // another process takes over
			if err := p.Close(); err != nil {
				s.t.Fatal(err)
			}
			p = newProxy(s.t)
		}
		if f := p.Status().FastPath; f != nil {
			s.taken = max(s.taken, f.Flows)
		}
		w.change()
		s.set(p, w.state())
	}
	return p
}

func (s *soak) set(p *Proxy, state State) {
	s.t.Helper()
	done := s.begin(state)
	mustSet(s.t, p, state)
	done()
}

// await waits until so many more requests are over.
func (s *soak) await(more int64) {
	for n := s.requests.Load() + more; s.requests.Load() < n && !s.t.Failed(); time.Sleep(time.Millisecond) {
	}
}
