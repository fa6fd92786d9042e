package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
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
	if got := text(fits, "192.0.2.1"); !strings.Contains(got, " proxy Programmed: ") || fits.Routed.Len() != 2 {
		t.Errorf("65,535 endpoints: %s", got)
	}
	const why = "endpoints of port tcp/80: 65536; in nftables mode an address can have 65535: use several Services, " +
		"each with a part of the endpoints"
	want := "192.0.2.1 shop/huge proxy ProxyRefused: not forwarded: " + why +
		"\n192.0.2.1 shop/huge bgp ProxyRefused: not announced: " + why
	if got := text(over, "192.0.2.1"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := text(over, "192.0.2.2"), text(fits, "192.0.2.2"); got != want {
		t.Errorf("the Service beside it: got\n%s\nwant\n%s", got, want)
	}
	if fmt.Sprint(over.Routed.Slice()) != "[192.0.2.2]" ||
		fmt.Sprint(over.BGP.Routes.Slice()) == fmt.Sprint(fits.BGP.Routes.Slice()) {
		t.Errorf("announced %v", over.Routed.Slice())
	}
	if v := over.Proxy.VIPs.At(0); v.Addr != netip.MustParseAddr("192.0.2.1") || len(v.Frontends) > 0 {
		t.Errorf("forwarded: %v", v.Addr)
	}
	if err := over.Proxy.Validate(); err != nil {
		t.Error(err)
	}
	// iptables mode has other limits.
	c.Limits = proxy.DefaultLimits(proxy.ModeIPTables)
	if got := text(Decide(c, plantest.HugeService(t, 5000)), "192.0.2.1"); !strings.Contains(got,
		"5000; in iptables mode") {
		t.Errorf("iptables: %s", got)
	}
}

// Of Services that share an address, only the Service that is too large is refused.
func TestSharedAddressOverLimitRefusesOneService(t *testing.T) {
	world := func(endpoints int) *Desired {
		snap := plantest.HugeService(t, endpoints)
		shared := snap.Services.At(1)
		shared.Spec = new(*shared.Spec)
		shared.Ports = []cluster.Port{{Protocol: "TCP", Port: 443}}
		snap.Services = snap.Services.With(shared)
		all := snap.Assignments.Slice()
		for i := range all {
			all[i].Addr = netip.MustParseAddr("192.0.2.1")
		}
		snap.Assignments = cluster.AssignmentSet(all...)
		return Decide(Config{Node: "n1"}, snap)
	}
	for endpoints, want := range map[int]string{
		65535: "192.0.2.1 tcp/80 tcp/443: huge Programmed, web Programmed",
		65536: "192.0.2.1 tcp/443: huge ProxyRefused, web Programmed",
	} {
		d := world(endpoints)
		a := d.Addresses.At(0)
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
		if got != want || !a.Announce || d.Routed.Len() != 1 {
			t.Errorf("got %s, announced %t; want %s", got, a.Announce, want)
		}
	}
}

// Communities that exceed a BGP message are left out if a Service asks for them, and the
// address stays announced. If advertisements do, the route is left out, and all others are announced.
func TestOversizedAttributesRefused(t *testing.T) {
	numbers := func(n int) *cluster.Communities {
		c := &cluster.Communities{}
		for i := range n {
			c.Standard = append(c.Standard, 64500<<16|bgp.Community(i))
		}
		return c
	}
	text := func(advertised, annotated int) string {
		snap := advertWorld(&cluster.Advertisement{Name: "all", Length4: 32, Length6: 128},
			&cluster.Advertisement{Name: "some", Length4: 32, Length6: 128, Communities: numbers(advertised),
				ServiceSelector: cluster.Selecting(labels.SelectorFromSet(labels.Set{"tier": "gold"}))})
		snap.Pools[0].ServiceCommunities = numbers(1000)
		give(snap, "gold", "192.0.2.1", corev1.ServiceExternalTrafficPolicyCluster, 80)
		give(snap, "plain", "192.0.2.3", corev1.ServiceExternalTrafficPolicyCluster, 80)
		snap.Services.At(0).Spec.Labels = labels.Set{"tier": "gold"}
		snap.Services.At(0).Spec.Communities = numbers(annotated)
		d := Decide(Config{Node: "n1"}, snap)
		var lines []string
		for r := range d.BGP.Routes.All() {
			lines = append(lines, fmt.Sprintf("%s with %d", r.Prefix, len(r.Attributes.Of("tor1").Communities)/4))
		}
		for _, r := range d.Reasons() {
			if r.Code == cluster.AttributesRefused || r.Code == cluster.AnnotationRefused {
				lines = append(lines, r.String())
			}
		}
		if err := d.BGP.Validate(); err != nil {
			t.Error(err)
		}
		return strings.Join(lines, "\n")
	}
	const room = "901 communities and 0 large communities take 3604 bytes: a BGP message has room for 3600; remove some"
	for _, tt := range []struct {
		name                  string
		advertised, annotated int
		want                  string
	}{
		{"both fit", 2, 900, "192.0.2.1/32 with 900\n192.0.2.3/32 with 0"},
		{"the Service's do not fit", 2, 901, "192.0.2.1/32 with 2\n192.0.2.3/32 with 0\n" +
			"192.0.2.1 shop/gold bgp AnnotationRefused: the communities of Services are left out: with them, " +
			"route 192.0.2.1/32: " + room},
		{"the advertisements' do not fit", 901, 1, "192.0.2.3/32 with 0\n" +
			"192.0.2.1 shop/gold bgp AttributesRefused: not announced: route 192.0.2.1/32: " + room},
	} {
		if got := text(tt.advertised, tt.annotated); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, tt.want)
		}
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
		r = r.With(&proxy.Refused{Refusals: []proxy.Refusal{{VIP: vip(port), Err: errors.New("no room")}}},
			began.Add(time.Duration(port)*time.Second))
	}
	if n := len(r.all[addr]); n != maxRefusalsKept {
		t.Errorf("%d refusals of one address are kept, want %d", n, maxRefusalsKept)
	}
	c := capacity{refused: r, limits: proxy.DefaultLimits(proxy.ModeNFTables)}
	for port, want := range map[int]string{100: "no room", 97: "no room", 1: ""} {
		if got := c.refusalOf(vip(port)); got != want {
			t.Errorf("port %d: refused for %q, want %q", port, got, want)
		}
	}
}
