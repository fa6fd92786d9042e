package bgp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A step of TestStates: a State, and what two routers then have from us.
type step struct {
	name     string
	sessions []Session
	routes   []Route
	no6      bool   // this node has no IPv6 address
	ebgp     string // 127.0.0.2, AS65001
	ibgp     string // 127.0.0.3, AS65010
	have     string
}

func steps(ebgp, ibgp *router) []step {
	tor1, core := ebgp.session("tor1"), ibgp.session("core")
	tor1Slow := tor1
	tor1Slow.HoldTime = 30 * time.Second
	tor1As := tor1
	tor1As.Name, tor1As.KeepaliveTime = "another name", 2*time.Second
	tor1Graceful := tor1
	tor1Graceful.GracefulRestart = true
	tor1Hop := tor1
	tor1Hop.NextHop = netip.MustParseAddr("2001:db8::b")
	tor1Weighed, coreWeighed := tor1, core
	tor1Weighed.Weights, coreWeighed.Weights = true, true

	const (
		e1 = "192.0.2.1/32 via 127.0.0.1 as [65010]\n"
		e2 = "192.0.2.2/32 via 127.0.0.1 as [65010]\n"
		e3 = "192.0.2.3/32 via 127.0.0.1 as [65010]\n"
		e6 = "2001:db8::1/128 via 2001:db8::a as [65010]\n"
		i1 = "192.0.2.1/32 via 127.0.0.1 as [] localpref 100\n"
		i2 = "192.0.2.2/32 via 127.0.0.1 as [] localpref 100\n"
		i3 = "192.0.2.3/32 via 127.0.0.1 as [] localpref 100\n"
		i6 = "2001:db8::1/128 via 2001:db8::a as [] localpref 100\n"
	)
	both := []Session{core, tor1}
	return []step{
		{name: "nothing"},
		{name: "routes without a session", routes: routes("192.0.2.1/32")},
		{name: "one session", sessions: []Session{tor1}, routes: routes("192.0.2.1/32"),
			ebgp: e1, have: "192.0.2.1/32"},
		{name: "two sessions", sessions: both, routes: routes("192.0.2.1/32"),
			ebgp: e1, ibgp: i1, have: "192.0.2.1/32"},
		{name: "more routes", sessions: both, routes: routes("192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32"),
			ebgp: e1 + e2 + e3, ibgp: i1 + i2 + i3, have: "192.0.2.1/32 192.0.2.2/32 192.0.2.3/32"},
		{name: "both families", sessions: both, routes: routes("192.0.2.2/32", "2001:db8::1/128"),
			ebgp: e2 + e6, ibgp: i2 + i6, have: "192.0.2.2/32 2001:db8::1/128"},
		{name: "no IPv6 next hop", sessions: both, no6: true, routes: routes("192.0.2.2/32", "2001:db8::1/128"),
			ebgp: e2, ibgp: i2, have: "192.0.2.2/32"},
		{name: "a next hop for each router", sessions: []Session{core, tor1Hop},
			routes: routes("192.0.2.2/32", "2001:db8::1/128"),
			ebgp:   e2 + "2001:db8::1/128 via 2001:db8::b as [65010]\n", ibgp: i2 + i6,
			have: "192.0.2.2/32 2001:db8::1/128"},
		{name: "a next hop for one router", sessions: []Session{core, tor1Hop}, no6: true,
			routes: routes("2001:db8::1/128"),
			ebgp:   "2001:db8::1/128 via 2001:db8::b as [65010]\n", have: "2001:db8::1/128"},
		{name: "another hold time", sessions: []Session{core, tor1Slow}, routes: routes("192.0.2.1/32"),
			ebgp: e1, ibgp: i1, have: "192.0.2.1/32"},
		{name: "another name", sessions: []Session{tor1As}, routes: routes("192.0.2.1/32", "192.0.2.2/32"),
			ebgp: e1 + e2, have: "192.0.2.1/32 192.0.2.2/32"},
		{name: "graceful", sessions: []Session{core, tor1Graceful}, routes: routes("192.0.2.2/32"),
			ebgp: e2, ibgp: i2, have: "192.0.2.2/32"},
		{name: "routes for one router", sessions: both,
			routes: routes("192.0.2.1/32 to tor1", "192.0.2.2/32 to core", "192.0.2.3/32 to core+tor1"),
			ebgp:   e1 + e3, ibgp: i2 + i3, have: "192.0.2.1/32 192.0.2.2/32 192.0.2.3/32"},
		{name: "for the other one", sessions: both,
			routes: routes("192.0.2.1/32 to core", "192.0.2.2/32 to tor1", "192.0.2.3/32 to core"),
			ebgp:   e2, ibgp: i1 + i3, have: "192.0.2.1/32 192.0.2.2/32 192.0.2.3/32"},
		{name: "for no existing session", sessions: both,
			routes: routes("192.0.2.1/32 to another name", "192.0.2.2/32 to another name+core"),
			ibgp:   i2, have: "192.0.2.2/32"},
		{name: "for a session by its name", sessions: []Session{tor1As},
			routes: routes("192.0.2.1/32 to another name", "192.0.2.2/32 to tor1"), ebgp: e1, have: "192.0.2.1/32"},
		{name: "an aggregate", sessions: both, routes: routes("192.0.2.0/24 to core", "192.0.2.1/32"),
			ebgp: e1, ibgp: "192.0.2.0/24 via 127.0.0.1 as [] localpref 100\n" + i1, have: "192.0.2.0/24 192.0.2.1/32"},
		{name: "attributes", sessions: both, routes: told(ForAll(gold), routes("192.0.2.1/32", "192.0.2.2/32")...),
			ebgp: "192.0.2.1/32 via 127.0.0.1 as [65010] med 10 community 64500:1 no-export\n192.0.2.2/32 via " +
				"127.0.0.1 as [65010] med 10 community 64500:1 no-export\n",
			ibgp: "192.0.2.1/32 via 127.0.0.1 as [] localpref 200 med 10 community 64500:1 no-export\n192.0.2.2/32 " +
				"via 127.0.0.1 as [] localpref 200 med 10 community 64500:1 no-export\n",
			have: "192.0.2.1/32 192.0.2.2/32"},
		{name: "attributes of the session", sessions: both,
			routes: slices.Concat(told(ForAll(blue), routes("192.0.2.1/32")...), routes("192.0.2.2/32")),
			ebgp:   "192.0.2.1/32 via 127.0.0.1 as [65010 65010 65010] community 64500:1 large 64500:1:2\n" + e2,
			ibgp:   "192.0.2.1/32 via 127.0.0.1 as [] localpref 0 community 64500:1 large 64500:1:2\n" + i2,
			have:   "192.0.2.1/32 192.0.2.2/32"},
		{name: "attributes by router", sessions: both, have: "192.0.2.1/32 192.0.2.2/32 192.0.2.3/32",
			routes: told(ForEach(map[string]Attributes{"core": gold, "tor1": blue}),
				routes("192.0.2.1/32", "192.0.2.2/32 to core", "192.0.2.3/32 to core+tor1")...),
			ebgp: "192.0.2.1/32 via 127.0.0.1 as [65010 65010 65010] community 64500:1 large 64500:1:2\n" +
				"192.0.2.3/32 via 127.0.0.1 as [65010 65010 65010] community 64500:1 large 64500:1:2\n",
			ibgp: "192.0.2.1/32 via 127.0.0.1 as [] localpref 200 med 10 community 64500:1 no-export\n192.0.2.2/32 " +
				"via 127.0.0.1 as [] localpref 200 med 10 community 64500:1 no-export\n" +
				"192.0.2.3/32 via 127.0.0.1 as [] localpref 200 med 10 community 64500:1 no-export\n"},
		{name: "attributes the other way round", sessions: both, have: "192.0.2.1/32 192.0.2.2/32",
			routes: told(ForEach(map[string]Attributes{"core": blue, "tor1": gold}),
				routes("192.0.2.1/32 to tor1+core", "192.0.2.2/32 to core")...),
			ebgp: "192.0.2.1/32 via 127.0.0.1 as [65010] med 10 community 64500:1 no-export\n",
			ibgp: "192.0.2.1/32 via 127.0.0.1 as [] localpref 0 community 64500:1 large 64500:1:2\n" +
				"192.0.2.2/32 via 127.0.0.1 as [] localpref 0 community 64500:1 large 64500:1:2\n"},
		{name: "attributes for one of two", sessions: both, have: "192.0.2.1/32",
			routes: told(ForEach(map[string]Attributes{"core": {LocalPref: MetricOf(0)}, "tor1": {}}),
				routes("192.0.2.1/32")...),
			ebgp: e1, ibgp: "192.0.2.1/32 via 127.0.0.1 as [] localpref 0\n"},
		{name: "attributes for the other of two", sessions: both, have: "192.0.2.1/32",
			routes: told(ForEach(map[string]Attributes{"core": {}, "tor1": {LocalPref: MetricOf(0), MED: MetricOf(0)}}),
				routes("192.0.2.1/32")...),
			ebgp: "192.0.2.1/32 via 127.0.0.1 as [65010] med 0\n", ibgp: i1},
		{name: "attributes of a session by its name", sessions: []Session{tor1As}, have: "192.0.2.1/32",
			routes: told(ForEach(map[string]Attributes{"another name": {MED: MetricOf(7)}, "tor1": {MED: MetricOf(8)}}),
				routes("192.0.2.1/32")...),
			ebgp: "192.0.2.1/32 via 127.0.0.1 as [65010] med 7\n"},
		{name: "a weight for one router", sessions: []Session{core, tor1Weighed},
			routes: routes("192.0.2.1/32 weight 3", "192.0.2.2/32"),
			ebgp:   weighing(e1, 375000) + e2, ibgp: i1 + i2, have: "192.0.2.1/32 192.0.2.2/32"},
		{name: "weights for both", sessions: []Session{coreWeighed, tor1Weighed},
			routes: routes("192.0.2.1/32 weight 1", "192.0.2.2/32 weight 1073 to tor1"),
			ebgp:   weighing(e1, 125000) + weighing(e2, 134125000), ibgp: weighing(i1, 125000),
			have: "192.0.2.1/32 192.0.2.2/32"},
		{name: "the same for the other one alone", sessions: []Session{coreWeighed, tor1},
			routes: routes("192.0.2.1/32 weight 1", "192.0.2.2/32 weight 1073 to tor1"),
			ebgp:   e1 + e2, ibgp: weighing(i1, 125000), have: "192.0.2.1/32 192.0.2.2/32"},
		{name: "the same for none", sessions: both,
			routes: routes("192.0.2.1/32 weight 1", "192.0.2.2/32 weight 1073 to tor1"),
			ebgp:   e1 + e2, ibgp: i1, have: "192.0.2.1/32 192.0.2.2/32"},
		{name: "no routes", sessions: both},
	}
}

// weighing is an expected route that has a weight.
func weighing(route string, bandwidth int) string {
	return fmt.Sprintf("%s extended 0x40 0x04 65010:%d\n", strings.TrimSuffix(route, "\n"), bandwidth)
}

// From any State to any State: the routers have what it says, unchanged sessions
// stay up, and changed sessions open once.
func TestStates(t *testing.T) {
	ebgp := startRouter(t, routerConf{addr: "127.0.0.2"})
	ibgp := startRouter(t, routerConf{addr: "127.0.0.3", asn: 65010, id: "10.255.0.2"})
	s := newServer(t, Options{})
	all := steps(ebgp, ibgp)

	var last step
	var ups [2]int32
	visit := func(st step) {
		t.Helper()
		want := st.state()
		have, err := s.Set(t.Context(), want)
		must(t, err)
		eventually(t, fmt.Sprintf("%s after %s: have %q, want %q", st.name, last.name, joined(have), st.have),
			func() bool {
				have, err = s.Set(t.Context(), want) // a session that ends counts until it is closed
				must(t, err)
				return joined(have) == st.have
			})
		for i, r := range []*router{ebgp, ibgp} {
			was, is := last.session(r), st.session(r)
			if is != nil && (was == nil || was.resolved(State{}) != is.resolved(State{})) {
				ups[i]++
			}
			eventually(t, st.name, func() bool { return r.established() == (is != nil) && r.ups.Load() >= ups[i] })
		}
		var gotE, gotI string
		eventually(t, fmt.Sprintf("%s after %s", st.name, last.name), func() bool {
			gotE, gotI = ebgp.adjIn(), ibgp.adjIn()
			return gotE == st.ebgp && gotI == st.ibgp
		})
		if e, i := ebgp.ups.Load(), ibgp.ups.Load(); e != ups[0] || i != ups[1] {
			t.Fatalf("%s after %s: sessions opened %d and %d times so far, want %v", st.name, last.name, e, i, ups)
		}
		for _, x := range s.Status().Sessions {
			if x.Flaps != 0 {
				t.Errorf("%s: session %s flapped: %s", st.name, x.Name, x.LastError)
			}
		}
		last = st
	}
	for _, st := range all {
		visit(st)
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 5 * len(all) {
		visit(all[rng.IntN(len(all))])
	}
}

// session is the step's session to r.
func (st step) session(r *router) *Session {
	i := slices.IndexFunc(st.sessions, func(s Session) bool { return s.PeerAddress == r.addr })
	if i < 0 {
		return nil
	}
	conf := st.sessions[i].resolved(st.state())
	return &conf
}

func (st step) state() State {
	s := state(st.sessions, st.routes)
	if st.no6 {
		s.NextHop6 = netip.Addr{}
	}
	return s
}

func joined(prefixes sortedset.Set[netip.Prefix]) string {
	var words []string
	for p := range prefixes.All() {
		words = append(words, p.String())
	}
	return strings.Join(words, " ")
}
