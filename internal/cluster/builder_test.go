package cluster

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// One change must leave every other part the very same pointer: that is how the
// speaker finds out what to do.
func TestSharing(t *testing.T) {
	b := NewBuilder()
	for _, o := range []runtime.Object{
		clustertest.Service("a", "192.0.2.1"), clustertest.Service("b"), clustertest.Service("c"),
		clustertest.EndpointSlice("a1", "a", "10.0.0.1"), clustertest.EndpointSlice("b1", "b", "10.0.0.2"),
		clustertest.EndpointSlice("b2", "b", "10.0.0.3"), clustertest.Node("n1"), clustertest.Node("n2"),
		clustertest.Pool("lan", "192.0.2.0/24"), clustertest.Peer("tor", "10.0.0.254"),
	} {
		b.Set(o, "")
	}
	before := b.Snapshot()

	// What does not change the meaning of an object changes nothing at all.
	again := clustertest.EndpointSlice("b1", "b", "10.0.0.2")
	again.ResourceVersion, again.Annotations = "2", map[string]string{"a": "b"}
	b.Set(again, "")
	b.Set(clustertest.Pool("lan", "192.0.2.0/24"), "")
	b.Set(clustertest.Node("n1"), "")
	if b.Snapshot() != before {
		t.Error("another snapshot of equal objects")
	}

	b.Set(clustertest.EndpointSlice("b1", "b", "10.0.0.4"), "")
	after := b.Snapshot()
	if after == before {
		t.Fatal("the same snapshot although an endpoint changed")
	}
	for i, s := range after.Services.Slice() {
		old := before.Services.At(i)
		if s.Spec != old.Spec {
			t.Errorf("%s: another Spec", s.Name)
		}
		if changed := s.Endpoints != old.Endpoints; changed != (s.Name.Name == "b") {
			t.Errorf("%s: other Endpoints: %v", s.Name, changed)
		}
	}
	for what, same := range map[string]bool{
		"Nodes":       clustertest.SameArray(before.Nodes, after.Nodes),
		"Pools":       clustertest.SameArray(before.Pools, after.Pools),
		"Peers":       clustertest.SameArray(before.Peers, after.Peers),
		"Assignments": before.Assignments.Same(after.Assignments),
	} {
		if !same {
			t.Errorf("%s: another array", what)
		}
	}
	if before.Services.At(1).Endpoints.Subsets[0].List[0].Addr.String() != "10.0.0.2" {
		t.Error("the snapshot before was written to")
	}
}

// Whatever happened, and in whatever order, the snapshot is that of the objects
// which are there.
func TestIncrementalIsWhole(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		b := NewBuilder()
		objects := map[Key]runtime.Object{}
		for range 60 {
			o := clustertest.Random(rnd)
			key, _ := KeyOf(o)
			if objects[key] != nil && rnd.IntN(3) == 0 {
				delete(objects, key)
				b.Delete(key)
			} else {
				objects[key] = o
				b.Set(o, "")
			}
			if rnd.IntN(3) == 0 {
				b.Snapshot() // Change by change, or several at once.
			}
		}
		var all []runtime.Object
		for _, o := range objects {
			all = append(all, o) // in any order
		}
		if d := gocmp.Diff(Parse(all...), b.Snapshot(), clustertest.Comparers...); d != "" {
			t.Fatalf("seed %d: -from nothing +step by step:\n%s", seed, d)
		}
	}
}

// A mistake does not take away what was there, and mending it takes effect.
func TestMistakeKeepsTheVersionBefore(t *testing.T) {
	b := NewBuilder()
	b.Set(clustertest.Peer("tor", "10.0.0.254"), "")
	b.Set(clustertest.Pool("lan", "192.0.2.0/24"), "")
	good := b.Snapshot()
	b.Set(clustertest.Peer("tor", "10.0.0.256"), "")
	b.Set(clustertest.Pool("lan", "192.0.2.0/24", "192.0.3.0/33"), "")
	s := b.Snapshot()
	if s.Peers[0] != good.Peers[0] || s.Pools[0] != good.Pools[0] {
		t.Errorf("a mistake replaced a good version:\n%+v", s)
	}
	if len(s.Problems) != 2 || !slices.ContainsFunc(s.Problems,
		func(p Problem) bool { return p.Field == "spec.addresses[1]" }) {
		t.Errorf("problems: %v", s.Problems)
	}
	b.Set(clustertest.Peer("tor", "10.0.0.253"), "")
	b.Set(clustertest.Pool("lan", "192.0.2.0/24", "192.0.3.0/24"), "")
	s = b.Snapshot()
	if s.Peers[0].PeerAddress.String() != "10.0.0.253" || len(s.Pools[0].Ranges) != 2 || len(s.Problems) != 0 {
		t.Errorf("not mended:\n%+v", s)
	}
	b.Set(clustertest.Peer("tor", ""), "")
	b.Delete(Key{"BGPPeer", Name{Name: "tor"}})
	if s = b.Snapshot(); len(s.Peers) != 0 || len(s.Problems) != 0 {
		t.Errorf("not deleted:\n%+v", s)
	}
}

// A change of Nodes replaces only the pools that contain the Node's addresses: a new pool
// makes every reader check all addresses again.
func TestPoolsStayTheSame(t *testing.T) {
	b := NewBuilder()
	for _, o := range []runtime.Object{clustertest.Pool("lan", "192.0.2.0/24"),
		clustertest.Pool("dmz", "198.51.100.0/24"), clustertest.Node("n1"), clustertest.Peer("tor", "10.0.0.254")} {
		b.Set(o, "")
	}
	was := b.Snapshot()
	o := clustertest.Node("n1")
	o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	b.Set(o, "")
	b.Set(clustertest.Peer("tor", "10.0.0.253"), "")
	is := b.Snapshot()
	if !clustertest.SameArray(was.Pools, is.Pools) || is == was {
		t.Errorf("other pools, although nothing has changed in them:\n%+v", is)
	}
	o = o.DeepCopy()
	o.Status.Addresses[0].Address = "192.0.2.7"
	b.Set(o, "")
	is = b.Snapshot()
	if is.Pools[0] != was.Pools[0] || is.Pools[1] == was.Pools[1] ||
		is.Pools[1].OccupiedBy(netip.MustParseAddr("192.0.2.7")) != "Node n1" || len(is.Problems) != 1 {
		t.Errorf("a node has an address of lan:\n%+v", is)
	}
	b.Delete(Key{"Node", Name{Name: "n1"}})
	if is = b.Snapshot(); len(is.Pools[1].Occupied) != 0 || len(is.Problems) != 0 || len(was.Pools[1].Occupied) != 0 {
		t.Errorf("the node is gone:\n%+v", is)
	}
}

func TestLeavingTaints(t *testing.T) {
	for _, taint := range leavingTaints {
		n := clustertest.Node("n1")
		n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: taint}}
		if got, _ := parseNode(n); got.Leaving != taint {
			t.Errorf("%s: leaving %q", taint, got.Leaving)
		}
	}
}
