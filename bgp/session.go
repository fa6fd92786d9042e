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

	"github.com/fanfare-lb/fanfare/bgp/radv"
)

const (
	// openTimeout is how long a router may take from accepting a connection to its first KEEPALIVE.
	// RFC 4271 §8.2.2 suggests 4 minutes, too long to wait for a router that reboots meanwhile.
	openTimeout = 30 * time.Second

	// closeTimeout is how long to wait until GoBGP has closed a session: a second to send the
	// NOTIFICATION, and the time to drain.
	closeTimeout = 2 * time.Second

	// maxLoggedReasons limits the log of a session that stays down: a reason can contain text from
	// the router.
	maxLoggedReasons = 10

	// pollTime is the interval at which GoBGP is asked for a state that it is about to reach.
	pollTime = time.Millisecond
)

// Reasons why a session's context ended.
var (
	errClosing = errors.New("session closes")
	// errStopping: the whole engine stops, and ends the session itself, with or without a
	// NOTIFICATION.
	errStopping = errors.New("BGP stops")
)

// A session keeps one Session established: it connects, hands the connection to GoBGP until it
// ends, and connects again, until its context ends.
type session struct {
	conf         Session    // resolved
	neighborAddr netip.Addr // the router's address in GoBGP
	engine       *engine
	gate         chan struct{}
	bfdReceiver  *bfdReceiver
	acceptor     *acceptor
	log          *slog.Logger

	// restartUntil is when the router drops routes from before this node's restart; zero if it did
	// not restart, or lost its forwarding state.
	restartUntil time.Time
	// changed and synced report to the Server. They do not block.
	changed func()
	synced  func(at time.Time)

	link          *radv.Watch // nil if the router's address is configured
	cancel        context.CancelCauseFunc
	done          chan struct{}
	incoming      chan *net.TCPConn // connections that the router opened; for passive sessions
	loggedReasons map[string]bool   // reasons logged since the session was up

	mu        sync.Mutex
	facts     sessionFacts
	detector  *detector // nil before the first connection, and without BFD
	rejection error     // why the router's last connection was rejected; nil if it was not
}

// start runs the session once earlier ones with the same router are closed.
func (s *session) start(before []*session) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.cancel, s.done, s.loggedReasons = cancel, make(chan struct{}), map[string]bool{}
	s.incoming = make(chan *net.TCPConn, 1)
	s.facts = sessionFacts{state: Idle, since: time.Now()}
	go func() {
		defer close(s.done)
		for _, old := range before {
			<-old.done
		}
		s.run(ctx)
	}()
}

// run makes one attempt after another until ctx ends.
func (s *session) run(ctx context.Context) {
	defer func() {
		if context.Cause(ctx) != errStopping { // otherwise BFD outlives the connection: see stopBFD
			s.stopDetector()
		}
	}()
	defer s.acceptor.leave(s)
	var moved <-chan struct{} // nil, so that it never fires, for a router with an address
	if s.conf.Interface != "" {
		link := radv.Start(ctx, s.conf.Interface)
		s.mu.Lock()
		s.link = link
		s.mu.Unlock()
		moved = link.Changed()
	}
	pace := pacing{limit: s.conf.connectTime()}
	s.awaitBFDTimeout(ctx)
	for ctx.Err() == nil {
		begin := time.Now()
		reason := s.attempt(ctx)
		s.ended(ctx, reason)
		next := time.NewTimer(pace.after(time.Since(begin)))
		select {
		case <-next.C:
		case <-moved:
			next.Stop()
			pace.last = 0
		case <-ctx.Done():
			next.Stop()
		}
	}
}

// awaitBFDTimeout gives the router time to detect by BFD that the previous process is gone, in case
// that one could not send AdminDown. On detection FRR ends its session, and drops the routes that
// graceful restart should keep.
func (s *session) awaitBFDTimeout(ctx context.Context) {
	if b := s.conf.BFD; b.enabled() && !s.restartUntil.IsZero() {
		select {
		case <-time.After(min(time.Duration(b.Multiplier)*b.Transmit, s.conf.restartTime()/2)):
		case <-ctx.Done():
		}
	}
}

// firstPause separates the first two attempts. A router that has just lost its session refuses
// connections for a moment (FRR for about a second).
const firstPause = 100 * time.Millisecond

// pacing spaces attempts: the first follow quickly, later ones up to ConnectTime apart, so that a
// router that refuses is not flooded.
type pacing struct {
	limit time.Duration
	last  time.Duration
}

// after returns the pause after an attempt of this duration. A long one was a working session, so
// the next pauses are short again.
func (p *pacing) after(took time.Duration) time.Duration {
	if p.last == 0 || took > p.limit+openTimeout {
		p.last = firstPause
	} else {
		p.last += p.last / 2
	}
	p.last = min(p.last, p.limit)
	return max(jitter(p.last)-took, 0)
}

// jitter spreads speakers that started together (RFC 4271 §10).
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.75 + rand.Float64()/4))
}

// located returns the session with its router's address, which is valid until link ends.
func (s *session) located() (conf Session, link context.Context, err error) {
	conf, link = s.conf, context.Background()
	if s.link != nil {
		conf.PeerAddress, link, err = s.link.Router()
		s.mu.Lock()
		s.facts.router = conf.PeerAddress
		s.mu.Unlock()
	}
	return conf, link, err
}

// attempt makes one connection, and returns why it ended.
func (s *session) attempt(ctx context.Context) string {
	conf, link, err := s.located()
	if err != nil {
		return err.Error()
	}
	conn, err := s.connect(ctx, conf)
	if err != nil {
		return dialError(conf, err)
	}
	var w *wire
	w = newWire(conn, conf, s.neighborAddr, s.gate, func() { s.report(w) })
	s.enter(Active, w)
	defer context.AfterFunc(link, func() { w.abandon(context.Cause(link).Error()) })()
	remote, handedOver, reason := s.neighborAddr, false, ""
	if err := s.engine.addNeighbor(ctx, s.neighbor(w)); err != nil {
		reason = fmt.Sprintf("GoBGP refuses the session: %v", err)
	} else {
		handedOver, reason = s.speak(ctx, w, remote)
	}
	s.leave(ctx, w, remote, handedOver)
	if reason != "" {
		return reason
	}
	return endReason(conf, w.seen())
}

// connect dials, or waits for the router's connection.
func (s *session) connect(ctx context.Context, conf Session) (*net.TCPConn, error) {
	if conf.Passive {
		s.enter(Active, nil)
		return s.receive(ctx)
	}
	s.enter(Connect, nil)
	return dial(ctx, conf)
}

func (s *session) neighbor(w *wire) neighbor {
	return neighbor{
		conf:       s.conf,
		remote:     s.neighborAddr,
		local:      addrOf(w.LocalAddr()),
		restarting: time.Now().Before(s.restartUntil),
	}
}

// speak hands w to GoBGP and waits until the connection ends. It returns whether GoBGP has got w,
// and why the session ended unless w has the reason.
func (s *session) speak(ctx context.Context, w *wire, remote netip.Addr) (handedOver bool, reason string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(openTimeout, func() {
		cancel(fmt.Errorf("router took the connection, but did not get as far as a KEEPALIVE within %s%s", openTimeout,
			silence(s.conf)))
	})
	defer silence.Stop()

	if _, err := s.await(ctx, w, remote, Active); err != nil {
		return false, err.Error()
	}
	if err := s.engine.handOver(ctx, w); err != nil {
		return false, err.Error()
	}
	s.enter(OpenSent, w)
	select {
	case <-w.passing:
	case <-w.closed:
		// If the session was up for a moment, both channels are closed by now.
		if !w.heardKeepalive() {
			return true, ""
		}
	case <-ctx.Done():
		return true, context.Cause(ctx).Error()
	}
	// A KEEPALIVE has arrived, but GoBGP may have rejected an earlier message.
	switch reached, err := s.await(ctx, w, remote, Established); {
	case err != nil:
		return true, err.Error()
	case !reached && !w.seen().endedByRouter():
		return true, ""
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

// await waits until the neighbour has reached a state. If w is closed before, that is no error: w
// has the reason.
func (s *session) await(ctx context.Context, w *wire, remote netip.Addr, want SessionState) (reached bool, err error) {
	for {
		got, err := s.engine.state(ctx, remote)
		if err != nil || got == want {
			return err == nil, err
		}
		select {
		case <-w.closed:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(pollTime):
		}
	}
}

// leave ends what attempt began. A stopping engine does that itself.
func (s *session) leave(ctx context.Context, w *wire, remote netip.Addr, handedOver bool) {
	if context.Cause(ctx) == errStopping && handedOver {
		return
	}
	if err := s.engine.deleteNeighbor(context.WithoutCancel(ctx), remote); err != nil {
		s.log.Debug("neighbour is gone already", "err", err)
	}
	if handedOver {
		select {
		case <-w.closed: // the Cease has been sent
		case <-time.After(closeTimeout):
		}
	}
	w.Close()
}

func (s *session) enter(state SessionState, w *wire) {
	s.mu.Lock()
	s.facts.state, s.facts.wire = state, w
	if w != nil {
		s.facts.local = w.local()
	}
	s.mu.Unlock()
}

func (s *session) up(w *wire) {
	now := time.Now()
	w.record(func(f *wireFacts) { f.established = now })
	s.mu.Lock()
	s.facts.state, s.facts.since = Established, now
	s.mu.Unlock()
	s.restartUntil = time.Time{}
	s.detect(w)
	s.log.Info("session up", "address", w.conf.PeerAddress, "asn", w.seen().open.asn)
	s.report(w)
}

// detect starts BFD with a router whose session has just become established, from the session's
// local address. BFD continues when the connection ends, so that it protects the next connection
// from the start.
func (s *session) detect(w *wire) {
	local := w.local()
	if !s.conf.BFD.enabled() || s.detector != nil && s.detector.local == local {
		return
	}
	s.stopDetector()
	d := &detector{
		peer: w.router(), local: local, device: s.conf.Device, receiver: s.bfdReceiver, log: s.log, lost: s.lost,
		changed: s.changed,
	}
	startDetector(d, s.conf.BFD)
	s.mu.Lock()
	s.detector = d
	s.mu.Unlock()
}

func (s *session) stopDetector() {
	s.mu.Lock()
	d := s.detector
	s.mu.Unlock()
	if d != nil {
		d.stop()
	}
}

// lost closes the connection if it is established. While a connection is being made, that shows
// better whether the router is alive.
func (s *session) lost(reason string) {
	w, up := s.connection()
	if !up {
		return
	}
	go func() { // Close gives the router a moment to read
		w.refuse(reason, codeCease, ceaseBFDDown)
		_ = w.Close()
	}()
}

// ended records why an attempt ended. If this node ended it, that is no error.
func (s *session) ended(ctx context.Context, reason string) {
	now, stopped := time.Now(), ctx.Err() != nil
	s.mu.Lock()
	f := &s.facts
	wasUp := f.state == Established
	if f.wire != nil {
		f.updates += f.wire.seen().updates
	}
	f.state, f.wire = Active, nil
	if wasUp {
		f.since = now
	}
	if stopped {
		f.state = Idle
	} else {
		f.lastError, f.lastErrorAt = reason, now
		if wasUp {
			f.flaps++
			f.loss = reason
		}
	}
	s.mu.Unlock()
	s.logEnd(wasUp, stopped, reason)
	s.changed()
}

// logEnd logs each reason once while a session is down, even if two reasons alternate.
func (s *session) logEnd(wasUp, stopped bool, reason string) {
	switch {
	case wasUp && stopped:
		s.log.Info("session closed")
	case wasUp:
		s.loggedReasons = map[string]bool{}
		s.log.Info("session down", "reason", reason)
	case !stopped && !s.loggedReasons[reason] && len(s.loggedReasons) < maxLoggedReasons:
		s.loggedReasons[reason] = true
		s.log.Warn("session does not come up", "address", s.conf.routerText(), "reason", reason)
	}
}

// report notifies the Server that w has seen a message that changes the status.
func (s *session) report(w *wire) {
	if at, ok := ribSent(s.conf, w.seen()); ok {
		s.synced(at)
	}
	s.changed()
}

// ribSent returns when the router had received everything. Without graceful restart on both sides
// no End-of-RIB is sent, and there is nothing to wait for: the router dropped its routes when the
// previous session ended.
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
