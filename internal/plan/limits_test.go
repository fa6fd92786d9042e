package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A Service with too many endpoints is refused with a Reason, and other Services are served.
func TestServiceOverLimitRefused(t *testing.T) {
	c := Config{Node: "n1"}
	fits, over := Decide(c, plantest.HugeService(t, 65535)), Decide(c, plantest.HugeService(t, 65536))
	text := func(d *Desired, addr string) string {
		var lines []string
		for _, r := range d.ReasonsOf(d.Address(netip.MustParseAddr(addr))) {
			lines = append(lines, r.String())
		}
		return strings.Join(lines, "\n")
	}
	if got := text(fits, "192.0.2.1"); !strings.Contains(got, " proxy Programmed: ") || len(fits.Routed) != 2 {
		t.Errorf("65,535 endpoints: %s", got)
	}
	const why = "endpoints of port tcp/80: 65536; in nftables mode an address can have 65535: use several Services, each with a part of the endpoints"
	want := "192.0.2.1 shop/huge proxy ProxyRefused: not forwarded: " + why + "\n192.0.2.1 shop/huge bgp ProxyRefused: not announced: " + why
	if got := text(over, "192.0.2.1"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := text(over, "192.0.2.2"), text(fits, "192.0.2.2"); got != want {
		t.Errorf("the Service beside it: got\n%s\nwant\n%s", got, want)
	}
	if fmt.Sprint(over.Routed) != "[192.0.2.2]" || fmt.Sprint(over.BGP.Routes) == fmt.Sprint(fits.BGP.Routes) {
		t.Errorf("announced %v", over.Routed)
	}
	if v := over.Proxy.VIPs[0]; v.Addr != netip.MustParseAddr("192.0.2.1") || len(v.Frontends) > 0 {
		t.Errorf("forwarded: %v", v.Addr)
	}
	if err := over.Proxy.Validate(); err != nil {
		t.Error(err)
	}
	// iptables mode has other limits.
	c.Limits = proxy.DefaultLimits(proxy.ModeIPTables)
	if got := text(Decide(c, plantest.HugeService(t, 5000)), "192.0.2.1"); !strings.Contains(got, "5000; in iptables mode") {
		t.Errorf("iptables: %s", got)
	}
}

// Of Services that share an address, only the Service that is too large is refused.
func TestSharedAddressOverLimitRefusesOneService(t *testing.T) {
	world := func(endpoints int) *Desired {
		snap := plantest.HugeService(t, endpoints)
		shared := *snap.Services[1].Spec
		shared.Ports = []cluster.Port{{Protocol: "TCP", Port: 443}}
		snap.Services[1].Spec = &shared
		snap.Assignments = slices.Clone(snap.Assignments)
		for i := range snap.Assignments {
			snap.Assignments[i].Addr = netip.MustParseAddr("192.0.2.1")
		}
		return Decide(Config{Node: "n1"}, snap)
	}
	for endpoints, want := range map[int]string{
		65535: "192.0.2.1 tcp/80 tcp/443: huge Programmed, web Programmed",
		65536: "192.0.2.1 tcp/443: huge ProxyRefused, web Programmed",
	} {
		d := world(endpoints)
		a := d.Addresses[0]
		got := a.Addr.String()
		for _, f := range a.VIP.Frontends {
			got += fmt.Sprintf(" %s/%d", f.Protocol, f.Port)
		}
		separator := ": "
		for _, r := range d.ReasonsOf(a) {
			if r.Protocol == "proxy" {
				got += separator + r.Service.Name + " " + string(r.Code)
				separator = ", "
			}
		}
		if got != want || !a.Announce || len(d.Routed) != 1 {
			t.Errorf("got %s, announced %t; want %s", got, a.Announce, want)
		}
	}
}

// A route whose communities exceed a BGP message is left out with a Reason, and all others are
// announced. In an aggregate, the communities of one Service are left out.
func TestOversizedAttributesRefused(t *testing.T) {
	annotated := func(first, n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("64500:%d", first+i))
		}
		return "metadata: {annotations: {fanfare.io/bgp-communities: \"" + strings.Join(list, ",") + "\"}, namespace"
	}
	service := func(name, addr string, first, n int) string {
		return strings.Replace(plantest.LocalService(name, "uid", addr, "n1"), "metadata: {namespace", annotated(first, n), 1)
	}
	text := func(aggregate string, services ...string) string {
		yaml := plantest.TwoRouters + strings.Join(services, "")
		if aggregate != "" {
			yaml = plantest.Advertised + aggregate + strings.Join(services, "")
		}
		d := Decide(Config{Node: "n1"}, plantest.Snapshot(t, []byte(yaml)))
		var lines []string
		for _, r := range d.BGP.Routes {
			a := r.Attributes.Of("tor1")
			lines = append(lines, fmt.Sprintf("%s with %d", r.Prefix, len(a.Communities)/4))
		}
		for _, r := range d.Reasons() {
			if r.Code == cluster.AttributesRefused {
				lines = append(lines, r.String())
			}
		}
		if err := d.BGP.Validate(); err != nil {
			t.Error(err)
		}
		return strings.Join(lines, "\n")
	}
	const room = "take 3604 bytes: a BGP message has room for 3600; remove some"
	got := text("", service("full", "192.0.2.1", 0, 900), service("over", "192.0.2.2", 0, 901), service("plain", "192.0.2.3", 0, 1))
	want := "192.0.2.1/32 with 900\n192.0.2.3/32 with 1\n" +
		"192.0.2.2 shop/over bgp AttributesRefused: not announced: route 192.0.2.2/32: 901 communities and 0 large communities " + room
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	const aggregate = `---
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
spec: {aggregationLength: 24}
`
	cluster := func(s string) string { return strings.Replace(s, "externalTrafficPolicy: Local, ", "", 1) }
	got = text(aggregate, cluster(service("first", "192.0.2.1", 0, 600)), cluster(service("second", "192.0.2.2", 1000, 301)), cluster(service("third", "192.0.2.3", 2000, 300)))
	want = "192.0.2.0/24 with 900\n" +
		"192.0.2.2 shop/second bgp AttributesRefused: its communities are left out of those of the aggregate: with them, route 192.0.2.0/24: 901 communities and 0 large communities " + room
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Of an address that changes all the time and is always refused, only the newest refusals are
// kept.
func TestRefusalsBounded(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	vip := func(port int) *proxy.VIP {
		return &proxy.VIP{Addr: addr, Frontends: []proxy.Frontend{{Protocol: proxy.TCP, Port: uint16(port)}}}
	}
	var r *Refused
	began := time.Now()
	for port := 1; port <= 100; port++ {
		r = r.With(&proxy.Refused{Refusals: []proxy.Refusal{{VIP: vip(port), Err: errors.New("no room")}}}, began.Add(time.Duration(port)*time.Second))
	}
	if n := len(r.all[addr]); n != maxRefusalsKept {
		t.Errorf("%d refusals of one address are kept, want %d", n, maxRefusalsKept)
	}
	v := &View{refused: r, limits: proxy.DefaultLimits(proxy.ModeNFTables)}
	for port, want := range map[int]string{100: "no room", 97: "no room", 1: ""} {
		if got := v.refusalOf(vip(port)); got != want {
			t.Errorf("port %d: refused for %q, want %q", port, got, want)
		}
	}
}
