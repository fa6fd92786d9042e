package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// setNoBandwidth sets which routers get weights. If that changes for a router whose session stays,
// all routes with weights are sent again.
func (s *Server) setNoBandwidth(ctx context.Context, want State) error {
	was, is := s.engine.noBandwidth, s.engine.withoutBandwidth(want)
	if slices.Equal(was, is) {
		return nil
	}
	if err := s.engine.setNoBandwidth(ctx, is); err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	if s.weightAS != 0 && slices.ContainsFunc(s.sessions, func(x *session) bool {
		return slices.Contains(was, x.neighborAddr) != slices.Contains(is, x.neighborAddr)
	}) {
		s.bumpPolicyVersion()
	}
	return nil
}

// bumpPolicyVersion makes GoBGP send all routes again, because its export policy has changed.
func (s *Server) bumpPolicyVersion() {
	s.mu.Lock()
	s.policyVersion++
	s.mu.Unlock()
	s.reannounce(func(Route) bool { return true })
}

// reannounce queues the routes that differs selects, because GoBGP must now send them differently.
func (s *Server) reannounce(differs func(Route) bool) {
	stale := slices.Clone(s.stale)
	for r := range s.routes.All() {
		if differs(r) {
			stale = append(stale, r.Prefix)
		}
	}
	slices.SortFunc(stale, sortedset.ComparePrefixes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = slices.Compact(stale)
}

// updateMarks queues the routes whose marks or attributes in GoBGP's table change, although the
// routes do not.
func (s *Server) updateMarks(targets map[string]uint32, weightAS uint16) {
	if s.retry {
		s.reannounce(func(Route) bool { return true })
	}
	if !maps.Equal(s.targets, targets) { // routers have other numbers now
		s.reannounce(func(r Route) bool { return r.Peers != "" || r.Attributes.Differ() })
	}
	if s.weightAS != weightAS {
		s.reannounce(func(r Route) bool { return r.Weight != 0 })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets, s.weightAS = targets, weightAS
}

// setRoutes changes GoBGP's table to want's routes, unless a session is coming up, and reports whether
// it is done.
func (s *Server) setRoutes(ctx context.Context, want edit) (done bool, err error) {
	targets, err := s.engine.targets(ctx, want.Sessions)
	if err != nil {
		return false, err
	}
	s.updateMarks(targets, want.weightAS())
	if s.routes.Same(want.Routes) && len(s.stale) == 0 {
		return true, nil
	}
	reopen := s.tryGate()
	if reopen == nil {
		return false, nil
	}
	defer reopen()
	current, err := s.exchange(ctx, want)
	if err == nil && current {
		err = s.refresh(ctx)
	}
	if err != nil || !current {
		return false, err
	}
	// Until now, stale routes may have had attribute sets that no wanted route has.
	return true, s.engine.forget(ctx, s.routes, s.targets)
}

// exchange replaces the routes. current is false if another Set has changed what is wanted. The caller
// holds the gate. After an error the table, and s.routes, may contain more than they should.
func (s *Server) exchange(ctx context.Context, want edit) (current bool, err error) {
	withdraw, announce := diffRoutes(s.routes, want.Routes)
	table := want.Routes
	if len(withdraw) > 0 {
		table = sortedset.With(s.routes, announce, compareRoutes)
	}
	if !s.setTable(table, want.number) {
		return false, nil
	}
	// Withdraw after announcing: a withdrawn route may cover the same address as an announced one.
	if err = s.engine.announce(ctx, announce, s.marking()); err != nil {
		err = fmt.Errorf("announcing %d routes: %w", len(announce), err)
	}
	if gone := s.engine.withdraw(withdraw); gone != nil {
		return true, errors.Join(err, fmt.Errorf("withdrawing %d routes: %w", len(withdraw), gone))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes = want.Routes
	return true, err
}

// setTable records the table before GoBGP gets it. It returns false if another Set than this one
// has changed what is wanted.
func (s *Server) setTable(table Routes, number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.edits != number {
		return false
	}
	s.routes = table
	return true
}

func (s *Server) marking() marking { return marking{s.targets, s.weightAS, s.policyVersion} }

// refresh announces the stale routes again. The caller holds the gate.
func (s *Server) refresh(ctx context.Context) error {
	var again []Route
	for _, p := range s.stale {
		if r, there := sortedset.Get(s.routes, Route{Prefix: p}, compareRoutes); there {
			again = append(again, r)
		}
	}
	s.mu.Lock()
	s.stale = nil
	s.mu.Unlock()
	if err := s.engine.announce(ctx, again, s.marking()); err != nil {
		return fmt.Errorf("announcing %d routes again: %w", len(again), err)
	}
	return nil
}

// setShutdown marks all routes as about to be withdrawn, or no longer, including
// routes that routers have.
func (s *Server) setShutdown(ctx context.Context, want bool) error {
	if s.shutdown == want {
		return nil
	}
	if err := s.engine.setShutdown(ctx, want); err != nil {
		return fmt.Errorf("graceful shutdown: %w", err)
	}
	s.shutdown = want
	s.bumpPolicyVersion()
	return nil
}

func (s *Server) notify() {
	notify.Changed(s.changed)
}

// recordHave stores the prefixes that Set returns. Equal prefixes remain the same set, for
// callers that compare pointers. The caller holds mu.
func (s *Server) recordHave() {
	sessions := s.confs()
	for _, x := range s.closing {
		sessions = append(sessions, x.conf)
	}
	if s.behind {
		sessions = append(sessions, s.want.Sessions...)
	}
	s.sent = s.sent.next(s.routes, sessions)
	have := s.sent.prefixes
	if s.behind {
		// The routes alone do not tell: a route may be for other routers than before.
		s.coming = s.coming.next(s.want.Routes, sessions)
		_, came := sortedset.Changes(have, s.coming.prefixes, sortedset.ComparePrefixes)
		have = sortedset.With(have, came, sortedset.ComparePrefixes)
	}
	s.have = sortedset.KeepSet(s.have, have, sortedset.ComparePrefixes)
}

// confs returns the resolved configuration of the open sessions.
func (s *Server) confs() []Session {
	confs := make([]Session, len(s.sessions))
	for i, x := range s.sessions {
		confs[i] = x.conf
	}
	return confs
}

// gateTime is how long Set waits for a session that comes up.
const gateTime = 2 * time.Millisecond

// tryGate holds the gate until reopen is called, so that no session comes up meanwhile. reopen is
// nil if a session is coming up now.
func (s *Server) tryGate() (reopen func()) {
	select {
	case s.gate <- struct{}{}:
		return func() { <-s.gate }
	case <-time.After(gateTime):
		return nil
	}
}
