package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// problemText is the problems of a snapshot in lines.
func problemText(s *Snapshot) string {
	var lines []string
	for _, p := range s.Problems {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// An advertisement for all pools has nothing to announce while none is Advertised.
func TestAdvertisementAppliesToNone(t *testing.T) {
	pool, other := clustertest.Pool("lan", "192.0.2.0/24"), clustertest.Pool("wan", "198.51.100.0/24")
	b := NewBuilder()
	b.Set(&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}}, "")
	if got := problemText(b.Snapshot()); got != "" {
		t.Errorf("without any pool: %s", got)
	}
	b.Set(pool, "")
	b.Set(other, "")
	want := "L2Advertisement all: spec.pools: applies to no AddressPool: none has spec.announce Advertised; set it " +
		"in one, or delete the advertisement"
	if got := problemText(b.Snapshot()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	other.Spec.Announce = v1alpha1.AnnounceAdvertised
	b.Set(other, "")
	if got := problemText(b.Snapshot()); got != "" {
		t.Errorf("with a pool that it applies to: %s", got)
	}
}

// A selector is judged when all Nodes are known, and again when their labels change. A
// speaker of a cluster that only speaks BGP knows its own Node alone.
func TestSelectorsOfUnknownNodes(t *testing.T) {
	node := func(name, rack string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": rack}}}
	}
	b := NewBuilder()
	b.Limit(Scope{SomeNodes: true})
	peer := clustertest.Peer("tor", "10.0.0.254")
	peer.Spec.NodeSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"rack": "b"}}
	b.Set(peer, "")
	b.Set(node("n1", "a"), "")
	if got := problemText(b.Snapshot()); got != "" {
		t.Errorf("with one Node of several: %s", got)
	}
	b.ReadL2()
	want := `BGPPeer tor: spec.nodeSelector "rack=b": matches no Node; set it to labels that a Node has`
	if got := problemText(b.Snapshot()); got != want {
		t.Errorf("with all Nodes: got %s\nwant %s", got, want)
	}
	b.Set(node("n2", "b"), "")
	if got := problemText(b.Snapshot()); got != "" {
		t.Errorf("with a Node that it matches: %s", got)
	}
	b.Set(node("n2", "c"), "")
	if got := problemText(b.Snapshot()); got != want {
		t.Errorf("when its label has changed: got %s\nwant %s", got, want)
	}
	b.Delete(Key{"Node", Name{Name: "n1"}})
	b.Delete(Key{"Node", Name{Name: "n2"}})
	if got := problemText(b.Snapshot()); got != "" {
		t.Errorf("without any Node: %s", got)
	}
}

// Without a watch of advertisements, no Problem says that none selects a pool.
func TestPoolWithoutWatchedAdvertisements(t *testing.T) {
	pool := clustertest.Pool("lan", "192.0.2.0/24")
	pool.Spec.Announce = v1alpha1.AnnounceAdvertised
	b := NewBuilder()
	b.Limit(Scope{NoAdvertisements: true})
	b.Set(pool, "")
	if got := problemText(b.Snapshot()); got != "" {
		t.Error(got)
	}
}

// Versions name an object also when it does not parse, and the version that is not used.
func TestVersions(t *testing.T) {
	b := NewBuilder()
	set := func(addr string, generation int64) {
		pool := clustertest.Pool("lan", addr)
		pool.UID, pool.Generation = "u", generation
		b.Set(pool, "")
	}
	check := func(what string, want ...Version) {
		t.Helper()
		got := b.Snapshot().Versions
		if len(got) != len(want) || len(want) == 1 && got[0] != want[0] {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	set("nonsense", 1)
	check("broken", Version{"AddressPool", "lan", "u", 1})
	set("192.0.2.0/24", 2)
	check("good", Version{"AddressPool", "lan", "u", 2})
	set("nonsense", 3)
	check("broken again", Version{"AddressPool", "lan", "u", 3})
	if s := b.Snapshot(); len(s.Pools) != 1 || !strings.HasSuffix(problemText(s), StaysInUse) {
		t.Errorf("the version before is not in use: %s", problemText(s))
	}
	b.Delete(Key{"AddressPool", Name{Name: "lan"}})
	check("deleted")
}
