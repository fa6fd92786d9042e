package watch

import (
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// strictCases are objects that a misspelt or repeated field would open to all, and what it should have been.
var strictCases = map[string]struct{ object, right, wrong, says string }{
	"pool of some namespaces": {
		"kind: AddressPool\napiVersion: fanfare.io/v1alpha1\nmetadata: {name: x}\nspec: {announce: BGP, addresses: " +
			"[192.0.2.0/28], FIELD}\n",
		"namespaceSelector: {matchLabels: {a: b}}", "namespaceSelectors: [{matchLabels: {a: b}}]",
		"did you mean namespaceSelector?"},
	"router of some nodes": {
		"kind: BGPPeer\napiVersion: fanfare.io/v1alpha1\nmetadata: {name: x}\nspec: {peerAddress: 192.0.2.1, " +
			"peerASN: 1, myASN: 2, FIELD}\n",
		"nodeSelector: {matchLabels: {a: b}}", "nodeSelectors: [{matchLabels: {a: b}}]", "did you mean nodeSelector?"},
	"router with a password": {
		"kind: BGPPeer\napiVersion: fanfare.io/v1alpha1\nmetadata: {name: x}\nspec: {peerAddress: 192.0.2.1, " +
			"peerASN: 1, myASN: 2, FIELD}\n",
		"passwordSecretRef: {name: tor1}", "password: secret", "did you mean passwordSecretRef?"},
	"advertisement to some routers": {
		"kind: BGPAdvertisement\napiVersion: fanfare.io/v1alpha1\nmetadata: {name: x}\nspec: {FIELD}\n",
		"peers: [tor1]", "peer: [tor1]", "did you mean peers?"},
	"advertisement on some interfaces": {
		"kind: L2Advertisement\napiVersion: fanfare.io/v1alpha1\nmetadata: {name: x}\nspec: {FIELD}\n",
		"interfaces: [eth0]", "interface: eth0", "did you mean interfaces?"},
	"Service of some clients": {
		"kind: Service\napiVersion: v1\nmetadata: {name: x}\nspec: {type: LoadBalancer, ports: [{port: 80}], FIELD}\n",
		"loadBalancerSourceRanges: [10.0.0.0/8]", "loadbalancerSourceRanges: [10.0.0.0/8]",
		"did you mean loadBalancerSourceRanges?"},
	"a key twice": {
		"kind: Service\napiVersion: v1\nmetadata: {name: x}\nspec: {type: LoadBalancer, ports: [{port: 80}], " +
			"loadBalancerSourceRanges: [10.0.0.0/8], FIELD}\n",
		"loadBalancerClass: fanfare.io/lb", "loadBalancerSourceRanges: [0.0.0.0/0]", "remove one of the two"},
	"a key twice in a list": {
		"kind: List\napiVersion: v1\nitems:\n- kind: Service\n  apiVersion: v1\n  metadata: {name: x}\n  spec: " +
			"{type: LoadBalancer, ports: [{port: 80}], loadBalancerSourceRanges: [10.0.0.0/8], FIELD}\n",
		"loadBalancerClass: fanfare.io/lb", "loadBalancerSourceRanges: [0.0.0.0/0]", "remove one of the two"},
}

// withoutProblems is what a snapshot has, in words.
func withoutProblems(s *cluster.Snapshot) string {
	c := *s
	c.Problems = nil
	return render(&c)
}

// An object with a field that does not exist, or one that is set twice, is not used: its last valid version is, or
// none, in the running process. After a restart, the configuration of the process before has the last valid version.
func TestUnknownFieldRefusesTheObject(t *testing.T) {
	for what, c := range strictCases {
		t.Run(what, func(t *testing.T) {
			right, wrong := strings.Replace(c.object, "FIELD", c.right, 1),
				strings.Replace(c.object, "FIELD", c.wrong, 1)
			f := newFolder(t)
			f.write("a.yaml", wrong)
			f.open()
			if s := f.Snapshot(); withoutProblems(s) != "" || !says(s, c.says+"; the object is not used") {
				t.Errorf("at the start:\n%s", render(s))
			}
			f.put("a.yaml", right)
			good := f.until(func(s *cluster.Snapshot) bool { return withoutProblems(s) != "" })
			f.put("a.yaml", wrong)
			s := f.until(func(s *cluster.Snapshot) bool { return says(s, c.says+cluster.StaysInUse) })
			if withoutProblems(s) != withoutProblems(good) {
				t.Errorf("the last valid version does not stay:\n%s", render(s))
			}

			again, err := OpenFiles(t.Context(), f.dir, s.Configuration, quiet)
			must(t, err)
			want, configures := withoutProblems(good), !strings.Contains(c.object, "kind: Service")
			if !configures {
				want = ""
			}
			if got := withoutProblems(again.Snapshot()); got != want {
				t.Errorf("after a restart:\n%s", render(again.Snapshot()))
			}
			f.Files = again
			f.put("a.yaml", strings.Replace(right, "name: x", "name: other", 1))
			f.until(func(s *cluster.Snapshot) bool {
				return strings.Contains(withoutProblems(s), " other ") ||
					strings.Contains(withoutProblems(s), "default/other ")
			})
			f.put("a.yaml", wrong)
			if s := f.until(func(s *cluster.Snapshot) bool {
				return says(s, c.says+"; the object is not used")
			}); withoutProblems(s) != "" {
				t.Errorf("a deleted object is back with its mistake:\n%s", render(s))
			}
		})
	}
}

func says(s *cluster.Snapshot, text string) bool {
	for _, p := range s.Problems {
		if strings.HasSuffix(p.Message, text) {
			return true
		}
	}
	return false
}

// until waits for a snapshot.
func (f *folder) until(is func(*cluster.Snapshot) bool) *cluster.Snapshot {
	f.Helper()
	timeout := time.After(time.Minute)
	for s := f.Snapshot(); ; s = f.Snapshot() {
		if is(s) {
			return s
		}
		select {
		case <-f.Changed():
		case <-timeout:
			f.Fatalf("no such snapshot:\n%s", render(f.Snapshot()))
		}
	}
}

// What a newer cluster writes into the status of its objects makes none of them unusable.
func TestUnknownFieldOfStatus(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", "kind: Node\napiVersion: v1\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, "+
		"address: 10.0.0.1, zone: a}], newer: {a: b}}\n")
	f.open()
	s := f.Snapshot()
	if len(s.Nodes) != 1 || len(s.Problems) != 2 || !s.Problems[0].Warning || !s.Problems[1].Warning {
		t.Errorf("got\n%s", render(s))
	}
}
