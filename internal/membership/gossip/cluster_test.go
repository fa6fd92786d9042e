package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

const testKey = "one-key-for-all-members-of-a-test"

// A testCluster is a cluster in one process. In a bubble of synctest its nodes communicate
// by a network in memory, and time passes at once.
type testCluster struct {
	*testing.T
	nodes   []Node
	running map[string]*testNode
	network *network  // nil: real sockets
	clock   time.Time // of nodes that start now; zero: the right one
}

// A testNode is a node of it.
type testNode struct {
	*Gossip
	stop func()
}

func newTestCluster(t *testing.T, n int) *testCluster {
	c := &testCluster{T: t, running: map[string]*testNode{}, network: newNetwork()}
	t.Cleanup(func() {
		if c.network != nil {
			<-time.After(10 * time.Second) // memberlist's goroutines end
		}
	})
	addr := netip.MustParseAddr("127.0.0.1")
	for i := range n {
		addr = addr.Next()
		c.nodes = append(c.nodes, Node{fmt.Sprintf("node-%03d", i), []netip.Addr{addr}})
	}
	return c
}

// start starts a node at an address, with a key.
func (c *testCluster) start(name string, at netip.Addr, keys string) *testNode {
	path := filepath.Join(c.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(keys), 0o600); err != nil {
		c.Fatal(err)
	}
	g := New(Options{Node: name, Port: 7874, KeyFile: path, Log: slog.New(slog.DiscardHandler)})
	if c.network != nil {
		g.open = c.network.open
	}
	if clock := c.clock; !clock.IsZero() {
		g.now = func() time.Time { return clock }
	}
	nodes := slices.Clone(c.nodes)
	for i := range nodes {
		if nodes[i].Name == name {
			nodes[i].Addrs = []netip.Addr{at}
		}
	}
	g.Set(nodes)
	ctx, cancel := context.WithCancel(c.Context())
	done := make(chan struct{})
	go func() { g.Run(ctx); close(done) }()
	r := &testNode{g, func() { cancel(); <-done }}
	c.Cleanup(r.stop)
	c.running[name] = r
	return r
}

func (c *testCluster) addr(name string) netip.Addr {
	return c.nodes[slices.IndexFunc(c.nodes, func(n Node) bool { return n.Name == name })].Addrs[0]
}

// startAll starts nodes at their own addresses.
func (c *testCluster) startAll(names ...string) {
	for _, name := range names {
		c.start(name, c.addr(name), testKey)
	}
}

func (c *testCluster) names(but ...string) (names []string) {
	for _, n := range c.nodes {
		if !slices.Contains(but, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names
}

// await waits until the check of all named nodes succeeds, and returns how long it took.
func (c *testCluster) await(what string, names []string, check func(*testNode) error) time.Duration {
	c.Helper()
	began := time.Now()
	var err error
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for time.Since(began) < 2*time.Minute {
		err = nil
		for _, name := range names {
			if e := check(c.running[name]); e != nil {
				err = fmt.Errorf("%s: %w", name, e)
				break
			}
		}
		if err == nil {
			c.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond))
			return time.Since(began)
		}
		<-ticks.C
	}
	c.Fatalf("%s: %v", what, err)
	return 0
}

// sees checks the members: the number of alive ones, then the others with their states.
func sees(want string) func(*testNode) error {
	return func(r *testNode) error {
		if got := states(r.View()); got != want {
			return fmt.Errorf("sees %s, want %s", got, want)
		}
		return nil
	}
}

func states(v *View) string {
	alive, others := 0, []string{}
	for _, m := range v.Members {
		if m.State == Alive {
			alive++
		} else {
			others = append(others, fmt.Sprint(" ", m.Node, " ", m.State))
		}
	}
	return fmt.Sprint(alive) + strings.Join(others, "")
}

// seesProblem checks for a problem, and the members as sees does.
func seesProblem(problem, members string) func(*testNode) error {
	return func(r *testNode) error {
		if got := strings.Join(r.Problems(), "; "); !strings.Contains(got, problem) {
			return fmt.Errorf("problems %q, want %q", got, problem)
		}
		return sees(members)(r)
	}
}

// socketPackets is how many small packets fit into a socket's buffer of Linux's default
// rmem_max.
const socketPackets = 500

// A network connects transports.
type network struct {
	mu        sync.Mutex
	endpoints map[string]*endpoint
	cut       map[string]bool
	suspended map[string]bool
	sent      map[int]int // packets, by their size
	recorder  *recorder   // of all traffic; nil: none
	disturbed *disturbance
}

func newNetwork() *network {
	return &network{
		endpoints: map[string]*endpoint{}, cut: map[string]bool{}, suspended: map[string]bool{}, sent: map[int]int{},
	}
}

// An endpoint is the transport of one node.
type endpoint struct {
	network *network
	at      netip.AddrPort
	admits  admission
	packets chan *memberlist.Packet
	streams chan net.Conn
}

func (n *network) open(at netip.AddrPort, admits admission, _ *log.Logger) (memberlist.Transport, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.endpoints[at.String()] != nil {
		return nil, fmt.Errorf("%s is taken", at)
	}
	e := &endpoint{n, at, admits, make(chan *memberlist.Packet, socketPackets), make(chan net.Conn, 100)}
	n.endpoints[at.String()] = e
	return e, nil
}

// partition cuts a node off, or reconnects it.
func (n *network) partition(addr netip.Addr, off bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[netip.AddrPortFrom(addr, 7874).String()] = off
}

// suspend stops a node's process, whose kernel still accepts connections, or continues it.
func (n *network) suspend(addr netip.Addr, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.suspended[netip.AddrPortFrom(addr, 7874).String()] = on
}

// lookup finds the endpoint at an address; lost: one of the two nodes is cut off.
func (e *endpoint) lookup(addr string) (to *endpoint, lost bool) {
	e.network.mu.Lock()
	defer e.network.mu.Unlock()
	return e.network.endpoints[addr], e.network.cut[addr] || e.network.cut[e.at.String()]
}

// isSuspended reports whether one of the two processes is suspended.
func (e *endpoint) isSuspended(addr string) bool {
	e.network.mu.Lock()
	defer e.network.mu.Unlock()
	return e.network.suspended[addr] || e.network.suspended[e.at.String()]
}

func (e *endpoint) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	return net.ParseIP(ip), port, nil
}

func (e *endpoint) WriteTo(b []byte, addr string) (time.Time, error) {
	to, lost := e.lookup(addr)
	e.network.mu.Lock()
	e.network.sent[len(b)]++
	e.network.recorder.packet(e.at, addr, b)
	e.network.mu.Unlock()
	delay, dropped := e.network.disturbed.packet(e.at.String(), addr, len(b))
	if to == nil || lost || dropped || e.isSuspended(addr) {
		return time.Now(), nil
	}
	p := &memberlist.Packet{Buf: slices.Clone(b), From: net.UDPAddrFromAddrPort(e.at)}
	if delay == 0 {
		to.receive(p)
	} else {
		time.AfterFunc(delay, func() { to.receive(p) })
	}
	return time.Now(), nil
}

func (e *endpoint) receive(p *memberlist.Packet) {
	if !e.admits(addrPortOf(p.From).Addr()) {
		return
	}
	p.Timestamp = time.Now()
	select {
	case e.packets <- p:
	default: // like a full socket buffer
	}
}

func (e *endpoint) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	timeout = min(timeout, connectTimeout)
	to, lost := e.lookup(addr)
	connected, received := e.network.disturbed.connection(e.at.String(), addr)
	switch {
	case lost, connected > timeout:
		<-time.After(timeout)
		return nil, errors.New("timeout")
	case to == nil:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	<-time.After(connected)
	ours, theirs := net.Pipe()
	if e.isSuspended(addr) {
		return e.pipe(ours, to.at), nil // No process reads at the other end.
	}
	time.AfterFunc(received, func() { to.accept(e.pipe(theirs, e.at)) })
	e.network.mu.Lock()
	defer e.network.mu.Unlock()
	return e.network.recorder.stream(e.pipe(ours, to.at), e.at), nil
}

func (e *endpoint) accept(c net.Conn) {
	if !e.admits(addrPortOf(c.RemoteAddr()).Addr()) {
		c.Close()
		return
	}
	select {
	case e.streams <- c:
	default: // like a full backlog
		c.Close()
	}
}

func (e *endpoint) PacketCh() <-chan *memberlist.Packet { return e.packets }
func (e *endpoint) StreamCh() <-chan net.Conn           { return e.streams }

func (e *endpoint) Shutdown() error {
	e.network.mu.Lock()
	defer e.network.mu.Unlock()
	delete(e.network.endpoints, e.at.String())
	return nil
}

// A pipe has the address of its other end.
type pipe struct {
	net.Conn
	from      netip.AddrPort
	disturbed *disturbance
}

func (e *endpoint) pipe(c net.Conn, from netip.AddrPort) pipe {
	return pipe{c, from, e.network.disturbed}
}

func (p pipe) Write(b []byte) (int, error) {
	p.disturbed.streamed(len(b))
	return p.Conn.Write(b)
}

func (p pipe) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(p.from) }
