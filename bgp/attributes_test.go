package bgp

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// told gives routes attributes.
func told(a PeerAttributes, routes ...Route) []Route {
	for i := range routes {
		routes[i].Attributes = a
	}
	return routes
}

var (
	gold = Attributes{Communities: CommunitiesOf(64500<<16|1, 0xffffff01), MED: MetricOf(10), LocalPref: MetricOf(200)}
	blue = Attributes{
		Communities: CommunitiesOf(64500<<16 | 1), LargeCommunities: LargeCommunitiesOf(LargeCommunity{64500, 1, 2}),
		Prepend: 2, LocalPref: MetricOf(0),
	}
)

func TestAttributesString(t *testing.T) {
	for _, c := range []struct {
		route Route
		want  string
	}{
		{told(ForAll(gold), routes("192.0.2.1/32")...)[0],
			"192.0.2.1/32 local-preference 200 med 10 community 64500:1 no-export"},
		{told(ForAll(blue), routes("192.0.2.1/32 to tor1+tor2")...)[0],
			"192.0.2.1/32 to tor1, tor2 local-preference 0 prepend 2 community 64500:1 large-community 64500:1:2"},
		{told(ForEach(map[string]Attributes{"tor1": {MED: MetricOf(0)}, "tor3": {}, "tor2": {}}),
			routes("192.0.2.1/32")...)[0],
			"192.0.2.1/32 to tor1 med 0, to tor2, tor3"},
	} {
		if got := c.route.String(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// Equal attributes are equal however they came about, and each router finds its own.
func TestPeerAttributes(t *testing.T) {
	if ForAll(Attributes{}) != (PeerAttributes{}) ||
		ForEach(map[string]Attributes{"tor1": {}, "tor2": {}}) != (PeerAttributes{}) {
		t.Error("no attributes are not zero")
	}
	same := ForEach(map[string]Attributes{"tor1": gold, "tor2": gold})
	if same != ForAll(gold) || same.Differ() {
		t.Errorf("the same to two: %s", same)
	}
	p := ForEach(map[string]Attributes{"tor1": gold, "tor2": blue, "tor3": gold})
	if q := ForEach(map[string]Attributes{"tor3": gold, "tor2": blue, "tor1": gold}); p != q || !p.Differ() {
		t.Errorf("%s and %s", p, q)
	}
	if p.Of("tor1") != gold || p.Of("tor2") != blue || p.Of("tor3") != gold || p.Of("tor4") != (Attributes{}) ||
		ForAll(gold).Of("tor9") != gold {
		t.Errorf("wrong ones: %s", p)
	}
	if a, b := CommunitiesOf(3, 1, 2, 1), CommunitiesOf(1, 2, 3); a != b ||
		!slices.Equal(slices.Collect(a.All()), []Community{1, 2, 3}) {
		t.Errorf("%s and %s", a, b)
	}
}

// What routers have in common is in the table; together with the rest, each gets the
// wanted attributes, and the session's default preference at worst.
func TestSplit(t *testing.T) {
	for _, p := range []PeerAttributes{
		{}, ForAll(gold), ForAll(blue),
		ForEach(map[string]Attributes{"a": gold, "b": blue}),
		ForEach(map[string]Attributes{"a": gold, "b": {}}),
		ForEach(map[string]Attributes{"a": blue, "b": {}}),
		ForEach(map[string]Attributes{
			"a": gold, "b": blue, "c": {MED: MetricOf(10), Communities: CommunitiesOf(64500<<16 | 1)},
		}),
		ForEach(map[string]Attributes{
			"a": {LocalPref: MetricOf(5)}, "b": {LocalPref: MetricOf(6)},
			"c": {LocalPref: MetricOf(5), MED: MetricOf(1)},
		}),
	} {
		shared, rest := p.split()
		for _, name := range []string{"a", "b", "c"} {
			want := p.Of(name)
			got := shared
			for _, g := range rest {
				if !g.peers.Has(name) {
					continue
				}
				if g.attributes.LocalPref == MetricOf(0) {
					t.Errorf("%s: a policy is to set preference 0", p)
				}
				got = plus(got, g.attributes)
			}
			if want.LocalPref == (Metric{}) && got.LocalPref == MetricOf(100) {
				got.LocalPref = Metric{}
			}
			if p.Of(name) == (Attributes{}) && name == "c" {
				continue // gets no attributes, and is in no group
			}
			if got != want {
				t.Errorf("%s: %s gets %s, want %s", p, name, got, want)
			}
		}
	}
}

// plus is what GoBGP's policy makes of a.
func plus(a, more Attributes) Attributes {
	a.Communities = CommunitiesOf(append(slices.Collect(a.Communities.All()),
		slices.Collect(more.Communities.All())...)...)
	a.LargeCommunities = LargeCommunitiesOf(append(slices.Collect(a.LargeCommunities.All()),
		slices.Collect(more.LargeCommunities.All())...)...)
	if more.LocalPref.Set {
		a.LocalPref = more.LocalPref
	}
	if more.MED.Set {
		a.MED = more.MED
	}
	a.Prepend += more.Prepend
	return a
}

// However many sets of attributes come and go, GoBGP keeps few statements, and the
// routers have the newest.
func TestUnusedAttributeSetsAreRemoved(t *testing.T) {
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	conf := r.session("tor1")
	set := func(prepend uint8, med uint32) {
		t.Helper()
		// Other attributes for another router keep them out of the table.
		a := ForEach(map[string]Attributes{"tor1": {Prepend: prepend, MED: MetricOf(med)}, "tor2": {}})
		_, err := s.Set(t.Context(), state([]Session{conf}, told(a, routes("192.0.2.1/32")...)))
		must(t, err)
	}
	for i := range uint32(3 * leastSets) {
		set(1, i)
		s.applying.Lock() // the background may add sets
		n := len(s.engine.sets)
		s.applying.Unlock()
		if n > leastSets {
			t.Fatalf("%d sets", n)
		}
	}
	eventually(t, "the last one", func() bool {
		return r.adjIn() == "192.0.2.1/32 via 127.0.0.1 as [65010 65010] med 191\n"
	})
	set(0, 5)
	eventually(t, "one that was forgotten",
		func() bool { return r.adjIn() == "192.0.2.1/32 via 127.0.0.1 as [65010] med 5\n" })
	if st := s.sessionStatus("tor1"); st.Flaps != 0 {
		t.Errorf("session flapped: %s", st.LastError)
	}
}

// A route that cannot be sent to any router is refused, and other routes are not affected.
func TestAttributeFaults(t *testing.T) {
	bad := map[string]Attributes{
		"route 192.0.2.1/32: community llgr-stale: is for what others have announced (RFC 9494 §4.4)": {
			Communities: CommunitiesOf(1, LLGRStale)},
		"route 192.0.2.1/32: large community 4294967295:0:1: AS 4294967295 is reserved (RFC 7300)": {
			LargeCommunities: LargeCommunitiesOf(LargeCommunity{markASN, 0, 1})},
		"route 192.0.2.1/32: prepend 17: must be at most 16": {Prepend: 17},
	}
	for want, a := range bad {
		all := slices.Concat(told(ForEach(map[string]Attributes{"tor1": {}, "tor2": a}), routes("192.0.2.1/32")...),
			told(ForAll(gold), routes("192.0.2.2/32")...))
		good, faults := checkRoutes(Routes{}, RoutesOf(all...))
		if len(faults) != 1 || faults[0].Error() != want ||
			list(good.Slice()) != "192.0.2.2/32 local-preference 200 med 10 community 64500:1 no-export" {
			t.Errorf("%v, and %s is good; want %s", faults, list(good.Slice()), want)
		}
	}
}

// manyCommunities take so many bytes, half of them in large ones.
func manyCommunities(bytes int) Attributes {
	var a Attributes
	var standard []Community
	var large []LargeCommunity
	for i := 0; 12*len(large) < bytes/2; i++ {
		large = append(large, LargeCommunity{64500, 1, uint32(i)})
	}
	for i := 0; 12*len(large)+4*len(standard) < bytes; i++ {
		standard = append(standard, Community(64500<<16|i))
	}
	a.Communities, a.LargeCommunities = CommunitiesOf(standard...), LargeCommunitiesOf(large...)
	return a
}

// A route whose communities fit into no message is left out alone: the session stays, and the
// router gets all other routes. One with as many as may be arrives, with all else that a
// route can have.
func TestTooManyCommunities(t *testing.T) {
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	largest := manyCommunities(maxCommunities)
	largest.MED, largest.Prepend = MetricOf(10), maxPrepend
	session := r.session("tor1")
	session.Weights = true
	next := netip.MustParseAddr("fd00::1")
	set := func(all ...Route) (string, error) {
		slices.SortFunc(all, compareRoutes)
		want := state([]Session{session}, all)
		want.NextHop6 = next
		have, err := s.Set(t.Context(), want)
		return joined(have), err
	}
	full4, full6 := told(ForAll(largest), routes("192.0.2.1/32 weight 7")...)[0],
		told(ForAll(largest), routes("2001:db8::1/128 weight 7")...)[0]
	plain := routes("192.0.2.9/32")[0]
	if have, err := set(full4, full6, plain); err != nil || have != "192.0.2.1/32 192.0.2.9/32 2001:db8::1/128" {
		t.Fatalf("have %s, %v", have, err)
	}
	complete := func() bool {
		got := r.adjIn()
		return strings.Count(got, "\n") == 3 && strings.Count(got, " 64500:1:149") == 2 &&
			strings.Count(got, "64500:449") == 2
	}
	eventually(t, "routes with as many communities as fit", complete)

	over := told(ForAll(manyCommunities(maxCommunities+4)), routes("192.0.2.2/32")...)[0]
	have, err := set(full4, full6, over, plain, routes("192.0.2.10/32")[0])
	if err == nil || !strings.Contains(err.Error(),
		"route 192.0.2.2/32: 448 communities and 151 large communities take 3604 bytes: a BGP message has room "+
			"for 3600; remove some") {
		t.Errorf("got %v", err)
	}
	if have != "192.0.2.1/32 192.0.2.9/32 192.0.2.10/32 2001:db8::1/128" {
		t.Errorf("have %s", have)
	}
	eventually(t, "the route beside it", func() bool { return strings.Contains(r.adjIn(), "192.0.2.10/32 ") })
	if got := r.adjIn(); strings.Contains(got, "192.0.2.2/32") || r.ups.Load() != 1 {
		t.Errorf("session opened %d times; the router has\n%s", r.ups.Load(), got)
	}
}
