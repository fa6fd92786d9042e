package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// bfdRetry is the interval at which a detector retries to open its sockets: another BFD
// implementation on this node may have the port.
const bfdRetry = 5 * time.Second

// A detector runs BFD with one router, from the first BGP connection to it until its session is
// closed. It continues between connections.
type detector struct {
	peer, local netip.Addr
	device      string // the device that packets leave by; empty: by the node's routes
	receiver    *bfdReceiver
	log         *slog.Logger
	lost        func(reason string) // called when a router that was up is lost
	changed     func()

	discriminator uint32 // this node's

	in     chan bfdPacket
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	status BFDStatus
	origin origin
}

// An origin is whether an interface leads to the router, which is looked up again after until.
type origin struct {
	link  int
	leads bool
	until time.Time
}

// originTime is how long a node may take to notice that another interface leads to the router.
const originTime = time.Second

func startDetector(d *detector, conf BFD) {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel, d.in, d.done = cancel, make(chan bfdPacket, 16), make(chan struct{})
	d.status = BFDStatus{State: bfdDown.String(), Since: time.Now()}
	m := newBFDMachine(conf, rand.Uint64())
	d.discriminator = m.local
	go d.run(ctx, m)
}

// stop sends AdminDown, so that the router does not take the silence for a failure.
func (d *detector) stop() {
	d.cancel()
	<-d.done
}

// run gives the machine its clock and its sockets.
func (d *detector) run(ctx context.Context, m bfdMachine) {
	defer close(d.done)
	conn := d.open(ctx)
	if conn == nil {
		return
	}
	defer conn.Close()
	defer d.receiver.remove(d.peer)
	clock := time.NewTimer(0)
	for {
		var r bfdResult
		select {
		case <-ctx.Done():
			send(conn, m.adminDown())
			return
		case p := <-d.in:
			m, r = m.receive(time.Now(), p)
		case <-clock.C:
			m, r = d.tick(m)
		}
		for _, p := range r.send {
			send(conn, p)
		}
		clock.Stop()
		if !r.next.IsZero() {
			clock.Reset(time.Until(r.next))
		}
		d.record(&m, r.lost)
	}
}

// tick runs the machine's timer, unless a packet that proves the router alive waits to be read.
// Packets of other sessions cannot delay the timer for ever.
func (d *detector) tick(m bfdMachine) (bfdMachine, bfdResult) {
	for range cap(d.in) {
		select {
		case p := <-d.in:
			if after, r := m.receive(time.Now(), p); r.discarded == "" {
				return after, r
			}
		default:
			return m.timer(time.Now())
		}
	}
	return m.timer(time.Now())
}

// record stores the status of the machine and reports changes.
func (d *detector) record(m *bfdMachine, lost string) {
	d.mu.Lock()
	s := &d.status
	moved := s.State != m.state.String()
	if moved {
		s.State, s.Since = m.state.String(), time.Now()
	}
	if m.state == bfdUp {
		s.Error = ""
	}
	s.Detection, s.Reason = m.agreed(), ""
	if m.state != bfdUp {
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
		d.log.Info("BFD state changed", "state", m.state.String(), "reason", lost)
		d.changed()
	}
}

func (d *detector) seen() BFDStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

// expects reports whether a packet with the router's address is for this session. One with this
// node's discriminator is: only hosts on the way to the router have seen it. A router that does not
// know it sends 0 (RFC 5880 section 6.8.6), which any pod can send too, so these packets must arrive
// by an interface that leads to the router (RFC 5881 section 3).
func (d *detector) expects(p bfdPacket, link int, now time.Time) bool {
	if p.remote != 0 {
		return p.remote == d.discriminator
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.origin.link != link || !now.Before(d.origin.until) {
		d.origin = origin{link, leadsTo(link, d.peer, d.device), now.Add(originTime)}
		if !d.origin.leads && d.status.State != bfdUp.String() {
			d.status.Error = fmt.Sprintf("ignores packets from %s that arrive on %s, because this node reaches that "+
				"address by another interface", d.peer, interfaceName(link))
		}
	}
	return d.origin.leads
}

// receive passes on a packet that arrived on an interface, if the detector expects it.
func (d *detector) receive(p bfdPacket, link int) {
	if d.expects(p, link, time.Now()) {
		d.deliver(p)
	}
}

// deliver passes on a packet of the router. If the detector is behind, it drops the oldest packets,
// which matter least.
func (d *detector) deliver(p bfdPacket) {
	for {
		select {
		case d.in <- p:
			return
		default:
		}
		select {
		case <-d.in:
		default:
		}
	}
}

// open opens a socket to send from, and joins the shared one that receives. It retries until it
// succeeds, and returns nil when ctx ends first.
func (d *detector) open(ctx context.Context) net.Conn {
	for {
		conn, err := d.sockets(ctx)
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
		case <-time.After(bfdRetry):
		}
	}
}

func (d *detector) sockets(ctx context.Context) (net.Conn, error) {
	conn, err := dialBFD(ctx, d.local, d.peer, d.device)
	if err != nil {
		return nil, err
	}
	if err := d.receiver.add(d.peer, d.receive); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
