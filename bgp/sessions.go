package bgp

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// closeNoticeTime is how long a router may take to notice that its connection is closed.
const closeNoticeTime = 100 * time.Millisecond

// stopBFD ends BFD after the connections. FRR takes AdminDown, like silence, for the loss of a
// session that is still open, and drops routes that graceful restart should keep.
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

// endSessions closes the sessions that want lacks or changes.
func (s *Server) endSessions(want State) {
	del, _ := sortedset.Diff(s.confs(), want.resolvedSessions(), compareSessions)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeSessions(del)
	if !s.hadSessions && len(want.Sessions) > 0 {
		s.hadSessions, s.first = true, true
		s.syncing = newSyncing(time.Now(), want.Sessions)
		time.AfterFunc(time.Until(s.syncing.limit()), s.notify)
	}
}

// openSessions opens the missing sessions.
func (s *Server) openSessions(want edit) {
	_, add := sortedset.Diff(s.confs(), want.resolvedSessions(), compareSessions)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.edits != want.number {
		return
	}
	for _, conf := range add {
		s.open(conf, s.first)
	}
	s.first = s.first && len(add) == 0
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
	// GoBGP identifies a session by the router's address.
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

// closeSessions ends sessions in the background: a router may take its time, and the others need
// not wait. The caller holds mu.
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

// forget removes a session once it is closed.
func (s *Server) forget(x *session) {
	<-x.done
	s.mu.Lock()
	i := slices.Index(s.closing, x)
	if i >= 0 { // otherwise the Server was stopped
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
