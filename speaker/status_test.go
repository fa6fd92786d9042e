package speaker

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

const toldToOne = `---
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: one}
spec: {peers: [tor2]}
`

// The reason of an address names the routers without its route and why, and no router that
// it is not for.
func TestReasonsOfMissingSessions(t *testing.T) {
	up := bgp.SessionStatus{Name: "tor1", State: bgp.Established}
	up2, down, lost, partly := up, up, up, up
	up2.Name, down.Name, lost.Name, partly.Name = "tor2", "tor2", "tor2", "tor2"
	down.State, down.LastError = bgp.Active, "wrong AS number"
	lost.State, lost.LastError, lost.LossReason = bgp.Active, "connection refused", "hold timer expired"
	down1 := down
	down1.Name = "tor1"
	partly.Omissions = []bgp.Omission{{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Reason: "no next hop"}}
	for _, c := range []struct {
		name, more string
		sessions   []bgp.SessionStatus
		want       string
	}{
		{"both hear it", "", []bgp.SessionStatus{up, up2}, "Announced announced to tor1, tor2"},
		{"one was never up", "", []bgp.SessionStatus{up, down},
			"Announced announced to tor1, to be announced to tor1, tor2; not received by tor2 " +
				"(Active): wrong AS number"},
		{"one was lost", "", []bgp.SessionStatus{up, lost},
			"Announced announced to tor1, to be announced to tor1, tor2; not received by tor2 (Active): hold timer " +
				"expired; since then: connection refused"},
		{"one cannot receive it", "", []bgp.SessionStatus{up, partly},
			"Announced announced to tor1, to be announced to tor1, tor2; not received by tor2: no next hop"},
		{"none is up", "", []bgp.SessionStatus{down1, lost},
			"WaitingForSession no router has the route: tor1 (Active): wrong AS number; tor2 (Active): hold timer " +
				"expired; since then: connection refused"},
		{"the only one that it is for is not up", toldToOne, []bgp.SessionStatus{up, down},
			"WaitingForSession no router has the route: tor2 (Active): wrong AS number"},
		{"another one is not up", toldToOne, []bgp.SessionStatus{down1, up2}, "Announced announced to tor2"},
	} {
		world := plantest.TwoRouters
		if c.more != "" {
			world = plantest.Advertised
		}
		d := plan.Decide(plan.Config{Node: "n1"},
			plantest.Snapshot(t, []byte(world+plantest.LocalService("web", "uid-web", "192.0.2.1", "n1")+c.more)))
		p := &passResult{desired: d, programmed: true, announced: d.Announce}
		var got []string
		for _, r := range p.address(d.Addresses.At(0), bgp.Status{Sessions: c.sessions}).Reasons {
			if r.Protocol == "bgp" {
				got = append(got, string(r.Code)+" "+r.Message)
			}
		}
		if diff := cmp.Diff([]string{c.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// A second router on an unnumbered link needs attention.
func TestAttentionForSecondRouter(t *testing.T) {
	st := &Status{BGP: bgp.Status{Sessions: []bgp.SessionStatus{{Name: "tor1", State: bgp.Established,
		Interface:   "eth1",
		PeerAddress: netip.MustParseAddr("fe80::1%eth1"), OtherRouter: netip.MustParseAddr("fe80::66%eth1")}}}}
	const want = "router tor1: fe80::66%eth1, too, sends router advertisements on eth1; the session remains with " +
		"fe80::1%eth1, which sent the first: leave one router on the link"
	if got := strings.Join(st.Attention(time.Now()), "\n"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// An address with as many flows in the fast path as it may have, and a reason why the fast path
// takes none, need attention.
func TestAttentionForFastPath(t *testing.T) {
	st := &Status{Proxy: proxy.Status{FastPath: &proxy.FastPathStatus{
		Error:   "IPv4: the routing rule with priority 100 selects by fwmark 0x1/0x1, which netfilter sets",
		Limited: []proxy.LimitedAddress{{Addr: netip.MustParseAddr("192.0.2.1"), Flows: 50, Rejected: 7}},
	}}}
	const want = "new flows use the rules although --fast-path is set: IPv4: the routing rule with priority 100 " +
		"selects by fwmark 0x1/0x1, which netfilter sets\n" +
		"address 192.0.2.1 has 50 flows in the fast path, as many as there is room for others; 7 more used the rules"
	if got := strings.Join(st.Attention(time.Now()), "\n"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A full affinity needs attention, with what each mode does about it.
func TestAttentionForAffinity(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		mode proxy.Mode
		full proxy.AffinityFull
		want string
	}{
		{"nftables, evicted", proxy.ModeNFTables, proxy.AffinityFull{Evicted: 16384, Last: now.Add(-time.Minute)},
			", last 60s ago: its clients of longest ago were forgotten for new ones, 16384 so far"},
		{"nftables, not evicted yet", proxy.ModeNFTables, proxy.AffinityFull{Last: now},
			", last 0s ago: new clients are not remembered until the oldest are forgotten"},
		{"iptables", proxy.ModeIPTables, proxy.AffinityFull{Last: now},
			" for an endpoint: new clients take the place of others there, not of the oldest"},
	} {
		c.full.Frontend = "192.0.2.1 tcp/80 shop/web"
		st := &Status{Proxy: proxy.Status{Mode: c.mode, AffinityFull: []proxy.AffinityFull{c.full}}}
		if got, want := strings.Join(st.Attention(now), "\n"),
			"session affinity of 192.0.2.1 tcp/80 shop/web is full"+c.want; got != want {
			t.Errorf("%s: %q, want %q", c.name, got, want)
		}
	}
}

// BFD that stays down beside an established session needs attention, after a while.
func TestAttentionForBFD(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		bfd  *bgp.BFDStatus
		want string
	}{
		{"none", nil, ""},
		{"up", &bgp.BFDStatus{State: "Up", Since: now.Add(-time.Hour)}, ""},
		{"on its way", &bgp.BFDStatus{State: "Down", Since: now.Add(-time.Second), Reason: "the router sends nothing"},
			""},
		{"never up", &bgp.BFDStatus{State: "Down", Since: now.Add(-sessionGrace), Reason: "the router sends nothing"},
			"router tor1: BFD is down, so that only the hold time detects a failure: the router sends nothing"},
		{"impossible", &bgp.BFDStatus{State: "Down", Since: now, Error: "another BFD has the port"},
			"router tor1: another BFD has the port"},
	} {
		st := &Status{BGP: bgp.Status{Sessions: []bgp.SessionStatus{{Name: "tor1", State: bgp.Established,
			BFD: c.bfd}}}}
		if got := strings.Join(st.Attention(now), "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A run directory that takes no snapshot needs attention: the speaker runs on, and its next start suffers.
func TestAttentionForRunDirectory(t *testing.T) {
	st := &Status{RunDir: "snapshot not written: write /run/fanfare/cluster.json.tmp: no space left on device"}
	const want = "the run directory: snapshot not written: write /run/fanfare/cluster.json.tmp: no space left on device"
	if got := strings.Join(st.Attention(time.Now()), "\n"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
