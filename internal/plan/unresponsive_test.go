package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// Endpoints on unresponsive nodes drain, with a text about the node.
func TestUnresponsiveNodesEndpointsLeftOut(t *testing.T) {
	const since = "node n3 has not responded since 2026-05-04T03:02:02Z; "
	const out, kept = since + "endpoints there are left out", since + "endpoints there are used, since no others exist"
	for _, tt := range []struct {
		members, endpoints         string // node and state: r ready, t terminating and serving, x neither
		usable, near, local, drain string
		missed                     string
	}{
		{"aaa", "1r 2r 3r", "1 2 3", "1 2 3", "1", "", ""},
		{"aad", "1r 2r 3r", "1 2", "1 2", "1", "3", out},
		{"aad", "2r 3r", "2", "2", "", "3", out},
		{"aad", "3r", "3", "3", "", "", kept},
		{"aad", "2t 3r", "2", "2", "", "3", out},  // a terminating endpoint still serves
		{"aad", "2x 3r", "3", "3", "", "2", kept}, // one that does not serve is not usable
		{"aad", "2r 3t", "2", "2", "", "3", ""},   // it would not be used with n3 alive, either
		{"aad", "1t 2r 3r", "2", "2", "1", "3", out},
		{"add", "1r 2r 3r", "1 2 3", "1 2 3", "1", "", ""},
		{"aal", "1r 3r", "1 3", "1 3", "1", "", ""},
		{"ald", "1r 3r", "1", "1", "1", "3", out},
		{"aax", "1r 3r", "1", "1", "1", "3", out},
	} {
		c := Config{Node: "n1", Members: plantest.Members(tt.members)}
		v := newInputs(c, &cluster.Snapshot{Nodes: []*cluster.Node{{Name: "n1"}}})
		s := cluster.Service{Spec: &cluster.Spec{
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Ports:                 []cluster.Port{{Protocol: corev1.ProtocolTCP, Port: 80}},
		}}
		var list []cluster.Endpoint
		for word := range strings.FieldsSeq(tt.endpoints) {
			list = append(list, cluster.Endpoint{Node: "n" + word[:1],
				Addr: netip.MustParseAddr("10.244." + word[:1] + ".1"), Ready: word[1] == 'r', Serving: word[1] != 'x',
				Terminating: word[1] == 't'})
		}
		s.Endpoints = plantest.Endpoints("", 80, list...)
		e := v.topology.endpointsOf(s, netip.MustParseAddr("192.0.2.1"))
		of := func(list []cluster.Endpoint) string {
			var names []string
			for _, e := range list {
				names = append(names, e.Node[1:])
			}
			return strings.Join(names, " ")
		}
		got := []string{of(e.groups[0].usable), of(e.groups[0].preferred), of(e.groups[0].local),
			of(e.groups[0].draining), e.groups[0].unresponsiveText}
		want := []string{tt.usable, tt.near, tt.local, tt.drain, tt.missed}
		if !slices.Equal(got, want) {
			t.Errorf("%s, %s:\ngot  %q\nwant %q", tt.members, tt.endpoints, got, want)
		}
	}
}

// The Reason of a Service names the unresponsive node.
func TestReasonNamesSilentNode(t *testing.T) {
	const service = `---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {type: LoadBalancer, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.244.2.5], nodeName: n2, conditions: {ready: true}}
- {addresses: [10.244.3.5], nodeName: n3, conditions: {ready: true}}
`
	snap := plantest.Snapshot(t, []byte(plantest.TwoRouters+service))
	message := func(members string) string {
		return Decide(Config{Node: "n1", Members: plantest.Members(members)}, snap).Reasons()[0].Message
	}
	for members, want := range map[string]string{
		"aaa": "endpoints: 10.244.2.5:8080, 10.244.3.5:8080",
		"aad": "endpoints: 10.244.2.5:8080; node n3 has not responded since 2026-05-04T03:02:02Z; " +
			"endpoints there are left out",
	} {
		if got := message(members); got != want {
			t.Errorf("%s: %q, want %q", members, got, want)
		}
	}
}
