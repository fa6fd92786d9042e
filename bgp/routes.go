package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

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
