package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// setUnweighted sets which routers get weights. A router whose session stays and whose
// setting changes gets all routes again.
func (s *Server) setUnweighted(ctx context.Context, want State) error {
	if s.engine == nil {
		return nil
	}
	was, is := s.engine.unweighted, s.engine.kept(want)
	if slices.Equal(was, is) {
		return nil
	}
	reopen, err := s.holdGate(ctx)
	if err != nil {
		return err
	}
	defer reopen()
	if err := s.engine.setUnweighted(ctx, is); err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	if s.weightAS == 0 || !slices.ContainsFunc(s.sessions, func(x *session) bool {
		return slices.Contains(was, x.neighborAddr) != slices.Contains(is, x.neighborAddr)
	}) {
		return nil
	}
	return s.engine.resendRoutes(ctx)
}

// setRoutes makes want's routes those of GoBGP's table. After an error the table
// may hold more than it should, and s.routes says so.
func (s *Server) setRoutes(ctx context.Context, want State) error {
	if s.engine == nil {
		return nil
	}
	targets, err := s.engine.targets(ctx, want.Sessions)
	if err != nil {
		return err
	}
	withdraw, announce := diffRoutes(s.routes, want.Routes)
	if s.retry {
		announce = want.Routes // announcing again does no harm
	}
	weightAS := want.weightAS()
	if !maps.Equal(s.targets, targets) {
		// Routers have got other numbers.
		announce = changedToo(announce, want.Routes, func(r Route) bool { return r.Peers != "" || r.Attributes.Differ() })
	}
	if s.weightAS != weightAS {
		announce = changedToo(announce, want.Routes, func(r Route) bool { return r.Weight != 0 })
	}
	if len(withdraw)+len(announce) > 0 {
		err = s.exchange(ctx, withdraw, announce, want.Routes, func(routes []Route) error {
			return s.engine.announce(ctx, routes, targets, weightAS)
		})
	}
	if err == nil {
		s.targets, s.weightAS = targets, weightAS
		err = s.engine.forget(ctx, want.Routes, targets)
	}
	return err
}

// changedToo adds to announce those of all that are otherwise now than GoBGP knows them,
// although they are the same.
func changedToo(announce, all []Route, otherwise func(Route) bool) []Route {
	var more []Route
	for _, r := range all {
		if _, there := slices.BinarySearchFunc(announce, r, compareRoutes); !there && otherwise(r) {
			more = append(more, r)
		}
	}
	more = append(more, announce...)
	slices.SortFunc(more, compareRoutes)
	return more
}

// exchange announces before it withdraws: the address of a route that goes may be
// in one that comes.
func (s *Server) exchange(ctx context.Context, withdraw, announce, want []Route, do func([]Route) error) error {
	reopen, err := s.holdGate(ctx)
	if err != nil {
		return err
	}
	defer reopen()
	err = do(announce)
	if err != nil {
		err = fmt.Errorf("announcing %d routes: %w", len(announce), err)
	}
	table := want
	if gone := s.engine.withdraw(withdraw); gone != nil {
		err = errors.Join(err, fmt.Errorf("withdrawing %d routes: %w", len(withdraw), gone))
		table = append(slices.Clone(want), withdraw...)
		slices.SortFunc(table, compareRoutes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes = table
	return err
}
