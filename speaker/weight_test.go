package speaker

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// weightedCluster is a cluster with a Local Service of so many pods on this node and on another
// one, and optionally a second Service.
func weightedCluster(here, there int, other bool) []byte {
	var b strings.Builder
	b.WriteString(`
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24]}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor1}
spec: {peerAddress: 127.0.0.1, peerPort: 1, connectTime: 1h, peerASN: 65000, myASN: 65001, weightByEndpoints: true}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}
`)
	service := func(name, addr string, here, there int) {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %[1]s}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: http, port: 80}]}
status: {loadBalancer: {ingress: [{ip: %[2]s}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
`, name, addr)
		for i := range here {
			fmt.Fprintf(&b, "- {addresses: [10.244.1.%d], nodeName: n1, conditions: {ready: true}}\n", i+1)
		}
		for i := range there {
			fmt.Fprintf(&b, "- {addresses: [10.244.2.%d], nodeName: n2, conditions: {ready: true}}\n", i+1)
		}
	}
	service("web", "192.0.2.1", here, there)
	if other {
		service("other", "192.0.2.2", 1, 0)
	}
	return []byte(b.String())
}

// A log records the steps of a pass in order.
type log struct{ lines []string }

func (l *log) reset() (lines string) {
	lines, l.lines = strings.Join(l.lines, "; "), nil
	return lines
}

type logAnnouncer struct{ *log }

func (l logAnnouncer) Set(_ context.Context, d *plan.Desired,
	allowed sortedset.Set[netip.Prefix]) (sortedset.Set[netip.Prefix], error) {
	var routes []string
	for r := range d.RoutesTo(allowed, bgp.Routes{}).All() {
		routes = append(routes, r.String())
	}
	l.lines = append(l.lines, "announce "+strings.Join(routes, ", "))
	return allowed, nil
}

type logForwarder struct{ *log }

func (logForwarder) Intact() proxy.Integrity { return intact{}.Intact() }

func (logForwarder) Blockade() *obstacle.Blockade { return nil }

func (logForwarder) Unprepared() []netip.Prefix { return nil }

func (l logForwarder) Set(_ context.Context, want proxy.State) error {
	for v := range want.VIPs.All() {
		if v.Addr == netip.MustParseAddr("192.0.2.1") {
			l.lines = append(l.lines, fmt.Sprintf("forward to %d", len(v.Frontends[0].External.Backends)))
		}
	}
	return nil
}

// A router learns of a pod only after the kernel forwards to it, also in a pass that
// withdraws something else first. Each change of an endpoint is one Set.
func TestWeightAfterForwarding(t *testing.T) {
	done := &log{}
	p := newPass(logForwarder{done}, slog.New(slog.DiscardHandler), newBGPPath(logAnnouncer{done}, testLinger))
	decider := plan.NewDecider(plan.Config{Node: "n1"})
	for _, step := range []struct {
		pods  int
		other bool
		want  string
	}{
		{1, true, "forward to 1; announce 192.0.2.1/32 weight 1, 192.0.2.2/32 weight 1"},
		{2, true, "forward to 2; announce 192.0.2.1/32 weight 2, 192.0.2.2/32 weight 1"},
		{5, false, "announce 192.0.2.1/32 weight 2; forward to 5; announce 192.0.2.1/32 weight 5"},
		{1, false, "forward to 1; announce 192.0.2.1/32 weight 1"},
		{1, false, "forward to 1; announce 192.0.2.1/32 weight 1"},
	} {
		d := decider.Decide(plantest.Snapshot(t, weightedCluster(step.pods, 0, step.other)))
		if err := p.run(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, done.reset()); diff != "" {
			t.Errorf("%d pods (-want +got):\n%s", step.pods, diff)
		}
	}
}

// During a delayed withdrawal the weight stays: the node has no pod any longer, and must
// not lose its weight.
func TestDelayedWithdrawalKeepsWeight(t *testing.T) {
	server := bgp.New(bgp.Options{Logger: slog.New(slog.DiscardHandler)})
	defer server.Close(t.Context(), bgp.Withdraw)
	network, done := &bgpAnnouncer{server: server}, &log{}
	p := newPass(logForwarder{done}, slog.New(slog.DiscardHandler), newBGPPath(network, testLinger))
	decider := plan.NewDecider(plan.Config{Node: "n1"})
	for _, step := range []struct {
		here, there int
		want        string
	}{
		{2, 1, "forward to 2; [192.0.2.1/32 weight 2]"},
		{0, 3, "forward to 3; [192.0.2.1/32 weight 2]"},
	} {
		d := decider.Decide(plantest.Snapshot(t, weightedCluster(step.here, step.there, false)))
		if err := p.run(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s; %s", done.reset(), network.sent.Slice()); got != step.want {
			t.Errorf("%d pods here and %d there: %s; want %s", step.here, step.there, got, step.want)
		}
	}
}
