package bgp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// The router knows this node by three addresses: over eBGP, over eBGP by another AS
// number, and over iBGP. It keeps routes as received, for inspection.
const frrAttributesConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.3 remote-as 65001
 neighbor 10.0.0.12 remote-as 65099
 address-family ipv4 unicast
  neighbor 10.0.0.2 soft-reconfiguration inbound
  neighbor 10.0.0.3 soft-reconfiguration inbound
  neighbor 10.0.0.12 soft-reconfiguration inbound
 exit-address-family
 address-family ipv6 unicast
  neighbor 10.0.0.2 activate
`

// has is the route that the router received from the node at an address, as text; empty
// without one.
func (r *frr) has(prefix, node string) string {
	family := "ipv4"
	if strings.Contains(prefix, ":") {
		family = "ipv6"
	}
	var says struct {
		Paths []struct {
			Path      string                  `json:"-"`
			ASPath    struct{ String string } `json:"aspath"`
			LocalPref *uint32                 `json:"locPrf"`
			Metric    *uint32
			Community struct{ String string }
			Large     struct{ String string } `json:"largeCommunity"`
			Peer      struct{ PeerID string }
		}
	}
	_ = json.Unmarshal([]byte(r.vtysh("-c", fmt.Sprintf("show bgp %s unicast %s json", family, prefix))), &says)
	for _, p := range says.Paths {
		if p.Peer.PeerID != node {
			continue
		}
		text := "as " + p.ASPath.String
		if p.LocalPref != nil {
			text += fmt.Sprintf(" preference %d", *p.LocalPref)
		}
		if p.Metric != nil {
			text += fmt.Sprintf(" med %d", *p.Metric)
		}
		return text + named(" community ", p.Community.String) + named(" large ", p.Large.String)
	}
	return ""
}

func named(name, value string) string {
	if value == "" {
		return ""
	}
	return name + value
}

// attributesWorld is a router with sessions to each of this node's addresses.
func attributesWorld(t *testing.T) (*frr, *Server, []Session) {
	t.Helper()
	r := newFRR(t, "router", frrAttributesConfig)
	r.uplink()
	nstest.Node(t).Addr("uplink", "10.0.0.12/24")
	// Three sessions to one address are one to this node: the router has an address for
	// each.
	r.ns.Addr("eth0", "10.0.0.21/24", "10.0.0.22/24")
	r.run()
	external, internal, renumbered := frrSession("10.0.0.2"), frrSession("10.0.0.3"), frrSession("10.0.0.12")
	internal.Name, internal.PeerAddress, internal.LocalASN = "core", netip.MustParseAddr("10.0.0.21"), 65001
	renumbered.Name, renumbered.PeerAddress, renumbered.LocalASN = "tor2", netip.MustParseAddr("10.0.0.22"), 65099
	s := newServer(t, Options{})
	return r, s, []Session{internal, external, renumbered}
}

const external, internal, renumbered = "10.0.0.2", "10.0.0.3", "10.0.0.12"

// Each attribute, as a real router hears it over each kind of session.
func TestFRRAttributes(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r, s, sessions := attributesWorld(t)
		cases := []struct {
			name                  string
			told                  PeerAttributes
			external, internal    string
			renumbered, external6 string
		}{
			{name: "none", external: "as 65010", internal: "as Local preference 100", renumbered: "as 65099"},
			{name: "standard communities", told: ForAll(
				Attributes{Communities: CommunitiesOf(64500<<16|1, 1<<16|65535, 0xfffffffe)}),
				external:   "as 65010 community 1:65535 64500:1 65535:65534",
				internal:   "as Local preference 100 community 1:65535 64500:1 65535:65534",
				renumbered: "as 65099 community 1:65535 64500:1 65535:65534"},
			{name: "large communities", told: ForAll(
				Attributes{LargeCommunities: LargeCommunitiesOf(LargeCommunity{64500, 1, 2},
					LargeCommunity{4200000000, 0, 4294967295})}),
				external:   "as 65010 large 64500:1:2 4200000000:0:4294967295",
				internal:   "as Local preference 100 large 64500:1:2 4200000000:0:4294967295",
				renumbered: "as 65099 large 64500:1:2 4200000000:0:4294967295"},
			{name: "local preference", told: ForAll(Attributes{LocalPref: MetricOf(4294967295)}),
				external: "as 65010", internal: "as Local preference 4294967295", renumbered: "as 65099"},
			{name: "the least local preference", told: ForAll(Attributes{LocalPref: MetricOf(0)}),
				external: "as 65010", internal: "as Local preference 0", renumbered: "as 65099"},
			{name: "MED", told: ForAll(Attributes{MED: MetricOf(10)}),
				external: "as 65010 med 10", internal: "as Local preference 100 med 10", renumbered: "as 65099 med 10"},
			{name: "MED 0", told: ForAll(Attributes{MED: MetricOf(0)}),
				external: "as 65010 med 0", internal: "as Local preference 100 med 0", renumbered: "as 65099 med 0"},
			{name: "prepend", told: ForAll(Attributes{Prepend: 2}),
				external: "as 65010 65010 65010", internal: "as Local preference 100",
				renumbered: "as 65099 65099 65099"},
			{name: "different for each", told: ForEach(map[string]Attributes{
				"tor1": {Communities: CommunitiesOf(64500<<16|1, 64500<<16|2), MED: MetricOf(5)},
				"tor2": {Communities: CommunitiesOf(64500<<16|1, 64500<<16|3), Prepend: 1},
				"core": {Communities: CommunitiesOf(64500<<16 | 1),
					LargeCommunities: LargeCommunitiesOf(LargeCommunity{1, 2, 3}), LocalPref: MetricOf(50)}}),
				external:   "as 65010 med 5 community 64500:1 64500:2",
				internal:   "as Local preference 50 community 64500:1 large 1:2:3",
				renumbered: "as 65099 65099 community 64500:1 64500:3"},
			{name: "only for some", told: ForEach(map[string]Attributes{
				"tor1": {}, "tor2": {MED: MetricOf(1)}, "core": {MED: MetricOf(1), Prepend: 3},
			}),
				external: "as 65010", internal: "as Local preference 100 med 1", renumbered: "as 65099 med 1"},
		}
		// One prefix for each, an aggregate among them.
		var all []Route
		for i, c := range cases {
			all = append(all, told(c.told, routes(fmt.Sprintf("192.0.2.%d/%d", 16*i, 32-4*(i%2)))...)...)
		}
		names := slices.Sorted(maps.Keys(communityNames))
		names = slices.DeleteFunc(names, func(c Community) bool { return c == LLGRStale }) // is refused
		for i, c := range names {
			all = append(all, told(ForAll(Attributes{Communities: CommunitiesOf(c)}),
				routes(fmt.Sprintf("198.51.100.%d/32", i))...)...)
		}
		all = append(all, told(ForAll(gold), routes("2001:db8::1/128")...)...)
		want := state(sessions, all)
		want.NextHop6 = netip.MustParseAddr("fd00::2")
		_, err := s.Set(t.Context(), want)
		must(t, err)
		for i, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				prefix := all[i].Prefix.String()
				for node, want := range map[string]string{
					external: c.external, internal: c.internal, renumbered: c.renumbered,
				} {
					r.await(prefix, node, want)
				}
			})
		}
		for i, c := range names {
			t.Run(c.String(), func(t *testing.T) {
				r.await(fmt.Sprintf("198.51.100.%d/32", i), external, frrKnows(c))
			})
		}
		r.await("2001:db8::1/128", external, "as 65010 med 10 community 64500:1 no-export")

		// What this node says that it tells is what the router has.
		for name, node := range map[string]string{"tor1": external, "core": internal, "tor2": renumbered} {
			tells, err := s.Advertised(t.Context(), name)
			must(t, err)
			compared := 0
			for _, a := range tells {
				if !netip.MustParsePrefix("192.0.2.0/24").Contains(a.Prefix.Addr()) {
					continue // FRR has words of its own for what it drops
				}
				if has := r.has(a.Prefix.String(), node); has != a.asFRR() {
					t.Errorf("%s gets %s %s, and has %q", name, a.Prefix, a.asFRR(), has)
				}
				compared++
			}
			if compared < len(cases)-1 { // one of them is not for all
				t.Errorf("%s gets %d routes", name, compared)
			}
		}
	})
}

// asFRR is such a route in the words of frr.has.
func (r AdvertisedRoute) asFRR() string {
	text := "as " + cmp.Or(r.ASPath, "Local")
	if r.LocalPref != nil {
		text += fmt.Sprintf(" preference %d", *r.LocalPref)
	}
	if r.MED != nil {
		text += fmt.Sprintf(" med %d", *r.MED)
	}
	return text + named(" community ", strings.Join(r.Communities, " ")) +
		named(" large ", strings.Join(r.LargeCommunities, " "))
}

// frrKnows is FRR's text about a route with a well-known community. It respects
// GRACEFUL_SHUTDOWN by default, and passes nothing on that it drops.
func frrKnows(c Community) string {
	switch name := c.String(); name {
	case "local-as":
		return "as 65010 community local-AS"
	case "graceful-shutdown":
		return "as 65010 preference 0 community graceful-shutdown"
	case "blackhole":
		return "as 65010 community blackhole no-export"
	default:
		return "as 65010 community " + name
	}
}

// await waits until the router has received want.
func (r *frr) await(prefix, node, want string) {
	r.t.Helper()
	var got string
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
		if got = r.has(prefix, node); got == want {
			return
		}
	}
	r.t.Errorf("%s from %s: %q, want %q", prefix, node, got, want)
}

// Attributes change, and a restart and a graceful shutdown come and go, without the
// router's being without the routes at any time, and without any word about routes that
// have nothing to do with it.
func TestFRRAttributesChange(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r, s, sessions := attributesWorld(t)
		both := sessions[:2]
		set := func(shutdown bool, changing PeerAttributes) {
			t.Helper()
			want := state(both, slices.Concat(told(changing, routes("192.0.2.1/32")...),
				told(ForAll(gold), routes("192.0.2.2/32")...)))
			want.Shutdown = shutdown
			_, err := s.Set(t.Context(), want)
			must(t, err)
		}
		is := func(prefix, toExternal, toInternal string) {
			t.Helper()
			r.await(prefix, external, toExternal)
			r.await(prefix, internal, toInternal)
		}
		updates := func() (n [2]int) {
			for i, x := range both {
				n[i] = s.sessionStatus(x.Name).Updates
			}
			return n
		}
		set(false, PeerAttributes{})
		is("192.0.2.1/32", "as 65010", "as Local preference 100")
		is("192.0.2.2/32", "as 65010 med 10 community 64500:1 no-export",
			"as Local preference 200 med 10 community 64500:1 no-export")
		eventually(t, "kernel", func() bool { return strings.Count(r.kernel(), "192.0.2.") == 2 })
		eventually(t, "End-of-RIB", func() bool {
			return !s.sessionStatus("tor1").EndOfRIB.IsZero() && !s.sessionStatus("core").EndOfRIB.IsZero()
		})
		r.happened()

		before := updates()
		for _, c := range []struct {
			told                   PeerAttributes
			toExternal, toInternal string
		}{
			{ForAll(Attributes{MED: MetricOf(7)}), "as 65010 med 7", "as Local preference 100 med 7"},
			{ForEach(map[string]Attributes{"tor1": {MED: MetricOf(8)}, "core": {LocalPref: MetricOf(9)}}),
				"as 65010 med 8", "as Local preference 9"},
			{ForEach(map[string]Attributes{"tor1": {Prepend: 1}, "core": {LocalPref: MetricOf(9)}}), "as 65010 65010",
				"as Local preference 9"},
			{PeerAttributes{}, "as 65010", "as Local preference 100"},
			{ForAll(blue), "as 65010 65010 65010 community 64500:1 large 64500:1:2",
				"as Local preference 0 community 64500:1 large 64500:1:2"},
		} {
			set(false, c.told)
			is("192.0.2.1/32", c.toExternal, c.toInternal)
		}
		if after := updates(); after[0]-before[0] != 5 || after[1]-before[1] != 5 {
			t.Errorf("5 changes of one route took %d UPDATEs, had taken %d", after, before)
		}

		set(true, ForAll(blue))
		is("192.0.2.1/32", "as 65010 65010 65010 preference 0 community 64500:1 graceful-shutdown large 64500:1:2",
			"as Local preference 1 community 64500:1 graceful-shutdown large 64500:1:2")
		is("192.0.2.2/32", "as 65010 preference 0 med 10 community 64500:1 graceful-shutdown no-export",
			"as Local preference 1 med 10 community 64500:1 graceful-shutdown no-export")
		set(true, ForEach(map[string]Attributes{"tor1": gold, "core": gold.and(blue)}))
		is("192.0.2.1/32", "as 65010 preference 0 med 10 community 64500:1 graceful-shutdown no-export",
			"as Local preference 1 community 64500:1 graceful-shutdown")
		set(false, ForAll(blue))
		is("192.0.2.1/32", "as 65010 65010 65010 community 64500:1 large 64500:1:2",
			"as Local preference 0 community 64500:1 large 64500:1:2")
		for _, x := range both {
			if st := s.sessionStatus(x.Name); st.Flaps != 0 {
				t.Errorf("session %s flapped: %s", x.Name, st.LastError)
			}
		}

		must(t, s.Close(t.Context(), Restart))
		s = newServer(t, Options{Restarting: true})
		set(false, ForAll(blue))
		eventually(t, "synced", func() bool { _, ok := s.Synced(); return ok })
		is("192.0.2.1/32", "as 65010 65010 65010 community 64500:1 large 64500:1:2",
			"as Local preference 0 community 64500:1 large 64500:1:2")
		if events := strings.Join(r.happened(), ", "); strings.Contains(events, "del") {
			t.Errorf("the router's kernel: %s", events)
		}
	})
}
