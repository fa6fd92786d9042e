package watch

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// What is not needed is not asked for.
func TestAPIOptions(t *testing.T) {
	s := newAPIServer(t, ordinary()...)
	a := s.open(Options{NodeName: "n2", SkipEndpointSlices: true})
	s.set(clustertest.Node("n1"), clustertest.EndpointSlice("b1", "b", "10.0.0.9"), clustertest.Service("later"))
	snap := awaitAPI(t, a, func(s *cluster.Snapshot) string {
		return when(s.Services.Len() != 3, "the Service is not there")
	})
	if len(snap.Nodes) != 1 || snap.Nodes[0].Name != "n2" || snap.Services.At(0).Endpoints != nil {
		t.Errorf("watched too much:\n%s", render(snap))
	}
	if s.asked("stream endpointslices") != 0 {
		t.Error("asked for what is not needed")
	}
	if a := s.open(Options{Scope: cluster.Scope{ReadOnly: true}}); len(a.Snapshot().Namespaces) != 0 ||
		len(a.Snapshot().ServiceCIDRs) != 0 {
		t.Error("asked for what only a controller needs")
	}
	ours := clustertest.Service("ours")
	ours.Spec.LoadBalancerClass = new(cluster.Class)
	s.set(ours)
	if a := s.open(Options{Scope: cluster.Scope{Classes: cluster.Classes{Only: true}}}); a.Snapshot().Services.Len() !=
		1 || a.Snapshot().Services.At(0).Name.Name != "ours" {
		t.Errorf("took Services without a class: %v", a.Snapshot().Services)
	}
	theirs := clustertest.Service("theirs", "192.0.2.9")
	theirs.Spec.LoadBalancerClass = new("metallb.io/metallb")
	s.set(theirs)
	adopting := s.open(Options{Scope: cluster.Scope{Classes: cluster.Classes{Only: true,
		Also: []string{"metallb.io/metallb"}}}}).Snapshot()
	if got := adopting.Services.Len(); got != 2 ||
		adopting.Service(cluster.Name{Namespace: theirs.Namespace, Name: "theirs"}) == nil {
		t.Errorf("%d Services: did not adopt another class", got)
	}
}

// A change leaves every other part the very same pointer, and one that means
// nothing notifies no reader.
func TestAPISharing(t *testing.T) {
	s := newAPIServer(t, ordinary()...)
	a := s.open(Options{})
	before := a.Snapshot()
	select {
	case <-a.Changed():
	default:
	}
	again := clustertest.EndpointSlice("b1", "b", "10.0.0.2", "10.0.0.3")
	again.Annotations = map[string]string{"a": "b"}
	s.set(again, clustertest.Service("a", "192.0.2.1"),
		clustertest.EndpointSlice("other", "of-no-load-balancer", "10.9.9.9"))
	events := a.metrics.of(endpointSlices).events
	for testutil.ToFloat64(events) < 2 || testutil.ToFloat64(a.metrics.of(services).events) < 1 {
		time.Sleep(time.Millisecond)
	}
	if a.Snapshot() != before {
		t.Error("another snapshot of equal objects")
	}
	select {
	case <-a.Changed():
		t.Error("woken for nothing")
	default:
	}

	s.set(clustertest.EndpointSlice("b1", "b", "10.0.0.4"))
	after := awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
	if after.Services.At(0) != before.Services.At(0) || after.Services.At(1).Spec != before.Services.At(1).Spec ||
		after.Services.At(1).Endpoints == before.Services.At(1).Endpoints {
		t.Error("Services are not shared")
	}
	for what, same := range map[string]bool{
		"Nodes": clustertest.SameArray(before.Nodes, after.Nodes),
		"Pools": clustertest.SameArray(before.Pools, after.Pools), "Claims": before.Claims.Same(after.Claims),
		"Peers":       clustertest.SameArray(before.Peers, after.Peers),
		"Assignments": before.Assignments.Same(after.Assignments),
	} {
		if !same {
			t.Errorf("%s: another array", what)
		}
	}
}

// Nodes and what else only L2 needs are watched once addresses may go over L2, and not
// before; until all of it was read, the snapshot says that it is not.
func TestAPIWatchesForL2(t *testing.T) {
	status := &v1alpha1.SpeakerStatus{}
	status.Name, status.Status.Interfaces = "n1",
		[]v1alpha1.SpeakerInterface{{Name: "eth0", Prefixes: []string{"192.0.2.0/24"}}}
	advertisement := &v1alpha1.L2Advertisement{}
	advertisement.Name = "lan"
	for name, tt := range map[string]struct {
		options  Options
		watched  []string
		speakers int
	}{
		"speaker": {Options{NodeName: "n2", L2: L2Nodes}, []string{"nodes"}, 0},
		"controller": {Options{SkipEndpointSlices: true, L2: L2Speakers}, []string{"endpointslices", "speakerstatuses"},
			1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t, append(ordinary(), status, clustertest.Advertisement("lan", 32))...)
			a := s.open(tt.options)
			before := map[string]int{}
			for _, r := range tt.watched {
				before[r] = s.asked("stream " + r)
			}
			if snap := a.Snapshot(); snap.L2Ready || tt.options.NodeName != "" && len(snap.Nodes) > 1 ||
				len(snap.Speakers) != 0 {
				t.Fatalf("watched for L2 although there is a router:\n%s", render(snap))
			}
			s.set(advertisement)
			snap := awaitAPI(t, a, func(s *cluster.Snapshot) string { return when(!s.L2Ready, "not ready for L2") })
			if len(snap.Nodes) != 2 || len(snap.L2Advertisements) != 1 || len(snap.Speakers) != tt.speakers ||
				snap.Services.At(0).Endpoints == nil {
				t.Errorf("not all was read:\n%s", render(snap))
			}
			for _, r := range tt.watched {
				if n := s.asked("stream "+r) - before[r]; n != 1 {
					t.Errorf("asked for %s %d times more, want once", r, n)
				}
			}
			// Who starts then has all from the beginning, or, a controller, soon.
			again := s.open(tt.options)
			if ready := again.Snapshot().L2Ready; !ready && tt.options.L2 == L2Nodes {
				t.Error("a speaker goes on before it knows the candidates")
			}
			awaitAPI(t, again, func(s *cluster.Snapshot) string {
				return when(!s.L2Ready || len(s.Nodes) != 2, "not ready for L2")
			})
		})
	}
}

// A speaker watches all Nodes, too, as soon as addresses are aggregated: no aggregate may
// contain a Node's address.
func TestAPIWatchesForAggregates(t *testing.T) {
	s := newAPIServer(t, append(ordinary(), clustertest.Advertisement("lan", 32))...)
	a := s.open(Options{NodeName: "n2", L2: L2Nodes})
	if snap := a.Snapshot(); snap.AllNodes || len(snap.Nodes) != 1 {
		t.Fatalf("all Nodes are watched without need:\n%s", render(snap))
	}
	s.set(clustertest.Advertisement("lan", 24))
	snap := awaitAPI(t, a, func(s *cluster.Snapshot) string { return when(!s.AllNodes, "not all Nodes") })
	if len(snap.Nodes) != 2 {
		t.Errorf("not all Nodes were read:\n%s", render(snap))
	}
	if snap := s.open(Options{NodeName: "n2", L2: L2Nodes}).Snapshot(); !snap.AllNodes || len(snap.Nodes) != 2 {
		t.Errorf("a speaker that starts announces before it knows the Nodes:\n%s", render(snap))
	}
}

// A pool with announce L2 is enough, and a BGPPeer does not change that.
func TestAPIWatchesForL2Pool(t *testing.T) {
	pool := clustertest.Pool("lan", "192.0.2.0/24")
	pool.Spec.Announce = v1alpha1.AnnounceL2
	s := newAPIServer(t, pool, clustertest.Node("n1"), clustertest.Node("n2"))
	a := s.open(Options{NodeName: "n2", L2: L2Nodes})
	if snap := a.Snapshot(); !snap.L2Ready || len(snap.Nodes) != 2 {
		t.Errorf("the candidates are not known:\n%s", render(snap))
	}
	s.set(clustertest.Peer("tor", "10.0.0.254"))
	snap := awaitAPI(t, a, func(s *cluster.Snapshot) string { return when(len(s.Peers) == 0, "no peer") })
	if !snap.L2Ready || len(snap.Nodes) != 2 {
		t.Errorf("a watch has ended:\n%s", render(snap))
	}
}
