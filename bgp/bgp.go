package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// Options configure a Server.
type Options struct {
	Logger     *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics
	// Restarting says that forwarding continued while this process was away. Routers with graceful
	// restart are then asked to keep their earlier routes until they have received the new ones
	// (RFC 4724 §4.1). It must be false if the kernel lost its state, as in a reboot: routers would
	// send traffic to a node that drops it.
	Restarting bool
}

// A CloseMode says how to close all sessions.
type CloseMode int

const (
	// Withdraw closes all sessions with a NOTIFICATION; routers drop the routes at once.
	Withdraw CloseMode = iota
	// Restart closes the connections of routers with graceful restart silently. These keep the
	// routes for RestartTime; others drop them.
	Restart
)

// A Server implements a State. All its methods can be called at any time and from any goroutine.
type Server struct {
	log         *slog.Logger
	restarting  bool
	changed     chan struct{}
	bfdReceiver *bfdReceiver
	acceptor    *acceptor

	// gate is held (by a value in it) while routes change, and by each session from the router's
	// first KEEPALIVE until GoBGP considers it established. After GoBGP has sent a new neighbour
	// the table, and before the session is established to GoBGP, it neither sends changes nor
	// records them: a route withdrawn in that moment would stay with the router for ever.
	gate chan struct{}

	// setting is held during Set and Close.
	setting sync.Mutex
	asked   State // the last State as passed to Set, to compare slices by pointer

	// applying is held while GoBGP changes: by Close, by catchUp while behind, and otherwise by
	// Set.
	applying sync.Mutex
	first    bool // the sessions to open are the first ones

	// mu protects the rest. It is held briefly, and never while waiting.
	mu            sync.Mutex
	engine        *engine            // nil until there are sessions
	endWatch      context.CancelFunc // with engine: ends watchAddresses
	sessions      []*session
	closing       []*session // ended, and not closed yet
	closed        bool
	want          State             // the valid part of the last State
	edits         uint64            // the number of want
	retry         bool              // the last attempt failed in part
	behind        bool              // catchUp runs
	valid         Routes            // of the last State
	routes        Routes            // in GoBGP's table
	stale         []netip.Prefix    // routes in the table that GoBGP must send again; some may no longer exist
	targets       map[string]uint32 // the numbers that mark the table's routes
	weightAS      uint16            // the AS number of the table's weights; 0: no weights
	policyVersion uint32            // of the export policy
	sent, coming  announcement      // of routes, and while behind of want
	have          sortedset.Set[netip.Prefix]
	problems      []error
	syncing       *syncing   // nil before the first Set
	hadSessions   bool       // syncing is about the first State with sessions
	shutdown      bool       // graceful shutdown, as the engine has it
	asn           uint32     // the last State's
	routerID      netip.Addr // the last State's
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

// Changed receives a value after a session has changed. The channel holds one value, so that
// sending never blocks.
func (s *Server) Changed() <-chan struct{} { return s.changed }

// Set makes want the state of this node, as far as possible. It returns the sorted prefixes that
// are sent to routers, or will be once their sessions are up, also together with an error. A
// session that ends counts until it is closed; [Server.Changed] signals that. Routes that no router
// can receive are not included; [Server.Status] says why. The error joins [Faults], if want has
// mistakes, and failures, which the next Set retries.
//
// GoBGP gets the routes of a Set before its sessions open, so that a router receives all of them
// first. Set does not wait until sessions are established. Nor does it wait until ended ones are
// closed, which takes up to 2 s; a session with the same router opens after that. It hands no routes
// to GoBGP while a session comes up, which takes a round trip and more: they follow in the
// background, and so do the sessions that wait for them; until then, further Sets leave everything
// to the background. Meanwhile a route counts as sent if it will be, or is not withdrawn yet.
// [Server.Changed] signals the end.
//
// A Set with the same slices and routes as the one before costs nothing. The caller must not write to
// want after the call.
func (s *Server) Set(ctx context.Context, want State) (have sortedset.Set[netip.Prefix], err error) {
	s.setting.Lock()
	defer s.setting.Unlock()
	if s.closed {
		return have, errors.New("BGP is closed")
	}
	if !s.unchanged(want) {
		s.asked = want
		good, problems := check(want, s.valid)
		s.valid = good.Routes
		if !s.accept(good) {
			err = s.applyNow(ctx)
		}
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
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.asked
	return s.syncing != nil && !s.retry && a.ASN == want.ASN && a.RouterID == want.RouterID &&
		a.Shutdown == want.Shutdown && a.NextHop4 == want.NextHop4 && a.NextHop6 == want.NextHop6 &&
		sortedset.Same(a.Sessions, want.Sessions) && a.Routes.Same(want.Routes)
}

// accept records the wanted State, and reports whether the background applies it.
func (s *Server) accept(want State) (behind bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = want
	s.edits++
	return s.behind
}

// applyNow applies the wanted State, or leaves it to the background while a session comes up.
func (s *Server) applyNow(ctx context.Context) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	done, err := s.apply(ctx, s.newest())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry, s.behind = err != nil, !done && err == nil
	if s.behind {
		go s.catchUp()
	}
	return err
}

// recordResult stores the result for Set and Status.
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

// Close ends all sessions by mode and waits until the routers have received
// all messages, or ctx ends. A closed Server cannot be used again.
func (s *Server) Close(ctx context.Context, mode CloseMode) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.applying.Lock()
	defer s.applying.Unlock()
	return s.stop(ctx, mode)
}

// An edit is a State and the number of its Set.
type edit struct {
	State
	number uint64
}

func (s *Server) newest() edit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return edit{s.want, s.edits}
}

// apply changes the node from its state to want, and reports whether it is done. Unwanted sessions
// end first, so that their routers receive no new routes. Sessions open last, so that they find all
// routes. If another Set has returned meanwhile, apply opens no session and adds no route, because
// the result of that Set does not include them.
func (s *Server) apply(ctx context.Context, want edit) (done bool, err error) {
	err = s.identify(ctx, want.State)
	if s.engine == nil {
		return true, err
	}
	identified := len(want.identityFaults()) == 0 // otherwise open sessions keep their identity
	if identified {
		s.endSessions(want.State)
	}
	err = errors.Join(err, s.setShutdown(ctx, want.Shutdown), s.setNoBandwidth(ctx, want.State))
	done, failed := s.setRoutes(ctx, want)
	if identified && (done || failed != nil) {
		s.openSessions(want)
	}
	return done, errors.Join(err, failed)
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
	watch, cancel := context.WithCancel(context.Background())
	go s.watchAddresses(watch)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine, s.endWatch = e, cancel
	return nil
}

// stop ends the engine with all its sessions. The Server drops them even after an error.
func (s *Server) stop(ctx context.Context, mode CloseMode) error {
	s.mu.Lock()
	e, endWatch, sessions := s.engine, s.endWatch, slices.Concat(s.sessions, s.closing)
	s.shutdown = false
	s.engine, s.sessions, s.closing, s.stale, s.targets, s.weightAS, s.policyVersion = nil, nil, nil, nil, nil, 0, 0
	s.routes, s.sent, s.coming, s.have = Routes{}, announcement{}, announcement{}, sortedset.Set[netip.Prefix]{}
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	endWatch()
	err := end(ctx, sessions, errStopping)
	err = errors.Join(err, e.stop(ctx, mode == Restart))
	stopBFD(ctx, sessions)
	s.notify()
	return err
}

// catchUp does the work that Sets have left while a session came up.
func (s *Server) catchUp() {
	for more := true; more; {
		s.applying.Lock()
		more = s.proceed()
		s.applying.Unlock()
	}
	s.notify()
}

// proceed applies the wanted State, and reports whether work is left. The caller holds applying.
func (s *Server) proceed() (more bool) {
	want := s.newest()
	if s.isClosed() {
		return false
	}
	done, err := s.apply(context.Background(), want)
	if err != nil {
		s.log.Error("routes not exchanged", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && (!done || s.edits != want.number) {
		return true
	}
	s.behind, s.retry = false, err != nil // the next Set tries again
	s.recordHave()
	return false
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}
