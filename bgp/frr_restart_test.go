package bgp

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// frrChange measures single routes on an open session.
func frrChange(t *testing.T, r *frr, s *Server, conf Session) {
	var added, removed []time.Duration
	for i := range 20 {
		prefix := fmt.Sprintf("198.51.100.%d/32", i)
		begin := time.Now()
		_, err := s.Set(t.Context(), frrState(conf, prefix))
		must(t, err)
		eventually(t, prefix, func() bool { return strings.Contains(r.kernel(), prefix) })
		added = append(added, time.Since(begin))
		begin = time.Now()
		_, err = s.Set(t.Context(), frrState(conf))
		must(t, err)
		eventually(t, "no "+prefix, func() bool { return !strings.Contains(r.kernel(), prefix) })
		removed = append(removed, time.Since(begin))
	}
	slices.Sort(added)
	slices.Sort(removed)
	t.Logf("from Set to the router's kernel: added median %s, worst %s; removed median %s, worst %s",
		added[10], added[19], removed[10], removed[19])
	if st := s.sessionStatus("tor1"); st.Flaps != 0 {
		t.Errorf("session flapped: %s", st.LastError)
	}
}

// abandon is what SIGKILL does to a Server: the kernel closes its connections.
func abandon(s *Server) {
	s.mu.Lock()
	sessions := s.sessions
	s.mu.Unlock()
	for _, x := range sessions {
		x.mu.Lock()
		w := x.facts.wire
		x.mu.Unlock()
		x.cancel(errStopping)
		<-x.done
		w.TCPConn.Close()
	}
}

// restartFRR ends one Server, starts another, and looks for any change of the
// router's kernel in between.
func restartFRR(t *testing.T, r *frr, s *Server, conf Session, how string, end func(s *Server)) *Server {
	t.Helper()
	r.happened()
	end(s)
	next := newServer(t, Options{Restarting: true})
	begin := time.Now()
	_, err := next.Set(t.Context(), frrState(conf))
	must(t, err)
	eventually(t, "synced", func() bool { _, ok := next.Synced(); return ok })
	at, _ := next.Synced()
	st := next.sessionStatus("tor1")
	t.Logf("restart after %s: session up after %s, End-of-RIB after %s", how,
		st.Since.Sub(begin).Round(time.Millisecond), at.Sub(begin).Round(time.Millisecond))
	if st.State != Established || !st.GracefulRestart {
		t.Errorf("restart after %s: %+v", how, st)
	}
	// A route after End-of-RIB has passed through the router: all that came
	// before has been done.
	_, err = next.Set(t.Context(), frrState(conf, "198.51.100.99/32"))
	must(t, err)
	eventually(t, "route after the restart", func() bool { return strings.Contains(r.kernel(), "198.51.100.99/32") })
	if events := r.happened(); !slices.Equal(events, []string{"add 198.51.100.99/32"}) {
		t.Errorf("restart after %s: %v", how, events)
	}
	_, err = next.Set(t.Context(), frrState(conf))
	must(t, err)
	eventually(t, "only the old routes", func() bool { return r.kernel() == frrWant })
	return next
}

// frrReturns kills the router and starts it again.
func frrReturns(t *testing.T, r *frr, s *Server) {
	r.kill()
	eventually(t, "session down", func() bool { return s.sessionStatus("tor1").Flaps == 1 })
	t.Log("router killed:", s.sessionStatus("tor1").LastError)
	r.start()
	begin := time.Now()
	took := within(t, time.Minute, "session up again",
		func() bool { return s.sessionStatus("tor1").State == Established })
	t.Logf("from the router's return to the session: %s", took.Round(time.Millisecond))
	eventually(t, "routes again", func() bool { return r.kernel() == frrWant })
	t.Logf("and to the routes: %s", time.Since(begin).Round(time.Millisecond))
}
