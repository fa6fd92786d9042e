package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// secondAddr is another address of a node on the segment.
func secondAddr(node string) netip.Addr { return netip.MustParseAddr("198.51.100.2" + node[1:]) }

// startCalico starts BIRD on a node, with a session with the router. sessions are added to its
// configuration.
func startCalico(t *testing.T, l *Lab, node, sessions string) {
	t.Helper()
	c, err := l.StartCalicoBIRD(node, fmt.Sprintf(`protocol bgp tor1 from peers {
	source address %s;
	neighbor 198.51.100.1 as 64496;
	ipv4 { import all; export filter { if source = RTS_STATIC || proto = "fanfare" then accept; reject; }; next hop self; };
}
%s`, NodeAddr(node, ClientAddr), sessions))
	await(t, err)
	await(t, c.AwaitSession(t.Context(), "tor1"))
}

// calicoRouter is the router's configuration: a session with BIRD of each node, and one with each
// node's second address.
func calicoRouter() string {
	var b strings.Builder
	b.WriteString("router bgp 64496\n")
	for _, n := range NodeNames {
		fmt.Fprintf(&b, " no neighbor %[1]s\n neighbor %[1]s remote-as %[2]d\n neighbor %[3]s peer-group nodes\n",
			NodeAddr(n, ClientAddr), CalicoAS, secondAddr(n))
	}
	return b.String()
}

// peers writes a BGPPeer for each node, of which spec is the part that differs.
func peers(t *testing.T, l *Lab, spec func(node string) string) {
	t.Helper()
	var objects []string
	for _, n := range NodeNames {
		objects = append(objects, fmt.Sprintf(`apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: router-%[1]s}
spec:
  nodeSelector: {matchLabels: {kubernetes.io/hostname: %[1]s}}
  myASN: 64497
  holdTime: 3s
  keepaliveTime: 1s
  connectTime: 1s
  gracefulRestart: {enabled: true, restartTime: 30s}
%[2]s`, n, spec(n)))
	}
	await(t, l.Cluster.PutText("tor1", strings.Join(objects, "---\n")))
}

// Two BGP speakers of a node have sessions with one router: Calico's BIRD from the node's address,
// where it holds port 179, and Fanfare from another one.
func TestNeighbourCalicoSecondAddress(t *testing.T) {
	l := laboratoryOfOwn(t, "c", func(o *Options) { o.RouterConfig = calicoRouter() })
	for _, n := range NodeNames {
		run(t, l, n, "ip", "addr", "add", secondAddr(n).String()+"/24", "dev", "eth1")
		startCalico(t, l, n, "")
	}
	peers(t, l, func(n string) string {
		return fmt.Sprintf("  peerAddress: 198.51.100.1\n  peerASN: 64496\n  sourceAddress: %s\n", secondAddr(n))
	})
	expectBothAnnounce(t, l, func(n string) string { return secondAddr(n).String() })
}

// expectBothAnnounce starts the speakers, and checks that the router has the addresses of Services
// from Fanfare and pods' blocks from Calico, that a restart of the one does not touch the routes of
// the other, and that a withdrawal arrives within a second.
func expectBothAnnounce(t *testing.T, l *Lab, nextHop func(node string) string) {
	t.Helper()
	ctx := t.Context()
	for _, n := range NodeNames {
		await(t, l.Speaker(n).Start())
	}
	vip := serve(t, l, Service{Name: "both", Policy: corev1.ServiceExternalTrafficPolicyLocal,
		Endpoints: At("p11", "p21")}, nextHop("n1"), nextHop("n2"))
	for _, n := range NodeNames {
		await(t, l.Router.AwaitVia(ctx, Settle, CalicoBlock(n), n))
	}
	began := time.Now()
	load := l.Client.StartLoad(ctx, port(vip, 80))
	sessions := func() int { return strings.Count(l.Speaker("n1").Log(), "session up") }
	before := sessions()
	await(t, errors.Join(l.Speaker("n1").Kill(), l.Speaker("n1").Start()))
	await(t, Await(ctx, Settle, "the session of the new speaker", func() error {
		if sessions() == before {
			return errors.New(l.Speaker("n1").Log())
		}
		return nil
	}))
	for _, n := range NodeNames {
		if changes := l.Observer.RouteChanges(vip, began, time.Now()); len(changes) > 0 {
			t.Errorf("the route changed: %v", changes)
		}
		if via, err := l.Router.Via(CalicoBlock(n)); err != nil || !slices.Equal(via, []string{n}) {
			t.Errorf("%s is via %v, %v: want %s", CalicoBlock(n), via, err, n)
		}
	}
	expectNoLoss(t, l, load, began)

	await(t, l.Cluster.Put(Service{
		Name: "both", Policy: corev1.ServiceExternalTrafficPolicyLocal, Endpoints: At("p21"),
	}))
	await(t, l.Router.AwaitNextHops(ctx, l.within(time.Second), vip, nextHop("n2")))
}

// Fanfare announces to BIRD of its own node, which passes the routes on: the router has one session
// with each node, as without Fanfare.
func TestNeighbourCalicoOwnBIRD(t *testing.T) {
	l := laboratoryOfOwn(t, "d", func(o *Options) { o.RouterConfig = calicoRouter() })
	for _, n := range NodeNames {
		startCalico(t, l, n, `protocol bgp fanfare from peers {
	local 127.0.0.1 as 64512;
	neighbor 127.0.0.2 as 64497;
	multihop;
	passive;
	ipv4 { import all; export none; gateway recursive; };
}
`)
	}
	peers(t, l, func(n string) string {
		return "  peerAddress: 127.0.0.1\n  peerASN: 64512\n  sourceAddress: 127.0.0.2\n  ebgpMultihopTTL: 2\n"
	})
	expectBothAnnounce(t, l, func(n string) string { return n })
}
