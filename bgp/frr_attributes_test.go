package bgp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// The router knows this node by three addresses: over eBGP, over eBGP by another AS
// number, and over iBGP. It keeps what it is told as it is told, to be looked at.
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

// has is what the router says that it was told by the node at an address, in our
// words; empty when it was told nothing.
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
			Community struct{ List []string }
			Large     struct{ List []string } `json:"largeCommunity"`
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
		return text + named(" community ", p.Community.List) + named(" large ", p.Large.List)
	}
	return ""
}

func named(name string, list []string) string {
	if len(list) == 0 {
		return ""
	}
	return name + strings.Join(list, " ")
}

// attributesWorld is a router with sessions to each of this node's addresses.
func attributesWorld(t *testing.T) (*frr, *Server, []Session) {
	t.Helper()
	r := startFRRWith(t, frrAttributesConfig)
	nstest.Node(t).Addr("uplink", "10.0.0.12/24")
	// Three sessions to one address are one to this node: the router has an address for
	// each.
	r.ns.Addr("eth0", "10.0.0.21/24", "10.0.0.22/24")
	external, internal, renumbered := frrSession("10.0.0.2"), frrSession("10.0.0.3"), frrSession("10.0.0.12")
	internal.Name, internal.PeerAddress, internal.LocalASN = "core", netip.MustParseAddr("10.0.0.21"), 65001
	renumbered.Name, renumbered.PeerAddress, renumbered.LocalASN = "tor2", netip.MustParseAddr("10.0.0.22"), 65099
	s := newServer(t, Options{})
	return r, s, []Session{internal, external, renumbered}
}

const external, internal, renumbered = "10.0.0.2", "10.0.0.3", "10.0.0.12"

// Each attribute, as a real router hears it over each kind of session.
func TestFRRAttributes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		r, s, sessions := attributesWorld(t)
		cases := []struct {
			name                  string
			told                  PeerAttributes
			external, internal    string
			renumbered, external6 string
		}{
			{name: "none", external: "as 65010", internal: "as Local preference 100", renumbered: "as 65099"},
			{name: "standard communities", told: ForAll(Attributes{Communities: CommunitiesOf(64500<<16|1, 0, 0xfffffffe)}),
				external: "as 65010 community 0:0 64500:1 65535:65534", internal: "as Local preference 100 community 0:0 64500:1 65535:65534",
				renumbered: "as 65099 community 0:0 64500:1 65535:65534"},
			{name: "large communities", told: ForAll(Attributes{LargeCommunities: LargeCommunitiesOf(LargeCommunity{64500, 1, 2}, LargeCommunity{4200000000, 0, 4294967295})}),
				external: "as 65010 large 64500:1:2 4200000000:0:4294967295", internal: "as Local preference 100 large 64500:1:2 4200000000:0:4294967295",
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
				external: "as 65010 65010 65010", internal: "as Local preference 100", renumbered: "as 65099 65099 65099"},
			{name: "different for each", told: ForEach(map[string]Attributes{
				"tor1": {Communities: CommunitiesOf(64500<<16|1, 64500<<16|2), MED: MetricOf(5)},
				"tor2": {Communities: CommunitiesOf(64500<<16|1, 64500<<16|3), Prepend: 1},
				"core": {Communities: CommunitiesOf(64500<<16 | 1), LargeCommunities: LargeCommunitiesOf(LargeCommunity{1, 2, 3}), LocalPref: MetricOf(50)}}),
				external: "as 65010 med 5 community 64500:1 64500:2", internal: "as Local preference 50 community 64500:1 large 1:2:3",
				renumbered: "as 65099 65099 community 64500:1 64500:3"},
			{name: "only for some", told: ForEach(map[string]Attributes{"tor1": {}, "tor2": {MED: MetricOf(1)}, "core": {MED: MetricOf(1), Prepend: 3}}),
				external: "as 65010", internal: "as Local preference 100 med 1", renumbered: "as 65099 med 1"},
		}
		// One prefix for each, an aggregate among them.
		var all []Route
		for i, c := range cases {
			all = append(all, told(c.told, routes(fmt.Sprintf("192.0.2.%d/%d", 16*i, 32-4*(i%2)))...)...)
		}
		all = append(all, told(ForAll(gold), routes("2001:db8::1/128 via fd00::2")...)...)
		_, err := s.Set(t.Context(), state(sessions, all))
		must(t, err)
		for i, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				prefix := all[i].Prefix.String()
				for node, want := range map[string]string{external: c.external, internal: c.internal, renumbered: c.renumbered} {
					if eventuallyIs(func() string { return r.has(prefix, node) }, want); r.has(prefix, node) != want {
						t.Errorf("%s from %s: %q, want %q", all[i], node, r.has(prefix, node), want)
					}
				}
			})
		}
		eventually(t, "IPv6", func() bool { return r.has("2001:db8::1/128", external) == "as 65010 med 10 community 64500:1" })
	})
}
