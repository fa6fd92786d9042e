package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// roll are members by a letter each: a is alive, d dead, x dead and absent from the API
// server, l has said farewell. They are called n1, n2 and so on.
func roll(states string) *Members {
	m := &Members{}
	for i, s := range states {
		m.Nodes = append(m.Nodes, Member{Node: fmt.Sprintf("n%d", i+1), Alive: s == 'a', Absent: s == 'x', Left: s == 'l', Since: time.Date(2026, 5, 4, 3, 2, i, 0, time.UTC)})
	}
	return m
}

// Endpoints of dead nodes are left out, as long as fewer than half are dead; of two
// halves the one that the API server misses, too.
func TestSilentNodes(t *testing.T) {
	for _, tt := range []struct{ members, want string }{
		{"", ""},
		{"a", ""},
		{"d", ""}, // itself
		{"ad", ""},
		{"aad", "n3"},
		{"aal", ""},
		{"ald", "n3"},
		{"add", ""},
		{"daa", ""},
		{"dda", "n2"}, // one of three: to itself it is alive
		{"addaa", "n2 n3"},
		{"addda", ""},
		{"aadd", ""},
		{"aaddl", "n3 n4"},
		{"ax", "n2"},
		{"xa", ""}, // itself
		{"aadx", "n4"},
		{"aaxx", "n3 n4"},
		{"axx", ""},
		{"aaax", "n4"},
		{"lx", "n2"},
	} {
		var got []string
		silent := roll(tt.members).silent("n1")
		for i := range 9 {
			if name := fmt.Sprintf("n%d", i); !silent[name].IsZero() {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %s are silent, want %s", tt.members, got, tt.want)
		}
	}
	if (*Members)(nil).silent("n1") != nil {
		t.Error("without members somebody is silent")
	}
}

// What becomes of each endpoint, and what is said of it.
func TestEndpointsOfSilentNodes(t *testing.T) {
	const since = "node n3 has not been heard of since 2026-05-04T03:02:02Z; "
	const out, kept = since + "what is there is left out", since + "what is there is used all the same, since there is nothing else"
	for _, tt := range []struct {
		members, endpoints         string // node and state: r ready, t terminating and serving, x neither
		usable, near, local, drain string
		missed                     string
	}{
		{"aaa", "1r 2r 3r", "1 2 3", "1 2 3", "1", "", ""},
		{"aad", "1r 2r 3r", "1 2", "1 2", "1", "3", out},
		{"aad", "2r 3r", "2", "2", "", "3", out},
		{"aad", "3r", "3", "3", "", "", kept},
		{"aad", "2t 3r", "2", "2", "", "3", out},  // who terminates still answers
		{"aad", "2x 3r", "3", "3", "", "2", kept}, // who does not serve does not
		{"aad", "2r 3t", "2", "2", "", "3", ""},   // it would not be used anyway
		{"aad", "1t 2r 3r", "2", "2", "1", "3", out},
		{"add", "1r 2r 3r", "1 2 3", "1 2 3", "1", "", ""},
		{"aal", "1r 3r", "1 3", "1 3", "1", "", ""},
		{"ald", "1r 3r", "1", "1", "1", "3", out},
		{"aax", "1r 3r", "1", "1", "1", "3", out},
	} {
		c := Config{Node: "n1", Members: roll(tt.members)}
		v := look(c, &cluster.Snapshot{Nodes: []*cluster.Node{{Name: "n1"}}})
		s := cluster.Service{Spec: &cluster.Spec{ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}, Endpoints: &cluster.Endpoints{}}
		for word := range strings.FieldsSeq(tt.endpoints) {
			s.Endpoints.List = append(s.Endpoints.List, cluster.Endpoint{Protocol: corev1.ProtocolTCP, Node: "n" + word[:1],
				Addr: netip.MustParseAddrPort("10.244." + word[:1] + ".1:80"), Ready: word[1] == 'r', Serving: word[1] != 'x', Terminating: word[1] == 't'})
		}
		e := v.sort(s, netip.MustParseAddr("192.0.2.1"))
		of := func(list []cluster.Endpoint) string {
			var names []string
			for _, e := range list {
				names = append(names, e.Node[1:])
			}
			return strings.Join(names, " ")
		}
		got := []string{of(e[0].usable), of(e[0].near), of(e[0].local), of(e[0].rest), e[0].missed}
		want := []string{tt.usable, tt.near, tt.local, tt.drain, tt.missed}
		if !slices.Equal(got, want) {
			t.Errorf("%s, %s:\ngot  %q\nwant %q", tt.members, tt.endpoints, got, want)
		}
	}
}

// The reason of a Service tells people which node is missed.
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
	snap := snapshotOf(t, []byte(eventWorld+service))
	said := func(members string) string {
		return Decide(Config{Node: "n1", Members: roll(members)}, snap).Reasons()[0].Message
	}
	for members, want := range map[string]string{
		"aaa": "endpoints: 10.244.2.5:8080, 10.244.3.5:8080",
		"aad": "endpoints: 10.244.2.5:8080; node n3 has not been heard of since 2026-05-04T03:02:02Z; what is there is left out",
	} {
		if got := said(members); got != want {
			t.Errorf("%s: %q, want %q", members, got, want)
		}
	}
}

// Of all who miss a node one tells people, once, and that it is back.
func TestMembersAreTold(t *testing.T) {
	for _, self := range []string{"n1", "n2"} {
		p := newPlay(t, told{})
		see := func(states string) {
			p.desired = Decide(Config{Node: self, Members: roll(states)}, snapshotOf(t, []byte(eventWorld)))
		}
		tells := func(when string, want ...string) {
			t.Helper()
			if self != "n1" { // the first one alive tells
				want = nil
			}
			p.tells(when, want...)
		}
		tells("without members")
		see("aaa")
		tells("all are there")
		see("aad")
		tells("one is silent", "Warning NodeSilent Node/n3 (): node n1 has not heard of node n3 since 2026-05-04T03:02:02Z; what is there is left out")
		see("aal")
		tells("it is back", "Normal NodeHeard Node/n3 (): node n1 no longer misses node n3")
	}
}

// What becomes of the endpoints of a node that is silent may be decided, and change, later:
// that is told, too.
func TestWhatIsLeftOutIsTold(t *testing.T) {
	p := newPlay(t, told{})
	see := func(states string, absent ...string) {
		m := roll(states)
		for i := range m.Nodes {
			m.Nodes[i].Absent = slices.Contains(absent, m.Nodes[i].Node)
		}
		p.desired = Decide(Config{Node: "n1", Members: m}, snapshotOf(t, []byte(eventWorld)))
	}
	see("ad")
	p.tells("half are silent", "Warning NodeSilent Node/n2 (): node n1 has not heard of node n2 since 2026-05-04T03:02:01Z; what is there is used for now, since half of the nodes or more are not heard of")
	see("ad", "n2")
	p.tells("the API server does not hear it either", "Warning EndpointsLeftOut Node/n2 (): node n1 leaves out what is on node n2, which is not heard of: its Lease is not renewed either, while that of this node is")
	see("ad", "n2")
	p.tells("nothing more")
	see("aa")
	p.tells("it is back", "Normal NodeHeard Node/n2 (): node n1 no longer misses node n2")
	see("aad")
	p.tells("one of three", "Warning NodeSilent Node/n3 (): node n1 has not heard of node n3 since 2026-05-04T03:02:02Z; what is there is left out")
	see("add")
	p.tells("two of three",
		"Warning NodeSilent Node/n2 (): node n1 has not heard of node n2 since 2026-05-04T03:02:01Z; what is there is used for now, since half of the nodes or more are not heard of",
		"Warning EndpointsUsed Node/n3 (): node n1 uses what is on node n3 again, though it is not heard of: half of the nodes or more are not, so this one may be cut off")
	see("aad")
	p.tells("one of three again",
		"Warning EndpointsLeftOut Node/n3 (): node n1 leaves out what is on node n3, which is not heard of: more than half of the nodes are heard of again",
		"Normal NodeHeard Node/n2 (): node n1 no longer misses node n2")
	see("dad")
	p.tells("another one tells")
}
