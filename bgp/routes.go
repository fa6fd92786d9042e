package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// routesPart is how many changed routes a Set hands to GoBGP, at some 10 µs for each of them and each
// router. backgroundPart is how many follow at a time: the next Set waits that long.
const (
	routesPart     = 300
	backgroundPart = 100
)

// setUnweighted sets which routers get weights. A router whose session stays and whose
// setting changes gets all routes with weights again.
func (s *Server) setUnweighted(ctx context.Context, want State) error {
	was, is := s.engine.unweighted, s.engine.kept(want)
	if slices.Equal(was, is) {
		return nil
	}
	if err := s.engine.setUnweighted(ctx, is); err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	if s.weightAS != 0 && slices.ContainsFunc(s.sessions, func(x *session) bool {
		return slices.Contains(was, x.neighborAddr) != slices.Contains(is, x.neighborAddr)
	}) {
		s.newEdition()
	}
	return nil
}

// newEdition has all routes announced again, since GoBGP's export policy has changed.
func (s *Server) newEdition() {
	s.mu.Lock()
	s.edition++
	s.mu.Unlock()
	s.markStale(func(Route) bool { return true })
}

// markStale has the routes of the table announced again that GoBGP sends otherwise now.
func (s *Server) markStale(otherwise func(Route) bool) {
	stale := slices.Clone(s.stale)
	for i := range s.routes {
		if otherwise(s.routes[i]) {
			stale = append(stale, s.routes[i].Prefix)
		}
	}
	slices.SortFunc(stale, sortedset.ComparePrefixes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = slices.Compact(stale)
}

// remark has the routes announced again that have other marks or attributes in GoBGP's table now,
// although they are the same.
func (s *Server) remark(targets map[string]uint32, weightAS uint16) {
	if s.retry {
		s.markStale(func(Route) bool { return true })
	}
	if !maps.Equal(s.targets, targets) { // routers have got other numbers
		s.markStale(func(r Route) bool { return r.Peers != "" || r.Attributes.Differ() })
	}
	if s.weightAS != weightAS {
		s.markStale(func(r Route) bool { return r.Weight != 0 })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets, s.weightAS = targets, weightAS
}

// setRoutes makes want's routes those of GoBGP's table, as far as it can now, and reports whether it
// could.
func (s *Server) setRoutes(ctx context.Context, want State) (done bool, err error) {
	targets, err := s.engine.targets(ctx, want.Sessions)
	if err != nil {
		return true, err
	}
	s.remark(targets, want.weightAS())
	if sortedset.Same(s.routes, want.Routes) {
		return len(s.stale) == 0, nil
	}
	reopen := s.tryGate()
	if reopen == nil {
		return false, nil
	}
	defer reopen()
	all, err := s.exchange(ctx, want, routesPart)
	if err != nil {
		return true, err
	}
	return s.caughtUp(ctx, all)
}

// caughtUp reports whether GoBGP has all routes as it must send them, and has it forget attributes
// then. Until then stale routes may have attributes that no wanted route has.
func (s *Server) caughtUp(ctx context.Context, exchanged bool) (bool, error) {
	if !exchanged || len(s.stale) > 0 {
		return false, nil
	}
	return true, s.engine.forget(ctx, s.routes, s.targets)
}

// exchange exchanges up to most routes, and reports whether these were all. The caller holds the
// gate. After an error the table may hold more than it should, and s.routes says so.
func (s *Server) exchange(ctx context.Context, want State, most int) (all bool, err error) {
	withdraw, announce := diffRoutes(s.routes, want.Routes)
	all = len(announce)+len(withdraw) <= most
	// Routes go after others have come: the address of a route that goes may be in one that comes.
	announce = announce[:min(len(announce), most)]
	withdraw = withdraw[:min(len(withdraw), most-len(announce))]
	if err = s.engine.announce(ctx, announce, s.marking()); err != nil {
		err = fmt.Errorf("announcing %d routes: %w", len(announce), err)
	}
	table := want.Routes
	if gone := s.engine.withdraw(withdraw); gone != nil {
		err = errors.Join(err, fmt.Errorf("withdrawing %d routes: %w", len(withdraw), gone))
		table = patchRoutes(s.routes, announce, nil)
	} else if !all {
		table = patchRoutes(s.routes, announce, withdraw)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes = table
	return all, err
}

func (s *Server) marking() marking { return marking{s.targets, s.weightAS, s.edition} }

// refresh announces stale routes again. The caller holds the gate.
func (s *Server) refresh(ctx context.Context) error {
	part := s.stale[:min(len(s.stale), backgroundPart)]
	var again []Route
	table := s.routes
	for _, p := range part {
		var there bool
		if table, there = sortedset.Seek(table, Route{Prefix: p}, compareRoutes); there {
			again = append(again, table[0])
		}
	}
	s.mu.Lock()
	s.stale = s.stale[len(part):]
	s.mu.Unlock()
	if err := s.engine.announce(ctx, again, s.marking()); err != nil {
		return fmt.Errorf("announcing %d routes again: %w", len(again), err)
	}
	return nil
}

// patchRoutes is a table after some routes came and others went.
func patchRoutes(table, come, gone []Route) []Route {
	keys := sortedset.Union(come, gone, compareRoutes)
	return sortedset.Patch(table, keys, compareRoutes, func(a, b Route) bool { return a == b }, func(i int) (Route, bool) {
		at, comes := slices.BinarySearchFunc(come, keys[i], compareRoutes)
		if !comes {
			return Route{}, false
		}
		return come[at], true
	})
}

// catchUp does, part by part, what a Set has left.
func (s *Server) catchUp() {
	for more := true; more; {
		select {
		case s.gate <- struct{}{}:
			more = s.catchUpPart()
			<-s.gate
		case <-s.quit:
			return
		}
	}
	s.notify()
}

// catchUpPart exchanges some routes, for the newest State, and opens the sessions after the last
// ones. The caller holds the gate.
func (s *Server) catchUpPart() (more bool) {
	s.setting.Lock()
	defer s.setting.Unlock()
	if s.closed {
		return false
	}
	done, err := s.proceed(context.Background())
	if err != nil {
		s.log.Error("routes not exchanged", "err", err)
		s.retry = true
	} else if !done {
		return true
	}
	if len(s.want.identityFaults()) == 0 {
		s.openSessions(s.want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = false
	s.recordHave()
	return false
}

// proceed exchanges the next routes, or announces stale ones again when none is left, and reports
// whether GoBGP has all now. The caller holds the gate.
func (s *Server) proceed(ctx context.Context) (done bool, err error) {
	all, err := s.exchange(ctx, s.want, backgroundPart)
	if all && err == nil {
		err = s.refresh(ctx)
	}
	if err != nil {
		return false, err
	}
	return s.caughtUp(ctx, all)
}
