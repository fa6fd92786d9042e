package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bfd"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// The port of RFC 5881 §4, and the first one to send from.
const (
	bfdPort       = 3784
	bfdSourcePort = 49152
)

// listenRetry is how soon we try again to get the port, which another BFD on this
// node may have.
const listenRetry = 5 * time.Second

// A detector speaks BFD with one router, from the first connection to it until its
// session is closed, whatever becomes of connections in between.
type detector struct {
	peer, local netip.Addr
	device      string // that packets go out by; empty: as routes say
	hub         *bfdHub
	log         *slog.Logger
	lost        func(reason string) // the router was there, and is not any more
	changed     func()

	in     chan *packet.BFDHeader
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	status BFDStatus
}

// A BFDStatus is what BFD knows of a router.
type BFDStatus struct {
	State string    `json:"state"` // Up, Init or Down
	Since time.Time `json:"since"`
	Flaps int       `json:"flaps"` // how often the router was lost
	// Detection is after how long a silence the router counts as lost, 0 until that
	// is agreed on.
	Detection time.Duration `json:"detectionNanoseconds,omitempty"`
	// Reason is why it is not up, empty while it is.
	Reason string `json:"reason,omitempty"`
	// Error is why there is no BFD, for an operator.
	Error string `json:"error,omitempty"`
}

// Summary is Up or Down: Init, on the way up, is Down to all but the two ends.
func (b BFDStatus) Summary() string {
	if b.Up() {
		return "Up"
	}
	return "Down"
}

// Up says whether each end hears the other.
func (b BFDStatus) Up() bool { return b.State == stateNames[packet.StateUp] }

// explain says what may be in the way of BFD that has not been up.
func (b *BFDStatus) explain(conf Session) {
	switch {
	case b.Up() || b.Error != "" || b.Reason != "":
	case conf.TTLSecurityHops != 0:
		b.Reason = "the router says nothing; some, as FRR 8.4, take a neighbour with ttl-security for one that is several hops away, " +
			"and speak another BFD to it: have either bfd or ttlSecurityHops"
	default:
		b.Reason = "the router says nothing; does it have BFD for this node?"
	}
}

func startDetector(d *detector, conf BFD) {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel, d.in, d.done = cancel, make(chan *packet.BFDHeader, 16), make(chan struct{})
	d.status = BFDStatus{State: stateNames[packet.StateDown], Since: time.Now()}
	go d.run(ctx, newBFDMachine(conf))
}

var stateNames = map[packet.StateType]string{
	packet.StateAdminDown: "AdminDown", packet.StateDown: "Down", packet.StateInit: "Init", packet.StateUp: "Up",
}

// stop says goodbye, so that the router does not take the silence for a failure.
func (d *detector) stop() {
	d.cancel()
	<-d.done
}

func (d *detector) run(ctx context.Context, m *bfdMachine) {
	defer close(d.done)
	conn := d.open(ctx)
	if conn == nil {
		return
	}
	defer conn.Close()
	defer d.hub.remove(d.peer)
	next, silence := time.NewTimer(0), time.NewTimer(time.Hour)
	var due time.Time // when silence fires
	wait := func() {
		if s := m.silence(); s > 0 {
			due = time.Now().Add(s)
			silence.Reset(s)
		}
	}
	for {
		var reason string
		select {
		case <-ctx.Done():
			d.send(conn, m.farewell())
			return
		case h := <-d.in:
			was := m.state
			answer, lost := m.hear(h)
			reason = lost
			if answer {
				d.send(conn, m.say(true))
			}
			if was != m.state {
				next.Reset(0)
			}
			wait()
		case <-next.C:
			if pause := m.pause(); pause > 0 {
				d.send(conn, m.say(false))
				next.Reset(pause)
			}
		case <-silence.C:
			switch {
			case m.silence() == 0:
			case len(d.in) > 0 || time.Since(due) > m.conf.Receive:
				// It is we who were late, for want of a processor or because somebody
				// had stopped us: what the router sent meanwhile comes first.
				wait()
			default:
				reason = m.expire()
				next.Reset(0)
			}
		}
		d.note(m, reason)
	}
}

// note takes down what m has become and reports it.
func (d *detector) note(m *bfdMachine, lost string) {
	d.mu.Lock()
	s := &d.status
	moved := s.State != stateNames[m.state]
	if moved {
		s.State, s.Since = stateNames[m.state], time.Now()
	}
	s.Detection, s.Reason = m.silence(), ""
	if m.state != packet.StateUp {
		s.Reason = m.reason
	}
	if lost != "" {
		s.Flaps++
	}
	d.mu.Unlock()
	if lost != "" {
		d.lost(lost)
	}
	if moved {
		d.log.Info("BFD", "state", stateNames[m.state], "reason", lost)
		d.changed()
	}
}

func (d *detector) seen() BFDStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

// open gets a socket to send from and a share of the one to listen on. It tries
// until it succeeds, and returns nil when ctx ends first.
func (d *detector) open(ctx context.Context) net.Conn {
	for {
		conn, err := d.dial(ctx)
		if err == nil {
			if err = d.hub.add(d); err != nil {
				conn.Close()
			}
		}
		text := ""
		if err != nil {
			text = err.Error()
			d.log.Warn("BFD does not work", "err", err)
		}
		d.mu.Lock()
		d.status.Error = text
		d.mu.Unlock()
		d.changed()
		if err == nil {
			return conn
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenRetry):
		}
	}
}

// dial binds to an address of ours and a port that RFC 5881 §4 allows, and sends
// with the TTL that proves that nobody has forwarded the packet (§5).
func (d *detector) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var opterr error
		err := c.Control(func(fd uintptr) {
			if opterr = bindDevice(int(fd), d.device); opterr != nil {
				return
			}
			if d.peer.Is4() {
				opterr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, maxTTL)
			} else {
				opterr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, maxTTL)
			}
		})
		return errors.Join(err, opterr)
	}}
	var conn net.Conn
	var err error
	for range 10 { // another program may have the port
		port := bfdSourcePort + rand.IntN(1<<16-bfdSourcePort)
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(numbered(d.local), uint16(port)))
		conn, err = dialer.DialContext(ctx, "udp", netip.AddrPortFrom(numbered(d.peer), bfdPort).String())
		if err == nil {
			return conn, nil
		}
	}
	return nil, fmt.Errorf("BFD cannot send to %s: %w", d.peer, err)
}

// send ignores errors: what counts is what the router hears.
func (d *detector) send(conn net.Conn, h *packet.BFDHeader) {
	if b, err := h.MarshalBinary(); err == nil {
		_, _ = conn.Write(b)
	}
}

// A bfdHub hears for all detectors of a Server: the port is one. It listens only
// while there is somebody to listen to.
type bfdHub struct {
	mu     sync.Mutex
	peers  map[netip.Addr]*detector
	listen map[bool]net.PacketConn // by whether it is for IPv4
}

func newBFDHub() *bfdHub {
	return &bfdHub{peers: map[netip.Addr]*detector{}, listen: map[bool]net.PacketConn{}}
}

func (b *bfdHub) add(d *detector) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	is4 := d.peer.Is4()
	if b.listen[is4] == nil {
		network := "udp6"
		if is4 {
			network = "udp4"
		}
		conn, err := net.ListenPacket(network, fmt.Sprintf(":%d", bfdPort))
		if err != nil {
			return fmt.Errorf("BFD cannot listen on UDP port %d: %s; does another BFD run on this node?", bfdPort, cause(err))
		}
		if err := b.serve(conn, is4); err != nil {
			conn.Close()
			return err
		}
		b.listen[is4] = conn
	}
	b.peers[d.peer] = d
	return nil
}

func (b *bfdHub) remove(peer netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.peers, peer)
	for other := range b.peers {
		if other.Is4() == peer.Is4() {
			return
		}
	}
	if conn := b.listen[peer.Is4()]; conn != nil {
		conn.Close()
		delete(b.listen, peer.Is4())
	}
}

// serve reads until conn is closed.
func (b *bfdHub) serve(conn net.PacketConn, is4 bool) error {
	var read func(p []byte) (n, ttl int, from net.Addr, err error)
	if is4 {
		c := ipv4.NewPacketConn(conn)
		if err := c.SetControlMessage(ipv4.FlagTTL, true); err != nil {
			return fmt.Errorf("BFD: TTL of what is received: %w", err)
		}
		read = func(p []byte) (int, int, net.Addr, error) {
			n, cm, from, err := c.ReadFrom(p)
			if cm == nil {
				return n, 0, from, err
			}
			return n, cm.TTL, from, err
		}
	} else {
		c := ipv6.NewPacketConn(conn)
		if err := c.SetControlMessage(ipv6.FlagHopLimit, true); err != nil {
			return fmt.Errorf("BFD: hop limit of what is received: %w", err)
		}
		read = func(p []byte) (int, int, net.Addr, error) {
			n, cm, from, err := c.ReadFrom(p)
			if cm == nil {
				return n, 0, from, err
			}
			return n, cm.HopLimit, from, err
		}
	}
	go func() {
		p := make([]byte, 1500)
		for {
			n, ttl, from, err := read(p)
			if err != nil {
				return
			}
			// A packet that somebody has forwarded is not from a neighbour (RFC 5881 §5).
			if udp, ok := from.(*net.UDPAddr); ok && ttl == maxTTL {
				b.deliver(udp.AddrPort().Addr().Unmap(), p[:n])
			}
		}
	}()
	return nil
}

func (b *bfdHub) deliver(from netip.Addr, body []byte) {
	h := &packet.BFDHeader{}
	if h.UnmarshalBinary(body) != nil {
		return
	}
	b.mu.Lock()
	d := b.peers[from]
	b.mu.Unlock()
	if d == nil {
		return
	}
	select {
	case d.in <- h:
	default: // It is behind, and the newest packets matter least to it.
	}
}
