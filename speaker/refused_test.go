package speaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/bubble"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// refuse leaves addresses that the kernel does not take as they were.
func (t *trial) refuse(want proxy.State, kernel map[netip.Addr]*proxy.VIP) error {
	var refused proxy.Refused
	for _, v := range want.VIPs {
		if t.untaken == nil || !t.untaken(v) {
			continue
		}
		refused.Refusals = append(refused.Refusals, proxy.Refusal{VIP: v, Err: errors.New("no room")})
		if old := t.kernel[v.Addr]; old != nil {
			kernel[v.Addr] = old
		} else {
			delete(kernel, v.Addr)
		}
	}
	if len(refused.Refusals) == 0 {
		return nil
	}
	return &refused
}

// again is what a speaker does when its proxy refuses addresses.
func (t *trial) again(p *pass, ctx context.Context, d *Desired) (err error) {
	var before error // of a way, which the next run has mended
	for range maxRefused {
		err = p.run(ctx, d)
		var refused *proxy.Refused
		if !errors.As(err, &refused) {
			break
		}
		if t.failed {
			before = err
		}
		t.decider.config.Refused = t.decider.config.Refused.with(refused, time.Now())
		t.decide()
		d = t.desired
		t.before = nil // they may lose their last route now
	}
	for _, a := range t.desired.Addresses {
		if a.refusal == "" || t.failed {
			continue
		}
		if t.network[host(a.Addr)] || t.links.answering[a.Addr] {
			t.violate("refused: %s is announced", a.Addr)
		}
		if v := t.kernel[a.Addr]; v == nil || len(v.Frontends) > 0 {
			t.violate("refused: the kernel has %v", v)
		}
	}
	return cmp.Or(err, before)
}

// An address that the kernel refuses is withdrawn before it is taken from the kernel, and
// everything that holds of a pass goes on to hold of the others, in random worlds.
func TestPassGoesOnBesideRefusals(t *testing.T) {
	refused := 0
	for seed := range seeds(t) / 4 {
		var violations []string
		bubble.Test(t, func(*testing.T) {
			trial := newTrial(seed)
			trial.untaken = func(v *proxy.VIP) bool {
				for _, f := range v.Frontends {
					if len(f.Internal.Backends) > 1 || len(f.Draining) > 1 {
						refused++
						return true
					}
				}
				return false
			}
			trial.steps(30, trial.again)
			violations = trial.violations
		})
		if len(violations) > 0 {
			t.Fatalf("seed %d:\n%s", seed, violations)
		}
	}
	if refused < 100 {
		t.Errorf("only %d addresses were refused", refused)
	}
}

// hugeWorld is a snapshot with a Service of so many endpoints, and one beside it.
func hugeWorld(t *testing.T, endpoints int) *cluster.Snapshot {
	t.Helper()
	snap := *snapshotOf(t, []byte(eventWorld+eventService("huge", "uid-huge", "192.0.2.1", "n1")+eventService("web", "uid-web", "192.0.2.2", "n1")))
	huge := snap.Services[0]
	like := huge.Endpoints.List[0]
	var list []cluster.Endpoint
	for i := range endpoints {
		like.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1 + byte(i>>16), byte(i >> 8), byte(i)}), 8080)
		list = append(list, like)
	}
	huge.Endpoints = &cluster.Endpoints{List: list}
	snap.Services = slices.Clone(snap.Services)
	snap.Services[0] = huge
	return &snap
}

// A Service with more endpoints than an address can have is refused with a Reason, and the one
// beside it is served as ever.
func TestDecideRefuses(t *testing.T) {
	c := Config{Node: "n1"}
	fits, over := Decide(c, hugeWorld(t, 65535)), Decide(c, hugeWorld(t, 65536))
	text := func(d *Desired, addr string) string {
		var lines []string
		for _, r := range d.Address(netip.MustParseAddr(addr)).Reasons {
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
	if got := text(Decide(c, hugeWorld(t, 5000)), "192.0.2.1"); !strings.Contains(got, "5000; in iptables mode") {
		t.Errorf("iptables: %s", got)
	}
}

// A proxyOf refuses what it shall, and sets the rest.
type proxyOf struct {
	refuses func(*proxy.VIP) bool
	sets    []string
}

func (p *proxyOf) Set(_ context.Context, want proxy.State) error {
	var refused proxy.Refused
	var set []string
	for _, v := range want.VIPs {
		if p.refuses(v) {
			refused.Refusals = append(refused.Refusals, proxy.Refusal{VIP: v, Err: errors.New("no room")})
			continue
		}
		set = append(set, fmt.Sprintf("%s:%d", v.Addr, len(v.Frontends)))
	}
	p.sets = append(p.sets, strings.Join(set, " "))
	if len(refused.Refusals) > 0 {
		return &refused
	}
	return nil
}

// Intact is part of forwarder: nothing else touches the table.
func (p *proxyOf) Intact() proxy.Integrity { return proxy.Integrity{Intact: true} }

// What the proxy refuses is not tried again for a while, unless it changes, and then it is. The
// pass succeeds all the while, and the status says why.
func TestRefusedByTheKernel(t *testing.T) {
	full := true
	p := &proxyOf{refuses: func(v *proxy.VIP) bool { return full && v.Addr.String() == "192.0.2.1" && len(v.Frontends) > 0 }}
	s := quietSpeaker(t, p)
	world := func(endpoints int) *cluster.Snapshot {
		snap := hugeWorld(t, endpoints)
		snap.Peers, snap.Pools = nil, nil // nothing goes to the network
		return snap
	}
	snap := world(2)
	s.source, s.retry = still{snap}, backoff.NewExponentialBackOff()
	s.publish(nil, nil)
	pass := func(wantSets string) {
		t.Helper()
		p.sets = nil
		if err := s.once(t.Context()); err != nil {
			t.Errorf("the pass: %v", err)
		}
		if got := strings.Join(p.sets, "; "); got != wantSets {
			t.Errorf("set %q; want %q", got, wantSets)
		}
	}
	code := func(want cluster.Code, programmed bool) {
		t.Helper()
		pub := s.published.Load()
		st := pub.address(pub.desired.Address(netip.MustParseAddr("192.0.2.1")), s.bgp.Status())
		if st.Reasons[0].Code != want || st.Programmed != programmed {
			t.Errorf("programmed %t, %+v; want %s", st.Programmed, st.Reasons[0], want)
		}
	}
	pass("192.0.2.2:1; 192.0.2.1:0 192.0.2.2:1")
	code(cluster.ProxyRefused, false)
	refused := func() *Refused { return s.decider.config.Refused }
	if at := s.wake(time.Now(), nil); !at.Equal(refused().since.Add(refusedAgain)) {
		t.Errorf("tried again at %s", at)
	}
	if refused().still(refused().since.Add(refusedAgain-1)) == nil || refused().still(refused().since.Add(refusedAgain)) != nil {
		t.Error("tried again too early or too late")
	}
	pass("192.0.2.1:0 192.0.2.2:1")
	// Another endpoint makes it another address.
	s.source = still{world(3)}
	pass("192.0.2.2:1; 192.0.2.1:0 192.0.2.2:1")
	s.source = still{snap}
	pass("192.0.2.1:0 192.0.2.2:1")
	full = false
	refused().since = time.Now().Add(-refusedAgain)
	pass("192.0.2.1:1 192.0.2.2:1")
	code(cluster.Programmed, true)
}

// A refusal is told once, on the Service, and again when it had been served meanwhile.
func TestNewsOfRefusals(t *testing.T) {
	p := newPlay(t, told{})
	p.session("tor1", bgp.Established, "")
	p.tells("at the start", "Normal SessionEstablished BGPPeer/tor1 (uid-tor1): node n1 has a session with router tor1 (10.0.0.1, AS65000)")
	scene := func(endpoints int) {
		p.desired = Decide(Config{Node: "n1"}, hugeWorld(t, endpoints))
		p.announced = p.desired.Announce
	}
	const refused = "Warning ProxyRefused Service/huge (uid-huge): node n1 does not forward 192.0.2.1: endpoints of port tcp/80: 65536; " +
		"in nftables mode an address can have 65535: use several Services, each with a part of the endpoints"
	scene(65536)
	p.tells("too large", refused, "Normal Announced Service/web (uid-web): node n1 announces 192.0.2.2 to tor1")
	scene(65537)
	p.tells("still larger")
	scene(1)
	p.tells("small", "Normal Announced Service/huge (uid-huge): node n1 announces 192.0.2.1 to tor1")
	scene(65536)
	p.tells("too large again", refused, "Normal Withdrawn Service/huge (uid-huge): node n1 withdrew 192.0.2.1 from tor1: "+
		"endpoints of port tcp/80: 65536; in nftables mode an address can have 65535: use several Services, each with a part of the endpoints")
}

// Of Services that share an address, only the one that is too large is refused.
func TestDecideRefusesOneOfTwo(t *testing.T) {
	world := func(endpoints int) *Desired {
		snap := hugeWorld(t, endpoints)
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
		for _, r := range a.Reasons {
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

// A route whose communities fit into no message is left out with a reason, and all others
// are announced. In an aggregate, the communities of one Service are left out.
func TestDecideRefusesAttributes(t *testing.T) {
	annotated := func(first, n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("64500:%d", first+i))
		}
		return "metadata: {annotations: {fanfare.io/bgp-communities: \"" + strings.Join(list, ",") + "\"}, namespace"
	}
	service := func(name, addr string, first, n int) string {
		return strings.Replace(eventService(name, "uid", addr, "n1"), "metadata: {namespace", annotated(first, n), 1)
	}
	text := func(aggregate string, services ...string) string {
		yaml := eventWorld + aggregate + strings.Join(services, "")
		d := Decide(Config{Node: "n1"}, snapshotOf(t, []byte(yaml)))
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
