package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A field is a store, and nodes, on which a controller spreads the addresses of Services.
type field struct {
	*store
	t     *testing.T
	c     *controller
	nodes map[string]*corev1.Node
	other []runtime.Object
	mute  map[string]bool // nodes whose speakers have said nothing yet
	moves int             // of claims from one node to another

	builder *cluster.Builder // of what the store's log has had until heard
	heard   int
	last    []runtime.Object // the nodes and others that it knows
}

func newField(t *testing.T, services int, nodes ...string) *field {
	f := &field{store: newStore(t), t: t, nodes: map[string]*corev1.Node{}, builder: cluster.NewBuilder()}
	w := &world{store: f.store}
	w.setPool("lan", services)
	for i := range services {
		name := fmt.Sprintf("s%02d", i)
		f.put(servicesPath+name, nil, from(t, w.service(name)))
	}
	for _, n := range nodes {
		f.add(n)
	}
	f.wrote = func(path string, before, after object) {
		if before != nil && after != nil && strings.HasPrefix(path, claimsPath) {
			was, is := into[v1alpha1.AddressClaim](t, before), into[v1alpha1.AddressClaim](t, after)
			if was.Spec.Node != is.Spec.Node {
				f.moves++
			}
		}
	}
	c, err := newController(options(f.store))
	if err != nil {
		t.Fatal(err)
	}
	f.c = c
	return f
}

// announce changes how the pool is announced.
func (f *field) announce(a v1alpha1.Announce) {
	f.editPool(func(s *v1alpha1.AddressPoolSpec) { s.Announce = a })
}

func (f *field) editPool(edit func(*v1alpha1.AddressPoolSpec)) {
	const path = "/apis/fanfare.io/v1alpha1/addresspools/lan"
	pool := into[v1alpha1.AddressPool](f.t, f.objects[path])
	edit(&pool.Spec)
	f.put(path, f.objects[path], from(f.t, &pool))
}

func (f *field) add(node string) {
	f.nodes[node] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"name": node}}}
}

func (f *field) ready(node string, s corev1.ConditionStatus) {
	f.nodes[node] = f.nodes[node].DeepCopy()
	f.nodes[node].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: s}}
}

// run lets the controller work for a time, a pass each second, and returns how many
// claims it moved.
func (f *field) run(d time.Duration) (moves int) {
	before := f.moves
	for range int(d / time.Second) {
		f.c.source = f
		if _, errs := f.c.pass(f.t.Context()); len(errs) != 0 {
			f.t.Fatal(errs)
		}
		time.Sleep(time.Second)
	}
	return f.moves - before
}

// Snapshot makes a field a Source.
func (f *field) Snapshot() *cluster.Snapshot {
	w := &world{store: f.store}
	for ; f.heard < len(f.log); f.heard++ {
		w.apply(f.builder, f.log[f.heard])
	}
	for _, o := range f.last {
		if key, _ := cluster.KeyOf(o); key.Kind != "Node" || f.nodes[key.Name.Name] == nil {
			f.builder.Delete(key)
		}
	}
	f.last = slices.Clone(f.other)
	for name, n := range f.nodes {
		f.last = append(f.last, n)
		if !f.mute[name] {
			f.builder.Set(speakerStatus(name, "192.0.2.0/24"), "") // It outlives its node.
		}
	}
	for _, o := range f.last {
		f.builder.Set(o, "")
	}
	return f.builder.Snapshot()
}

func (f *field) Changed() <-chan struct{} { return nil }

// spread is how many addresses each node is preferred for.
func (f *field) spread() string {
	load := map[string]int{}
	for path, o := range f.objects {
		if strings.HasPrefix(path, claimsPath) {
			load[into[v1alpha1.AddressClaim](f.t, o).Spec.Node]++
		}
	}
	return strings.TrimPrefix(fmt.Sprint(load), "map")
}

// Addresses are spread evenly. A removed node loses its own addresses, and no other node
// does; a new node gets its share only; a change that does not last moves nothing.
func TestOwnersSpreadEvenly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newField(t, 30, "n1", "n2", "n3")
		step := func(what string, d time.Duration, moves int, want string) {
			t.Helper()
			if n := f.run(d); n != moves || f.spread() != want {
				t.Fatalf("%s: %d moves to %s, want %d to %s", what, n, f.spread(), moves, want)
			}
		}
		step("first", 3*time.Second, 30, "[n1:10 n2:10 n3:10]")
		version := f.version
		step("at rest", time.Minute, 0, "[n1:10 n2:10 n3:10]")
		if f.version != version {
			t.Errorf("%d writes while nothing changed", f.version-version)
		}
		f.ready("n3", corev1.ConditionUnknown)
		step("silent, for a moment", 20*time.Second, 0, "[n1:10 n2:10 n3:10]")
		f.ready("n3", corev1.ConditionTrue)
		step("back", time.Minute, 0, "[n1:10 n2:10 n3:10]")
		f.ready("n3", corev1.ConditionUnknown)
		step("silent", DefaultSettleTime-time.Second, 0, "[n1:10 n2:10 n3:10]")
		step("silent for good", 4*time.Second, 10, "[n1:15 n2:15]")
		f.ready("n3", corev1.ConditionTrue)
		step("back after long", DefaultSettleTime+4*time.Second, 10, "[n1:10 n2:10 n3:10]")
		f.ready("n1", corev1.ConditionUnknown)
		f.ready("n2", corev1.ConditionUnknown)
		step("most are silent", 2*time.Minute, 0, "[n1:10 n2:10 n3:10]")
		f.ready("n1", corev1.ConditionTrue)
		f.ready("n2", corev1.ConditionTrue)
		f.add("n4")
		step("one more", 2*DefaultSettleTime, 7, "[n1:7 n2:8 n3:8 n4:7]")
		delete(f.nodes, "n1")
		step("one fewer", 2*DefaultSettleTime, 7, "[n2:10 n3:10 n4:10]")
		f.nodes = map[string]*corev1.Node{}
		step("none", 2*DefaultSettleTime, 0, "[n2:10 n3:10 n4:10]")
	})
}

// Speakers that begin one after another, as with the first L2Advertisement, get their
// share together: the first one is not given everything.
func TestOwnersBegin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newField(t, 30, "n1", "n2", "n3")
		f.mute = map[string]bool{"n1": true, "n2": true, "n3": true}
		for _, n := range []string{"n1", "n2", "n3"} {
			if moves := f.run(5 * time.Second); moves != 0 {
				t.Errorf("%d addresses moved to the first that spoke", moves)
			}
			delete(f.mute, n)
		}
		if moves := f.run(DefaultSettleTime + 4*time.Second); moves != 30 || f.spread() != "[n1:10 n2:10 n3:10]" {
			t.Errorf("%d moves to %s, want 30 to an even spread", moves, f.spread())
		}
	})
}

// Pins, preferences and selectors of Services and nodes apply.
func TestOwnersFollowConfiguration(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newField(t, 12, "n1", "n2", "n3", "n4")
		f.announce(v1alpha1.AnnounceAdvertised)
		advertisement := &v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "lan"}}
		advertisement.Spec.NodeSelector = &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{
			{Key: "name", Operator: metav1.LabelSelectorOpIn, Values: []string{"n1", "n2", "n3"}}}}
		advertisement.Spec.PreferredNodeSelectors = []v1alpha1.PreferredNodeSelector{
			{Weight: 10, Preference: &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{
				{Key: "name", Operator: metav1.LabelSelectorOpIn, Values: []string{"n1", "n2"}}}}}}
		f.other = append(f.other, advertisement)
		pinned := into[corev1.Service](t, f.objects[servicesPath+"s05"])
		pinned.Annotations = map[string]string{"fanfare.io/l2-node": "n3"}
		f.put(servicesPath+"s05", f.objects[servicesPath+"s05"], from(t, pinned))
		// Without the pool's permission, the annotation moves nothing.
		if f.run(5 * time.Second); f.spread() != "[n1:6 n2:6]" {
			t.Errorf("spread %s", f.spread())
		}
		f.editPool(func(s *v1alpha1.AddressPoolSpec) { s.AllowL2Node = true })
		if f.run(5 * time.Second); f.spread() != "[n1:6 n2:5 n3:1]" && f.spread() != "[n1:5 n2:6 n3:1]" {
			t.Errorf("spread %s", f.spread())
		}
		// The preferred ones are gone: any other will do.
		delete(f.nodes, "n1")
		delete(f.nodes, "n2")
		if f.run(time.Minute); f.spread() != "[n3:12]" {
			t.Errorf("without the preferred nodes: %s", f.spread())
		}
		f.add("n1")
		if f.run(time.Minute); f.spread() != "[n1:11 n3:1]" {
			t.Errorf("with one of the preferred nodes: %s", f.spread())
		}
		// Once the pool is announced by BGP, claims stay as they are.
		f.announce(v1alpha1.AnnounceBGP)
		f.other = nil
		f.add("n2")
		if moves := f.run(time.Minute); moves != 0 {
			t.Errorf("%d addresses moved although they are announced by BGP", moves)
		}
	})
}

// Where the policy is Local, an address follows the pods, at once: the node without any
// could not answer.
func TestOwnersFollowPods(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newField(t, 3, "n1", "n2", "n3")
		svc := into[corev1.Service](t, f.objects[servicesPath+"s00"])
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		f.put(servicesPath+"s00", f.objects[servicesPath+"s00"], from(t, svc))
		pods := func(nodes ...string) {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: "s00-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s00"},
				},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
			}
			for i, n := range nodes {
				slice.Endpoints = append(slice.Endpoints,
					discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.0.%d", i+1)}, NodeName: &n})
			}
			f.other = []runtime.Object{slice}
		}
		at := func() string { return into[v1alpha1.AddressClaim](t, f.objects[f.claimOf("s00")]).Spec.Node }
		for _, step := range []struct {
			on    []string
			want  string
			moves int // at most: others may have to make room
		}{
			{[]string{"n2"}, "n2", 3}, {[]string{"n3"}, "n3", 2}, {[]string{"n3", "n1"}, "n3", 0},
			{[]string{"n1"}, "n1", 2}, {nil, "n1", 0},
		} {
			pods(step.on...)
			if moves := f.run(4 * time.Second); at() != step.want || moves > step.moves ||
				f.spread() != "[n1:1 n2:1 n3:1]" {
				t.Fatalf("pods on %v: on %s after %d moves, %s; want %s", step.on, at(), moves, f.spread(), step.want)
			}
		}
	})
}

// claimOf is the path of the claim that a Service holds.
func (f *field) claimOf(service string) string {
	for path, o := range f.objects {
		if !strings.HasPrefix(path, claimsPath) {
			continue
		}
		for _, h := range into[v1alpha1.AddressClaim](f.t, o).Spec.Holders {
			if h.Name == service {
				return path
			}
		}
	}
	f.t.Fatalf("%s has no claim", service)
	return ""
}

// A write that fails is tried again, and a pending write is not repeated.
func TestOwnersWriteOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newField(t, 6, "n1", "n2", "n3")
		f.run(time.Second) // claims
		f.c.source = still{f.Snapshot()}
		for range 5 {
			if _, errs := f.c.pass(t.Context()); len(errs) != 0 {
				t.Fatal(errs)
			}
			time.Sleep(time.Second)
		}
		if f.moves != 6 || f.spread() != "[n1:2 n2:2 n3:2]" {
			t.Errorf("%d moves to %s, want 6", f.moves, f.spread())
		}
		// Another client has changed a claim meanwhile, which the snapshot does not have.
		snap := f.Snapshot()
		path := claimsPath + "/192.0.2.1"
		claim := into[v1alpha1.AddressClaim](t, f.objects[path])
		claim.Spec.Reserved, claim.Spec.Node = true, ""
		f.put(path, f.objects[path], from(t, claim))
		f.c.source = still{withoutNode(snap)}
		time.Sleep(2 * time.Second)
		if _, errs := f.c.pass(t.Context()); len(errs) != 1 ||
			!strings.Contains(errs[0].Error(), "node of claim 192.0.2.1") {
			t.Errorf("errors %v, want one", errs)
		}
		if f.run(3 * time.Second); f.spread() != "[n1:2 n2:2 n3:2]" ||
			!into[v1alpha1.AddressClaim](t, f.objects[path]).Spec.Reserved {
			t.Errorf("in the end %s", f.spread())
		}
	})
}

// withoutNode is s with a first claim that names no node.
func withoutNode(s *cluster.Snapshot) *cluster.Snapshot {
	with, claim := *s, *s.Claims.At(0)
	claim.Node = ""
	with.Claims = s.Claims.With(&claim)
	return &with
}

func TestCandidates(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	b := cluster.NewBuilder()
	for _, o := range []runtime.Object{node("good", corev1.ConditionTrue), node("mute", corev1.ConditionTrue),
		node("silent", corev1.ConditionUnknown), node("sick", corev1.ConditionFalse),
		speakerStatus("good", "192.0.2.0/24"), speakerStatus("silent", "192.0.2.0/24"),
		speakerStatus("sick", "192.0.2.0/24"), speakerStatus("gone", "192.0.2.0/24")} {
		b.Set(o, "")
	}
	standings := func() string {
		got := map[string]election.Availability{}
		for _, n := range candidates(b.Snapshot()) {
			got[n.Name] = n.Availability
		}
		return fmt.Sprint(got)
	}
	want := fmt.Sprint(map[string]election.Availability{
		"good": election.Fit, "mute": election.Dead, "silent": election.Dead, "sick": election.NotReady,
	})
	if got := standings(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// When half of them are silent, that says nothing about any.
	b.Set(node("good", corev1.ConditionUnknown), "")
	want = fmt.Sprint(map[string]election.Availability{
		"good": election.Fit, "mute": election.Dead, "silent": election.Fit, "sick": election.NotReady,
	})
	if got := standings(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// BenchmarkPreferences is what it costs to see that 10,000 addresses on 100 nodes are
// where they should be, which is done once a second at most.
func BenchmarkPreferences(b *testing.B) {
	builder := cluster.NewBuilder()
	var nodes []string
	for i := range 100 {
		name := fmt.Sprintf("node-%03d", i)
		builder.Set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, "")
		builder.Set(speakerStatus(name, "10.0.0.0/16"), "")
		nodes = append(nodes, name)
	}
	builder.Set(&v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan"},
		Spec: v1alpha1.AddressPoolSpec{Announce: v1alpha1.AnnounceL2, Addresses: []string{"10.0.0.0/16"}}}, "")
	w := &world{}
	for i := range 10_000 {
		addr := fmt.Sprintf("10.0.%d.%d", i>>8, i&255)
		svc := w.service(fmt.Sprintf("s%05d", i))
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
		builder.Set(svc, "")
		builder.Set(&v1alpha1.AddressClaim{ObjectMeta: metav1.ObjectMeta{Name: addr},
			Spec: v1alpha1.AddressClaimSpec{Address: addr, Node: nodes[i%100]}}, "")
	}
	snap := builder.Snapshot()
	seen := candidates(snap)
	for b.Loop() {
		if list := preferences(snap, seen, func(c *cluster.Claim) string { return c.Node }); len(list) != 0 {
			b.Fatal(list[0])
		}
	}
}
