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

const testKey = "one-key-for-all-who-belong-here"

// A town is a cluster in one process and, in a bubble of synctest, in no time: what
// its nodes send goes by a hub.
type town struct {
	*testing.T
	nodes []Node
	all   map[string]*resident
	hub   *hub // nil: sockets
}

// A resident is one node of it.
type resident struct {
	*Gossip
	stop func()
}

func newTown(t *testing.T, n int) *town {
	w := &town{T: t, all: map[string]*resident{}, hub: newHub()}
	t.Cleanup(func() {
		if w.hub != nil {
			<-time.After(10 * time.Second) // what is under way in memberlist ends, in no time
		}
	})
	addr := netip.MustParseAddr("127.0.0.1")
	for i := range n {
		addr = addr.Next()
		w.nodes = append(w.nodes, Node{fmt.Sprintf("node-%03d", i), []netip.Addr{addr}})
	}
	return w
}

// start lets a node of a name live at an address, with a key.
func (w *town) start(name string, at netip.Addr, keys string) *resident {
	path := filepath.Join(w.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(keys), 0o600); err != nil {
		w.Fatal(err)
	}
	g := New(Options{Node: name, Port: 7946, KeyFile: path, Log: slog.New(slog.DiscardHandler)})
	if w.hub != nil {
		g.open = w.hub.open
	}
	nodes := slices.Clone(w.nodes)
	for i := range nodes {
		if nodes[i].Name == name {
			nodes[i].Addrs = []netip.Addr{at}
		}
	}
	g.Set(nodes)
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() { g.Run(ctx); close(done) }()
	r := &resident{g, func() { cancel(); <-done }}
	w.Cleanup(r.stop)
	w.all[name] = r
	return r
}

func (w *town) addr(name string) netip.Addr {
	return w.nodes[slices.IndexFunc(w.nodes, func(n Node) bool { return n.Name == name })].Addrs[0]
}

// settle lets nodes live.
func (w *town) settle(names ...string) {
	for _, name := range names {
		w.start(name, w.addr(name), testKey)
	}
}

func (w *town) names(but ...string) (names []string) {
	for _, n := range w.nodes {
		if !slices.Contains(but, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names
}

// await waits until all named nodes see what they should, and returns how long it took.
func (w *town) await(what string, names []string, sees func(*resident) error) time.Duration {
	w.Helper()
	began := time.Now()
	var err error
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for time.Since(began) < 2*time.Minute {
		err = nil
		for _, name := range names {
			if is := sees(w.all[name]); is != nil {
				err = fmt.Errorf("%s: %w", name, is)
				break
			}
		}
		if err == nil {
			w.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond))
			return time.Since(began)
		}
		<-ticks.C
	}
	w.Fatalf("%s: %v", what, err)
	return 0
}

// is asks for members by state: as many are alive, and these have left or are dead.
func is(want string) func(*resident) error {
	return func(r *resident) error {
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

// has asks for a problem, and for members as is does.
func has(problem, members string) func(*resident) error {
	return func(r *resident) error {
		if got := strings.Join(r.Problems(), "; "); !strings.Contains(got, problem) {
			return fmt.Errorf("problems %q, want %q", got, problem)
		}
		return is(members)(r)
	}
}

// A hub joins transports, and cuts them off.
type hub struct {
	mu   sync.Mutex
	ends map[string]*end
	cut  map[string]bool
	hung map[string]bool
	sent map[int]int // packets, by their size
}

func newHub() *hub {
	return &hub{ends: map[string]*end{}, cut: map[string]bool{}, hung: map[string]bool{}, sent: map[int]int{}}
}

// An end is one transport.
type end struct {
	hub     *hub
	at      netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
}

func (h *hub) open(at netip.AddrPort, _ *log.Logger) (memberlist.Transport, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ends[at.String()] != nil {
		return nil, fmt.Errorf("%s is taken", at)
	}
	e := &end{h, at, make(chan *memberlist.Packet, 1000), make(chan net.Conn, 100)}
	h.ends[at.String()] = e
	return e, nil
}

// off has nobody hear a node, or hear it again.
func (h *hub) off(addr netip.Addr, off bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut[netip.AddrPortFrom(addr, 7946).String()] = off
}

// hang has a node's process neither hear nor say anything, while its kernel accepts
// connections; or go on.
func (h *hub) hang(addr netip.Addr, hung bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hung[netip.AddrPortFrom(addr, 7946).String()] = hung
}

// to finds who listens; lost: nobody can tell.
func (e *end) to(addr string) (to *end, lost bool) {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	return e.hub.ends[addr], e.hub.cut[addr] || e.hub.cut[e.at.String()]
}

// hangs says whether one of two processes does.
func (e *end) hangs(addr string) bool {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	return e.hub.hung[addr] || e.hub.hung[e.at.String()]
}

func (e *end) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	return net.ParseIP(ip), port, nil
}

func (e *end) WriteTo(b []byte, addr string) (time.Time, error) {
	to, lost := e.to(addr)
	e.hub.mu.Lock()
	e.hub.sent[len(b)]++
	e.hub.mu.Unlock()
	if to != nil && !lost && !e.hangs(addr) {
		select {
		case to.packets <- &memberlist.Packet{Buf: slices.Clone(b), From: net.UDPAddrFromAddrPort(e.at), Timestamp: time.Now()}:
		default: // as a full socket
		}
	}
	return time.Now(), nil
}

func (e *end) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to, lost := e.to(addr)
	switch {
	case lost:
		<-time.After(timeout)
		return nil, errors.New("nobody answers")
	case to == nil:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	ours, theirs := net.Pipe()
	if e.hangs(addr) {
		return pipe{ours, to.at}, nil // Nobody reads at the other end.
	}
	to.streams <- pipe{theirs, e.at}
	return pipe{ours, to.at}, nil
}

func (e *end) PacketCh() <-chan *memberlist.Packet { return e.packets }
func (e *end) StreamCh() <-chan net.Conn           { return e.streams }

func (e *end) Shutdown() error {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	delete(e.hub.ends, e.at.String())
	return nil
}

// A pipe knows who is at its other end.
type pipe struct {
	net.Conn
	from netip.AddrPort
}

func (p pipe) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(p.from) }
