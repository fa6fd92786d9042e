package bgp

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Many routes change with one Set, also when only their marks change. Routes that a Set leaves to
// the background because a session comes up count as announced until they are withdrawn.
func TestManyRoutesInTheBackground(t *testing.T) {
	const n = 641
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	want := state([]Session{r.session("tor1")}, manyRoutes(n))
	has := func(text string, count int) {
		t.Helper()
		eventually(t, text, func() bool { return strings.Count(r.adjIn(), text) == count })
	}
	set := func(announced int) {
		t.Helper()
		have, err := s.Set(t.Context(), want)
		must(t, err)
		if have.Len() != announced {
			t.Errorf("%d prefixes are announced, want %d", have.Len(), announced)
		}
	}
	set(n)
	has("via", n)
	want.Shutdown = true
	set(n)
	has("graceful-shutdown", n)
	want.Shutdown = false
	set(n)
	has("graceful-shutdown", 0)
	has("via", n)
	proceed := s.paused(t)
	want.Routes = Routes{}
	set(n)
	has("via", n)
	proceed(func() {})
	has("via", 0)
	eventually(t, "withdrawn", func() bool {
		have, err := s.Set(t.Context(), want)
		return err == nil && have.Len() == 0
	})
	if st := s.sessionStatus("tor1"); st.Flaps != 0 {
		t.Errorf("the session flapped: %s", st.LastError)
	}
}

// paused leaves all work to the background, as while a session comes up, until the test does it.
func (s *Server) paused(t *testing.T) (proceed func(check func())) {
	t.Helper()
	s.gate <- struct{}{}
	return func(check func()) {
		s.applying.Lock()
		defer s.applying.Unlock()
		<-s.gate
		for more := true; more; {
			more = s.proceed()
			check()
		}
	}
}

// A route that is withdrawn while it waits to be announced again is withdrawn at once, and stays so.
// All others are announced again.
func TestWithdrawStaleRoute(t *testing.T) {
	const n = 385
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	want := state([]Session{r.session("tor1")}, manyRoutes(n))
	set := func() {
		t.Helper()
		_, err := s.Set(t.Context(), want)
		must(t, err)
	}
	set()
	eventually(t, "all", func() bool { return strings.Count(r.adjIn(), "via") == n })
	proceed := s.paused(t)
	want.Shutdown = true
	set()
	rest := manyRoutes(n)
	gone := rest[n-1].Prefix.String()
	want.Routes = RoutesOf(rest[:n-1]...)
	set()
	proceed(func() {
		if slices.Contains(table(t, s.engine.gobgp, api.TableType_TABLE_TYPE_GLOBAL, netip.Addr{}), gone) {
			t.Errorf("%s is in GoBGP's table", gone)
		}
	})
	eventually(t, "all others again", func() bool {
		in := r.adjIn()
		return strings.Count(in, "graceful-shutdown") == n-1 && !strings.Contains(in, gone)
	})
}

// GoBGP keeps a set of attributes as long as a route that waits to be announced again is marked with it.
func TestStaleRoutesKeepTheirSets(t *testing.T) {
	const n = 384
	s := newServer(t, Options{})
	conf := Session{Name: "tor1", PeerAddress: netip.MustParseAddr("127.0.0.8"), PeerPort: 9, PeerASN: 65001}
	want := state([]Session{conf}, told(ForEach(map[string]Attributes{"tor1": {Prepend: 1}, "tor2": {}}),
		manyRoutes(n)...))
	_, err := s.Set(t.Context(), want)
	must(t, err)
	proceed := s.paused(t)
	conf.PeerAddress = netip.MustParseAddr("127.0.0.9") // another router has another number
	want.Sessions = []Session{conf}
	_, err = s.Set(t.Context(), want)
	must(t, err)
	s.applying.Lock()
	s.engine.manySets = 0
	s.applying.Unlock()
	proceed(func() { s.checkMarks(t) })
	if len(s.engine.sets) != 1 {
		t.Errorf("GoBGP still has %d sets", len(s.engine.sets))
	}
}

// checkMarks checks that GoBGP knows each set that a route in its table is marked with.
func (s *Server) checkMarks(t *testing.T) {
	t.Helper()
	known := map[uint32]bool{}
	for _, n := range s.engine.sets {
		known[n] = true
	}
	unknown := 0
	must(t, listPath(s.engine.gobgp, apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL,
		Family: packet.RF_IPv4_UC}, func(_ packet.NLRI, paths []*apiutil.Path) {
		for _, c := range largeCommunities(paths[0]) {
			if c.LocalData1 != 0 && c.LocalData2 != markPolicyVersion && !known[c.LocalData1] {
				unknown++
			}
		}
	}))
	if unknown > 0 {
		t.Fatalf("%d routes have a mark without a set", unknown)
	}
}

func largeCommunities(p *apiutil.Path) []*packet.LargeCommunity {
	for _, a := range p.Attrs {
		if l, ok := a.(*packet.PathAttributeLargeCommunities); ok {
			return l.Values
		}
	}
	return nil
}

// A route that is still announced to one router, and only waits to be announced to another, counts
// for both.
func TestAnnouncedWhileBehind(t *testing.T) {
	old, now := routes("192.0.2.1/32 to tor1"), routes("192.0.2.1/32 to tor2")
	s := &Server{routes: RoutesOf(old...), want: state([]Session{{Name: "tor2"}}, now), behind: true}
	if s.recordHave(); s.have.Len() != 1 {
		t.Errorf("announced: %s", joined(s.have))
	}
}

// What the background is about to add is dropped if another Set has returned meanwhile: the caller does
// not know that it is announced, and may stop forwarding it.
func TestNothingIsAddedAfterAnotherSet(t *testing.T) {
	s := &Server{edits: 2}
	old := edit{state([]Session{{Name: "tor1"}}, routes("192.0.2.1/32")), 1}
	if s.setTable(old.Routes, old.number) || s.routes.Len() > 0 {
		t.Errorf("the routes %v were added", s.routes)
	}
	s.openSessions(old)
	if len(s.sessions) > 0 {
		t.Error("a session was opened")
	}
	old.number = 2
	if !s.setTable(old.Routes, old.number) || s.routes.Len() != 1 {
		t.Errorf("the routes %v were added, without another Set", s.routes)
	}
}
