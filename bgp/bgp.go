package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/notify"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// Options are what a Server is made with.
type Options struct {
	Logger     *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics
	// Restarting says that forwarding went on while this process was away:
	// routers with graceful restart are asked to keep the routes from before
	// until they have received the new ones (RFC 4724 §4.1). It must not be set
	// when the kernel's state was lost, as after a reboot: the routers would
	// send traffic to a node that drops it.
	Restarting bool
}

// A CloseMode says how to close all sessions.
type CloseMode int

const (
	// Withdraw closes all sessions with a NOTIFICATION; routers drop the routes at once.
	Withdraw CloseMode = iota
	// Restart closes the connections of routers with graceful restart silently; they
	// keep the routes for RestartTime. The others drop them.
	Restart
)

// A Server does what a State says. All its methods can be called at any time
// and from any goroutine.
type Server struct {
	log         *slog.Logger
	restarting  bool
	changed     chan struct{}
	bfdReceiver *bfdReceiver
	acceptor    *acceptor

	// gate is held (by a value in it) while routes change, and by each session
	// from the router's first KEEPALIVE until GoBGP takes it for established.
	// Between sending a new neighbour the table and that, there is an instant in
	// which GoBGP sends it no changes and does not remember them either: a route
	// withdrawn then would stay with the router for ever.
	gate chan struct{}

	// setting is held during Set and Close. What they alone use follows.
	setting sync.Mutex
	closed  bool
	asked   State // the last State as it came, to compare pointers with
	retry   bool  // the last Set could not do all it should have

	// mu protects the rest. It is held for moments only, and no goroutine
	// waits while it holds mu.
	mu          sync.Mutex
	engine      *engine // nil until there are sessions
	sessions    []*session
	closing     []*session        // ended, and not closed yet
	routes      []Route           // in GoBGP's table, sorted
	targets     map[string]uint32 // that the table's routes are marked for
	weightAS    uint16            // that the table's routes have weights with; 0: none have
	have        []netip.Prefix
	problems    []error
	syncing     *syncing   // nil before the first Set
	hadSessions bool       // syncing is about the first State with sessions
	shutdown    bool       // what the engine has
	asn         uint32     // the last State's
	routerID    netip.Addr // the last State's
}

// New returns a Server that does nothing yet.
func New(o Options) *Server {
	s := &Server{
		log:         o.Logger,
		restarting:  o.Restarting,
		changed:     make(chan struct{}, 1),
		gate:        make(chan struct{}, 1),
		bfdReceiver: newBFDReceiver(),
		acceptor:    newAcceptor(),
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(newMetrics(s))
	}
	return s
}

// Changed gets a value after some session has changed. It has room for one, so
// that no sender waits for the reader.
func (s *Server) Changed() <-chan struct{} { return s.changed }

func (s *Server) notify() {
	notify.Changed(s.changed)
}

// Set makes want the state of this node. It does as much as possible, and
// returns, also with an error, the prefixes that are sent to routers, or will be
// as soon as their session is up, sorted. A session that ends counts until it is closed;
// [Server.Changed] signals that. Routes that cannot be sent to any router
// are missing in it; [Server.Status] says why. An error joins [Faults], if something
// is wrong with want, and what failed, which the next Set tries again.
//
// GoBGP has the routes of a Set before its sessions open, so that a router receives all of
// them first. Set waits neither until sessions are established nor until ended ones are
// closed, which takes up to 2 s; a session with the same router opens after that.
//
// A Set with the same slices as the Set before costs nothing. The caller must not write to the
// returned slice or, from then on, to want.
func (s *Server) Set(ctx context.Context, want State) (have []netip.Prefix, err error) {
	s.setting.Lock()
	defer s.setting.Unlock()
	if s.closed {
		return nil, errors.New("BGP is closed")
	}
	if !s.unchanged(want) {
		s.asked = want
		good, problems := check(want)
		err = s.apply(ctx, good)
		s.retry = err != nil
		s.recordResult(problems)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) > 0 {
		return s.have, errors.Join(Faults(s.problems), err)
	}
	return s.have, err
}

func (s *Server) unchanged(want State) bool {
	a := s.asked
	return s.syncing != nil && !s.retry && a.ASN == want.ASN && a.RouterID == want.RouterID && a.Shutdown == want.Shutdown &&
		a.NextHop4 == want.NextHop4 && a.NextHop6 == want.NextHop6 && sortedset.Same(a.Sessions, want.Sessions) && sortedset.Same(a.Routes, want.Routes)
}

// recordResult keeps what Set returns and Status reports.
func (s *Server) recordResult(problems []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = problems
	s.recordHave()
	if s.syncing == nil {
		s.syncing = newSyncing(time.Now(), nil)
	}
	s.notify()
}

// recordHave keeps the prefixes that Set returns: the same slice if they are equal, for callers
// that compare pointers. The caller holds mu.
func (s *Server) recordHave() {
	sessions := s.confs()
	for _, x := range s.closing {
		sessions = append(sessions, x.conf)
	}
	if have := announced(s.routes, sessions); !slices.Equal(have, s.have) {
		s.have = have
	}
}

// Synced returns when all routers that had graceful restart in the first State
// with sessions had received everything, or could not be reached within
// RestartTime and so have forgotten this node. Until then they may hold routes
// from before a restart. It is false before the first Set, and without such
// routers the time of that.
func (s *Server) Synced() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.syncing == nil {
		return time.Time{}, false
	}
	return s.syncing.done(time.Now())
}

// Close ends all sessions by mode and waits until the routers have received
// all messages, or ctx ends. A closed Server cannot be used again.
func (s *Server) Close(ctx context.Context, mode CloseMode) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.closed = true
	return s.stop(ctx, mode)
}

// apply goes from what is to want: routes first, so that a session that opens
// finds them, and one that closes does not hold them up.
func (s *Server) apply(ctx context.Context, want State) error {
	err := s.identify(ctx, want)
	err = errors.Join(err, s.setShutdown(ctx, want.Shutdown))
	err = errors.Join(err, s.setUnweighted(ctx, want))
	err = errors.Join(err, s.setRoutes(ctx, want))
	if len(want.identityFaults()) > 0 {
		return err // open sessions stay, with the identity that they have
	}
	s.setSessions(want)
	return err
}

// identify records the AS number and router ID, and starts an engine if want needs one.
func (s *Server) identify(ctx context.Context, want State) error {
	if len(want.Sessions) == 0 || len(want.identityFaults()) > 0 {
		return nil
	}
	s.mu.Lock()
	s.asn, s.routerID = want.ASN, want.RouterID
	s.mu.Unlock()
	if s.engine != nil {
		return nil
	}
	e, err := startEngine(ctx, s.log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine = e
	return nil
}

// stop ends the engine and all its sessions. The Server has forgotten them then, also after an
// error.
func (s *Server) stop(ctx context.Context, mode CloseMode) error {
	s.mu.Lock()
	e, sessions := s.engine, slices.Concat(s.sessions, s.closing)
	s.shutdown = false
	s.engine, s.sessions, s.closing, s.routes, s.targets, s.weightAS, s.have = nil, nil, nil, nil, nil, 0, nil
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	err := end(ctx, sessions, errStopping)
	err = errors.Join(err, e.stop(ctx, mode == Restart))
	stopBFD(ctx, sessions)
	s.notify()
	return err
}

// closeNoticeTime is how long a router may take to notice that its connection is closed.
const closeNoticeTime = 100 * time.Millisecond

// stopBFD ends BFD, after the connections. FRR takes BFD's goodbye, as it would the silence,
// for the loss of a session that is still open, and forgets routes that graceful
// restart has it keep.
func stopBFD(ctx context.Context, sessions []*session) {
	if !slices.ContainsFunc(sessions, func(s *session) bool { return s.conf.BFD.enabled() }) {
		return
	}
	select {
	case <-time.After(closeNoticeTime):
	case <-ctx.Done():
	}
	for _, x := range sessions {
		x.stopDetector()
	}
}

// holdGate holds the gate until reopen is called: no session comes up meanwhile.
func (s *Server) holdGate(ctx context.Context) (reopen func(), err error) {
	select {
	case s.gate <- struct{}{}:
		return func() { <-s.gate }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// setShutdown marks all routes, also routes that routers have, as about to go, or not. No
// session comes up meanwhile: it could miss the change.
func (s *Server) setShutdown(ctx context.Context, want bool) error {
	if s.engine == nil || s.shutdown == want {
		return nil
	}
	reopen, err := s.holdGate(ctx)
	if err != nil {
		return err
	}
	defer reopen()
	if err := s.engine.setShutdown(ctx, want); err != nil {
		return fmt.Errorf("graceful shutdown: %w", err)
	}
	s.shutdown = want
	return nil
}

// setSessions closes the sessions that are not in want, or not as they are, and
// then opens the missing ones.
func (s *Server) setSessions(want State) {
	if s.engine == nil {
		return
	}
	sessions := make([]Session, len(want.Sessions))
	for i, x := range want.Sessions {
		sessions[i] = x.resolved(want)
	}
	del, add := diff(s.confs(), sessions, compareSessions)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeSessions(del)
	first := !s.hadSessions && len(want.Sessions) > 0
	if first {
		s.hadSessions = true
		s.syncing = newSyncing(time.Now(), want.Sessions)
		time.AfterFunc(time.Until(s.syncing.limit()), s.notify)
	}
	for _, conf := range add {
		s.open(conf, first)
	}
}

// confs are the open sessions as they were configured, resolved.
func (s *Server) confs() []Session {
	confs := make([]Session, len(s.sessions))
	for i, x := range s.sessions {
		confs[i] = x.conf
	}
	return confs
}

func (s *Server) open(conf Session, first bool) {
	x := &session{
		conf:         conf,
		neighborAddr: s.engine.neighborAddr(conf),
		engine:       s.engine,
		gate:         s.gate,
		bfdReceiver:  s.bfdReceiver,
		acceptor:     s.acceptor,
		log:          s.log.With("peer", conf.Name),
		changed:      s.notify,
		synced:       func(at time.Time) { s.markSynced(conf.Name, at) },
	}
	if first && s.restarting && conf.GracefulRestart {
		x.restartUntil = time.Now().Add(conf.restartTime())
	}
	i, _ := slices.BinarySearchFunc(s.sessions, x, func(a, b *session) int { return compareSessions(a.conf, b.conf) })
	s.sessions = slices.Insert(slices.Clone(s.sessions), i, x)
	// GoBGP knows a session by the router's address.
	var before []*session
	for _, old := range s.closing {
		if old.neighborAddr == x.neighborAddr {
			before = append(before, old)
		}
	}
	x.start(before)
}

func (s *Server) markSynced(name string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncing.mark(name, at)
}

// closeSessions ends sessions. They go on closing: a router may take its time, for which the others
// need not wait. The caller holds mu.
func (s *Server) closeSessions(del []Session) {
	var staying []*session
	for _, x := range s.sessions {
		if !slices.Contains(del, x.conf) {
			staying = append(staying, x)
			continue
		}
		s.closing = append(slices.Clip(s.closing), x)
		x.cancel(errClosing)
		go s.forget(x)
	}
	s.sessions = staying
}

// forget waits until a session is closed.
func (s *Server) forget(x *session) {
	<-x.done
	s.mu.Lock()
	i := slices.Index(s.closing, x)
	if i >= 0 { // else the Server was stopped
		s.closing = slices.Delete(slices.Clone(s.closing), i, i+1)
		s.recordHave()
	}
	s.mu.Unlock()
	if i >= 0 {
		s.notify()
	}
}

// end ends sessions at once and waits for all of them.
func end(ctx context.Context, sessions []*session, why error) error {
	for _, x := range sessions {
		x.cancel(why)
	}
	for _, x := range sessions {
		select {
		case <-x.done:
		case <-ctx.Done():
			return fmt.Errorf("session %s: still closing: %w", x.conf.Name, ctx.Err())
		}
	}
	return nil
}
