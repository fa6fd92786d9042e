package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// The AS number in a community has 16 bits, and those of a changed one are sent.
func TestWeightAS(t *testing.T) {
	tor1 := startRouter(t, routerConf{})
	session := tor1.session("tor1")
	session.Weights, session.LocalASN, session.RouterID = true, 65010, netip.MustParseAddr("10.255.0.10")
	s := newServer(t, Options{})
	for _, c := range []struct {
		asn  uint32
		want string
	}{
		{65010, "65010:250000"},
		{65535, "65535:250000"},
		{65536, "23456:250000"},
		{4200000001, "23456:250000"},
	} {
		want := state([]Session{session}, routes("192.0.2.1/32 weight 2"))
		want.ASN = c.asn
		_, err := s.Set(t.Context(), want)
		must(t, err)
		eventually(t, c.want, func() bool { return strings.Contains(tor1.adjIn(), "0x40 0x04 "+c.want) })
	}
	if n := tor1.ups.Load(); n != 1 {
		t.Errorf("%d sessions: want the first one to go on", n)
	}
}

// A router to which two nodes announce the same.
const frrWeightsConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor nodes peer-group
 neighbor nodes remote-as 65010
 neighbor nodes timers connect 1
 neighbor 10.0.0.2 peer-group nodes
 neighbor 10.0.0.3 peer-group nodes
 address-family ipv4 unicast
  maximum-paths 16
 address-family ipv6 unicast
  neighbor nodes activate
  maximum-paths 16
`

// FRR balances by the weights that two nodes say, and evenly as soon as one of them
// says none. No change of a weight resets a session or leaves the router
// without a route.
func TestFRRWeights(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrWeightsConfig)
		nodes := []*Server{newServer(t, Options{}), newServer(t, Options{})}
		set := func(node int, weights bool, list ...string) {
			t.Helper()
			session := frrSession(fmt.Sprintf("10.0.0.%d", node+2))
			session.Weights = weights
			want := state([]Session{session}, routes(list...))
			want.RouterID, want.NextHop6 = session.SourceAddress, netip.MustParseAddr(fmt.Sprintf("fd00::%d", node+2))
			_, err := nodes[node].Set(t.Context(), want)
			must(t, err)
		}
		expect := func(prefix, want string) {
			t.Helper()
			var got string
			eventually(t, prefix+" by "+want, func() bool { got = r.weights(prefix); return got == want })
		}
		const four, six = "192.0.2.1/32", "2001:db8::1/128"
		set(0, true, four+" weight 1", six+" weight 1")
		set(1, true, four+" weight 3", six+" weight 3")
		expect(four, "10.0.0.2 25, 10.0.0.3 75")
		expect(six, "fd00::2 25, fd00::3 75")
		if text := r.vtysh("-c", "show bgp ipv4 unicast "+four); !strings.Contains(text,
			"LB:65010:375000 (3.000 Mbps)") {
			t.Errorf("the router says:\n%s", text)
		}
		r.happened()

		set(0, true, four+" weight 2", six+" weight 1")
		expect(four, "10.0.0.2 40, 10.0.0.3 60")
		set(0, true, four, six+" weight 1")
		expect(four, "10.0.0.2 1, 10.0.0.3 1")
		set(0, true, four+" weight 1", six+" weight 1")
		expect(four, "10.0.0.2 25, 10.0.0.3 75")
		set(0, false, four+" weight 1", six+" weight 1")
		expect(four, "10.0.0.2 1, 10.0.0.3 1")
		set(0, true, four+" weight 1", six+" weight 1")
		expect(four, "10.0.0.2 25, 10.0.0.3 75")
		expect(six, "fd00::2 25, fd00::3 75")

		if events := r.happened(); slices.ContainsFunc(events,
			func(e string) bool { return strings.HasPrefix(e, "del "+four) }) {
			t.Errorf("the router was without a route: %v", events)
		}
		for _, s := range nodes {
			if st := s.sessionStatus("tor1"); st.Flaps != 0 || st.Updates == 0 {
				t.Errorf("session: %+v", st)
			}
		}
	})
}

// weights are the next hops of a prefix in the router's kernel, each with its weight.
func (r *frr) weights(prefix string) string {
	r.t.Helper()
	dst, err := netlink.ParseIPNet(prefix)
	must(r.t, err)
	var routes []netlink.Route
	r.ns.Do(func() {
		family := netlink.FAMILY_V4
		if dst.IP.To4() == nil {
			family = netlink.FAMILY_V6
		}
		routes, err = netlink.RouteListFiltered(family, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
	})
	must(r.t, err)
	var hops []string
	for _, route := range routes {
		for _, h := range route.MultiPath {
			hops = append(hops, fmt.Sprintf("%s %d", h.Gw, h.Hops+1))
		}
	}
	slices.Sort(hops)
	return strings.Join(hops, ", ")
}

// The routers without weights, as GoBGP knows them: several routers may have one link-local
// address.
func TestUnweighted(t *testing.T) {
	session := func(name, addr string, weights bool) Session {
		return Session{Name: name, PeerAddress: netip.MustParseAddr(addr), Weights: weights}
	}
	for _, c := range []struct {
		sessions []Session
		want     string
	}{
		{nil, "[]"},
		{[]Session{session("a", "192.0.2.1", false)}, "[]"},
		{[]Session{session("a", "192.0.2.1", true)}, "[]"},
		{[]Session{session("a", "192.0.2.2", false), session("b", "192.0.2.3", true), session("c", "192.0.2.1", false)},
			"[192.0.2.1 192.0.2.2]"},
		{[]Session{session("a", "fe80::1%eth0", false), session("b", "fe80::1%eth1", true),
			session("c", "fe80::1%eth2", false)}, "[100::1:0:0 100::1:0:1]"},
	} {
		if got := fmt.Sprint((&engine{neighborAddrs: map[string]netip.Addr{}}).withoutBandwidth(State{ASN: 65010,
			Sessions: c.sessions})); got != c.want {
			t.Errorf("%v: %s, want %s", c.sessions, got, c.want)
		}
	}
}
