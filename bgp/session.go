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
	"time"
)

const (
	// openTimeout is how long a router may take from accepting a connection to
	// its first KEEPALIVE. RFC 4271 §8.2.2 suggests 4 minutes; a router that
	// reboots in that time should not make us wait for so long.
	openTimeout = 30 * time.Second

	// closeTimeout is how long we wait for GoBGP to take its leave of a router:
	// a second to send the NOTIFICATION, and the time to drain.
	closeTimeout = 2 * time.Second

	// pollTime is how often GoBGP is asked for a state that it is about to reach.
	pollTime = time.Millisecond
)

// Why a session's context ended.
var (
	errClosing = errors.New("session closes")
	// errStopping: the whole engine stops, and ends the session itself, with a
	// NOTIFICATION or without.
	errStopping = errors.New("BGP stops")
)

// A session keeps one Session going: it connects, lets GoBGP speak until the
// connection ends, and connects again, for ever.
type session struct {
	conf     Session
	localASN uint32
	engine   *engine
	gate     chan struct{}
	log      *slog.Logger

	// restartUntil is until when the router may hold routes from before our
	// restart; zero when we did not restart, or forgot how to forward.
	restartUntil time.Time
	// changed and synced report to the Server. They do not wait for anybody.
	changed func()
	synced  func(at time.Time)

	cancel context.CancelCauseFunc
	done   chan struct{}

	mu    sync.Mutex
	facts sessionFacts
}

// sessionFacts are what is known of a session now.
type sessionFacts struct {
	state       SessionState
	since       time.Time // when it became established, or ceased to be
	flaps       int
	lastError   string
	lastErrorAt time.Time
	updates     int   // sent on wires before this one
	wire        *wire // nil between connections
	local       netip.Addr
}

func (s *session) start() {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.cancel, s.done = cancel, make(chan struct{})
	s.facts = sessionFacts{state: Idle, since: time.Now()}
	go s.run(ctx)
}

// run makes attempts that begin at least a ConnectTime apart: after a long
// session the next attempt follows at once, and a router that refuses is not
// hammered.
func (s *session) run(ctx context.Context) {
	defer close(s.done)
	for ctx.Err() == nil {
		next := time.After(jitter(s.conf.connectTime()))
		reason := s.attempt(ctx)
		s.ended(ctx, reason)
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}

// jitter keeps speakers that started together from staying together (RFC 4271 §10).
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.75 + rand.Float64()/4))
}

// attempt is one connection from beginning to end. It says why it ended.
func (s *session) attempt(ctx context.Context) string {
	s.enter(Connect, nil)
	conn, err := dial(ctx, s.conf, s.localASN)
	if err != nil {
		return dialError(s.conf, err)
	}
	var w *wire
	w = newWire(conn, s.gate, func() { s.heard(w) })
	s.enter(Active, w)
	remote, handedOver, reason := addrOf(conn.RemoteAddr()), false, ""
	if err := s.engine.addNeighbor(ctx, s.neighbor(conn)); err != nil {
		reason = fmt.Sprintf("GoBGP refuses the session: %v", err)
	} else {
		handedOver, reason = s.speak(ctx, w, remote)
	}
	s.leave(ctx, w, remote, handedOver)
	if reason != "" {
		return reason
	}
	return endReason(s.conf, s.localASN, w.seen())
}

func (s *session) neighbor(conn net.Conn) neighbor {
	return neighbor{
		conf:       s.conf,
		remote:     addrOf(conn.RemoteAddr()),
		local:      addrOf(conn.LocalAddr()),
		asn:        s.localASN,
		restarting: time.Now().Before(s.restartUntil),
	}
}

// addrOf keeps the zone as package net names it, which is how GoBGP will look
// the neighbour up, whatever it was called in the configuration.
func addrOf(a net.Addr) netip.Addr { return a.(*net.TCPAddr).AddrPort().Addr() }

// speak has GoBGP speak on w until it ends. It says whether GoBGP got hold of w,
// and why the session ended if w does not tell.
func (s *session) speak(ctx context.Context, w *wire, remote netip.Addr) (handedOver bool, reason string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(openTimeout, func() {
		cancel(fmt.Errorf("router took the connection, but did not get as far as a KEEPALIVE within %s", openTimeout))
	})
	defer silence.Stop()

	if err := s.await(ctx, w, remote, Active); err != nil {
		return false, err.Error()
	}
	if err := s.engine.handOver(ctx, w); err != nil {
		return false, err.Error()
	}
	s.enter(OpenSent, w)
	select {
	case <-w.passing:
	case <-w.closed:
		return true, ""
	case <-ctx.Done():
		return true, context.Cause(ctx).Error()
	}
	if err := s.await(ctx, w, remote, Established); err != nil {
		return true, err.Error()
	}
	silence.Stop()
	w.release()
	s.up(w)
	select {
	case <-w.closed:
	case <-ctx.Done():
	}
	return true, ""
}

// await waits until the neighbour has reached a state. It is not an error when
// w is closed before, and w tells why.
func (s *session) await(ctx context.Context, w *wire, remote netip.Addr, want SessionState) error {
	for {
		got, err := s.engine.state(ctx, remote)
		if err != nil || got == want {
			return err
		}
		select {
		case <-w.closed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollTime):
		}
	}
}

// leave ends what attempt began. When the engine stops it does that itself.
func (s *session) leave(ctx context.Context, w *wire, remote netip.Addr, handedOver bool) {
	if context.Cause(ctx) == errStopping && handedOver {
		return
	}
	if err := s.engine.deleteNeighbor(context.WithoutCancel(ctx), remote); err != nil {
		s.log.Debug("neighbour is gone already", "err", err)
	}
	if handedOver {
		select {
		case <-w.closed: // the Cease is out
		case <-time.After(closeTimeout):
		}
	}
	w.Close()
}

func (s *session) enter(state SessionState, w *wire) {
	s.mu.Lock()
	s.facts.state, s.facts.wire = state, w
	if w != nil {
		s.facts.local = addrOf(w.LocalAddr())
	}
	s.mu.Unlock()
}

func (s *session) up(w *wire) {
	now := time.Now()
	w.note(func(f *wireFacts) { f.established = now })
	s.mu.Lock()
	s.facts.state, s.facts.since = Established, now
	s.mu.Unlock()
	s.restartUntil = time.Time{}
	s.log.Info("session up", "address", s.conf.PeerAddress, "asn", s.conf.PeerASN)
	s.heard(w)
}

// ended records why an attempt ended. Ends that this node asked for are not
// errors, and attempts that fail like the one before are not logged.
func (s *session) ended(ctx context.Context, reason string) {
	s.mu.Lock()
	wasUp, known := s.facts.state == Established, s.facts.lastError == reason
	if w := s.facts.wire; w != nil {
		s.facts.updates += w.seen().updates
	}
	s.facts.state, s.facts.wire = Active, nil
	now := time.Now()
	if wasUp {
		s.facts.since = now
	}
	stopped := ctx.Err() != nil
	if stopped {
		s.facts.state = Idle
	} else {
		s.facts.lastError, s.facts.lastErrorAt = reason, now
		if wasUp {
			s.facts.flaps++
		}
	}
	s.mu.Unlock()
	switch {
	case stopped && wasUp:
		s.log.Info("session closed")
	case wasUp:
		s.log.Info("session down", "reason", reason)
	case !stopped && !known:
		s.log.Warn("session does not come up", "address", s.conf.PeerAddress, "reason", reason)
	}
	s.changed()
}

// heard is called when something that matters was seen on w.
func (s *session) heard(w *wire) {
	if at, ok := ribSent(s.conf, w.seen()); ok {
		s.synced(at)
	}
	s.changed()
}

// ribSent tells when the router had been told everything. Without graceful
// restart on both sides no End-of-RIB is sent, and there is nothing to wait for:
// the router dropped our routes when the session before ended.
func ribSent(s Session, f wireFacts) (time.Time, bool) {
	if f.established.IsZero() || f.open == nil {
		return time.Time{}, false
	}
	if !s.GracefulRestart || !f.open.gracefulRestart {
		return f.established, true
	}
	last := f.established
	for fam, takesPart := range [families]bool{ipv4Unicast: f.open.ipv4, ipv6Unicast: f.open.ipv6} {
		if !takesPart {
			continue
		}
		at := f.endOfRIB[fam]
		if at.IsZero() {
			return time.Time{}, false
		}
		if at.After(last) {
			last = at
		}
	}
	return last, true
}
