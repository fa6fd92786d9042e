package watch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// differs says in what the snapshot differs from that of objects.
func differs(want *cluster.Snapshot) func(*cluster.Snapshot) string {
	return func(got *cluster.Snapshot) string {
		if d := gocmp.Diff(render(want), render(got)); d != "" {
			return "-want +got:\n" + d
		}
		// What render does not show.
		if d := gocmp.Diff(want, got, clustertest.Comparers...); d != "" {
			return "-want +got:\n" + d
		}
		return ""
	}
}

// ordinary is one object of each kind, and some more.
func ordinary() []clustertest.Object {
	pool := clustertest.Pool("lan", "192.0.2.0/24")
	pool.Spec.Announce = v1alpha1.AnnounceAdvertised
	return []clustertest.Object{
		clustertest.Service("a", "192.0.2.1"), clustertest.Service("b"),
		clustertest.EndpointSlice("a1", "a", "10.0.0.1"), clustertest.EndpointSlice("b1", "b", "10.0.0.2", "10.0.0.3"),
		clustertest.Node("n1"), clustertest.Node("n2"), pool, clustertest.Peer("tor", "10.0.0.254"),
		clustertest.Advertisement("lan", 24), clustertest.Claim("192.0.2.1", "a"),
		clustertest.Namespace("default", "a"), clustertest.ServiceCIDR("kubernetes", "10.96.0.0/16"),
	}
}

func TestAPI(t *testing.T) {
	for _, streams := range []bool{true, false} {
		t.Run(fmt.Sprintf("streams=%v", streams), func(t *testing.T) {
			s := newAPIServer(t, ordinary()...)
			s.streams = streams
			a := s.open(Options{})
			if w := differs(cluster.Parse(s.all()...))(a.Snapshot()); w != "" {
				t.Fatalf("when it was opened: %s", w)
			}
			s.set(clustertest.EndpointSlice("b1", "b", "10.0.0.2"), clustertest.Service("c", "192.0.2.7"))
			s.delete(cluster.Key{Kind: "Node", Name: cluster.Name{Name: "n2"}})
			s.delete(cluster.Key{Kind: "AddressClaim", Name: cluster.Name{Name: "192.0.2.1"}})
			awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
			if n := s.asked("list services"); (n == 0) != streams {
				t.Errorf("%d plain lists", n)
			}
		})
	}
}

// writeFiles writes objects as kubectl get would have written them.
func writeFiles(t *testing.T, objects []runtime.Object) string {
	dir := t.TempDir()
	for i, o := range objects {
		gvk, _, err := scheme.ObjectKinds(o)
		must(t, err)
		o.GetObjectKind().SetGroupVersionKind(gvk[0])
		y, err := yaml.Marshal(o)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d.yaml", i)), y, 0o644))
	}
	return dir
}

// Whatever happens, to the objects, the connections or the API server, the
// snapshot comes to be that of a folder with the objects that there are.
func TestAPIEqualsFiles(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1))
			s := newAPIServer(t, ordinary()...)
			s.streams = rnd.IntN(2) == 0
			a := s.open(Options{})
			saved := s.backup()
			for range 60 {
				switch rnd.IntN(30) {
				case 0:
					s.drop()
				case 1:
					s.forget()
					s.drop()
				case 2:
					saved = s.backup()
				case 3:
					s.outage(a, func() {})
				case 4:
					s.confirmed(a, func() { s.outage(a, func() { s.restore(saved) }) })
				case 5: // So short that hardly anyone notices.
					s.confirmed(a, func() {
						s.down()
						s.restore(saved)
						s.up()
					})
				case 6:
					awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
				default:
					randomChange(rnd, s)
				}
			}
			got := awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
			f, err := OpenFiles(t.Context(), writeFiles(t, s.all()), nil, quiet)
			must(t, err)
			want := *f.Snapshot()
			want.Problems = slices.Clone(want.Problems)
			for i := range want.Problems {
				want.Problems[i].File = "" // All that may differ.
			}
			if w := differs(&want)(got); w != "" {
				t.Errorf("files differ: %s", w)
			}
		})
	}
}

// outage is over when every watch has noticed, and f has been called.
func (s *apiServer) outage(a *API, f func()) {
	s.down()
	s.until("every watch has noticed the outage", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.failures) >= len(a.synced)
	})
	f()
	s.up()
}

// Dozens of outages in a row would be mostly pauses.
func init() { backoff.Cap = 200 * time.Millisecond }

// confirmed calls f, which restores a backup in a restart, and returns when every watch has received a
// version since. Later, when changes have reached the known version again, a watch cannot detect the backup.
func (s *apiServer) confirmed(a *API, f func()) {
	f()
	for r := range a.synced {
		s.until("a version of "+r.Resource, func() bool { return s.readNow(r.Resource) })
	}
}

// until waits for a minute at most.
func (s *apiServer) until(what string, done func() bool) {
	s.t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			s.t.Fatalf("not within a minute: %s", what)
		}
	}
}

// readNow reports whether a client has received the version of this process.
func (s *apiServer) readNow(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read[resource] == s.process
}

func randomChange(rnd *rand.Rand, s *apiServer) {
	o := clustertest.Random(rnd).(object)
	if rnd.IntN(5) == 0 {
		o = clustertest.Claim(fmt.Sprintf("192.0.2.%d", rnd.IntN(4)), string(rune('a'+rnd.IntN(4))))
	}
	if key, _ := cluster.KeyOf(o); rnd.IntN(3) == 0 {
		s.delete(key)
	} else {
		s.set(o)
	}
}

// away waits for the Problem that the API server does not answer.
func away(s *cluster.Snapshot) string {
	if slices.ContainsFunc(s.Problems, func(p cluster.Problem) bool {
		return p.Object == serverKey && strings.HasPrefix(p.Message, "does not answer since ")
	}) {
		return ""
	}
	return "no Problem says that the API server is away"
}

// What each kind of interruption must lead to: the objects as they are then.
func TestAPIRelist(t *testing.T) {
	for _, tt := range []struct {
		name      string
		interrupt func(*testing.T, *apiServer, *API)
		relisted  bool
	}{
		{"a watch ends", func(_ *testing.T, s *apiServer, _ *API) { s.drop() }, false},
		{"410 Gone", func(_ *testing.T, s *apiServer, _ *API) { s.forget(); s.drop() }, true},
		{"the API server goes away", func(_ *testing.T, s *apiServer, a *API) { s.outage(a, func() {}) }, false},
		{"it is back and knows no roles yet", func(_ *testing.T, s *apiServer, a *API) {
			s.outage(a, func() { s.refuse("services", apierrors.NewForbidden(services.GroupResource(), "", nil)) })
			awaitRequest(s, "watch services")
			s.refuse("services", nil)
		}, false},
		{"it is back with no history", func(_ *testing.T, s *apiServer, a *API) { s.outage(a, s.forget) }, true},
		{"it is back with an older etcd", func(t *testing.T, s *apiServer, a *API) {
			old := s.backup()
			for range 3 {
				s.set(clustertest.Service("lost"))
			}
			awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
			s.outage(a, func() { s.restore(old) })
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newAPIServer(t, ordinary()...)
			a := s.open(Options{})
			// client-go takes a watch that ends at once without an event for a fault.
			s.set(ordinary()...)
			// The stream has come as far as this Service when it is in the snapshot.
			s.set(clustertest.Service("last"))
			awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
			key := cluster.Key{Kind: "Service", Name: cluster.Name{Namespace: "default", Name: "b"}}
			before := s.asked("stream services")
			s.mu.Lock() // No client receives changes until it is unlocked.
			gone := s.objects[key]
			delete(s.objects, key)
			s.version++
			s.history = append(s.history, apiEvent{s.version, "DELETED", gone})
			s.mu.Unlock()
			tt.interrupt(t, s, a)
			s.set(clustertest.Service("later"))
			awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
			if relisted := s.asked("stream services") != before; relisted != tt.relisted {
				t.Errorf("listed again: %v, want %v", relisted, tt.relisted)
			}
		})
	}
}

// awaitRequest returns after one more request.
func awaitRequest(s *apiServer, what string) {
	n := s.asked(what)
	s.until(what, func() bool { return s.asked(what) != n })
}

// An API server that is restored from a backup is trusted, although its versions
// are smaller than the known ones.
func TestAPIRestored(t *testing.T) {
	s := newAPIServer(t, ordinary()...)
	a := s.open(Options{})
	saved := s.backup()
	for i := range 20 {
		s.set(clustertest.Service(fmt.Sprint("later", i)))
	}
	awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
	s.outage(a, func() { s.restore(saved) })
	awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
	s.set(clustertest.Service("after")) // And what happens then is seen.
	awaitAPI(t, a, differs(cluster.Parse(s.all()...)))

	s.down()
	s.restore(saved)
	s.up() // Before a request could fail.
	awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
}

func TestAPIAway(t *testing.T) {
	s := newAPIServer(t, ordinary()...)
	r := prometheus.NewRegistry()
	a := s.open(Options{Registerer: r})
	before := a.Snapshot()
	s.down()
	gone := awaitAPI(t, a, away)
	if len(gone.Problems) != 1 {
		t.Errorf("problems: %v", gone.Problems)
	}
	if a.InStep() {
		t.Error("in step with an API server that is away")
	}
	if !before.Services.Same(gone.Services) || !before.Claims.Same(gone.Claims) ||
		!clustertest.SameArray(before.Nodes, gone.Nodes) {
		t.Error("not everything stayed as it was")
	}
	m := a.metrics.of(services)
	s.outage(a, func() {
		if at := testutil.ToFloat64(m.since); time.Since(time.Unix(int64(at), 0)) > time.Minute {
			t.Errorf("failing since %v", at)
		}
	})
	// The API server answers before all objects are there: the Problem goes first.
	for _, r := range []resource{services, claims} {
		for m := a.metrics.of(r); testutil.ToFloat64(m.lists) < 2; {
			time.Sleep(time.Millisecond)
		}
	}
	back := awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
	if back.Services.At(0).Spec != before.Services.At(0).Spec || back.Claims.At(0) != before.Claims.At(0) {
		t.Error("listing again made other pointers of what had not changed")
	}
	if at := testutil.ToFloat64(m.since); at != 0 || !a.InStep() {
		t.Errorf("failing since %v, in step %t, although it is back", at, a.InStep())
	}
	if problems, err := testutil.GatherAndLint(r); err != nil || len(problems) != 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
}

// A speaker that stops still forwards for the linger time. It no longer follows the API server.
func TestAPIInStepUntilItEnds(t *testing.T) {
	s := newAPIServer(t, ordinary()...)
	ctx, stop := context.WithCancel(t.Context())
	a, err := OpenAPI(ctx, s.config(), Options{Log: quiet})
	must(t, err)
	if !a.InStep() {
		t.Error("not in step after the start")
	}
	s.refuse("endpointslices", apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "",
		fmt.Errorf("no role")))
	s.forget()
	s.drop()
	awaitAPI(t, a, func(s *cluster.Snapshot) string {
		if len(s.Problems) == 0 {
			return "no problem"
		}
		return ""
	})
	if a.InStep() {
		t.Error("in step, although EndpointSlices cannot be read")
	}
	s.refuse("endpointslices", nil)
	awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
	stop()
	if a.InStep() {
		t.Error("in step, although the watches have ended")
	}
}

func notFound(resource string) *apierrors.StatusError {
	return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, "")
}

// Without a CRD, a Problem names it; once it is applied, everything works.
func TestAPIMissingCRD(t *testing.T) {
	s := newAPIServer(t, ordinary()...)
	s.refuse("addresspools", notFound("addresspools"))
	s.refuse("nodes", apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", fmt.Errorf("no role")))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for s.asked("list addresspools") < 3 || s.asked("list nodes") < 3 { // By then the others were read.
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := OpenAPI(ctx, s.config(), Options{Log: quiet})
	if err == nil {
		t.Fatal("opened")
	}
	for _, want := range []string{
		"addresspools.fanfare.io: is not installed; apply manifests/crds/fanfare.io_addresspools.yaml",
		"nodes cannot be read since", "no role", context.Canceled.Error(),
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "services") {
		t.Errorf("error %q is about what was read", err)
	}

	opened := make(chan *API)
	go func() {
		a, err := OpenAPI(t.Context(), s.config(), Options{Log: quiet})
		if err != nil {
			t.Error(err)
		}
		opened <- a
	}()
	n := s.asked("list addresspools")
	for s.asked("list addresspools") < n+2 { // It is tried again.
		select {
		case <-opened:
			t.Fatal("opened")
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.refuse("addresspools", nil)
	s.refuse("nodes", nil)
	a := <-opened
	if a == nil {
		return
	}
	awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
}

// A speaker that is newer than the CRDs and the roles reports what is missing, and which
// pool it does not announce, and reads advertisements as soon as it can. Until then it
// uses the advertisements from before its restart.
func TestAPIWithoutAdvertisements(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "bgpadvertisements"}, "", fmt.Errorf("no role"))
	for want, refusal := range map[string]*apierrors.StatusError{
		"apply manifests/crds/fanfare.io_bgpadvertisements.yaml": notFound("bgpadvertisements"),
		"bgpadvertisements.fanfare.io cannot be read since":      forbidden,
	} {
		s := newAPIServer(t, ordinary()...)
		s.refuse("bgpadvertisements", refusal)
		a := s.open(Options{})
		snap := a.Snapshot()
		if snap.Services.Len() == 0 || len(snap.Advertisements) != 0 || len(snap.Problems) != 2 ||
			!strings.Contains(fmt.Sprint(snap.Problems), want) ||
			!strings.Contains(fmt.Sprint(snap.Problems), "none of its addresses is announced") {
			t.Errorf("problems %v, want %q", snap.Problems, want)
		}
		again := s.open(Options{Known: &cluster.Configuration{
			Advertisements: []*v1alpha1.BGPAdvertisement{clustertest.Advertisement("known", 24),
				clustertest.Advertisement("later", 24)}}})
		if snap := again.Snapshot(); len(snap.Advertisements) != 2 || len(snap.Problems) == 0 ||
			!strings.Contains(fmt.Sprint(snap.Problems), want) {
			t.Errorf("after a restart: advertisements %v, problems %v", snap.Advertisements, snap.Problems)
		}
		s.refuse("bgpadvertisements", nil)
		s.set(clustertest.Advertisement("later", 16))
		awaitAPI(t, a, differs(cluster.Parse(s.all()...)))
		awaitAPI(t, again, differs(cluster.Parse(s.all()...)))
	}
}

// An API server before Kubernetes 1.33 has no ServiceCIDRs, which is no
// Problem. Without the right to read Namespaces, no Service matches a namespaceSelector.
func TestAPIWithoutNamespaces(t *testing.T) {
	s := newAPIServer(t, ordinary()...)
	s.refuse("servicecidrs", notFound("servicecidrs"))
	a := s.open(Options{})
	if snap := a.Snapshot(); len(snap.ServiceCIDRs) != 0 || len(snap.Namespaces) != 1 || len(snap.Problems) != 0 {
		t.Errorf("without ServiceCIDRs:\n%s", render(snap))
	}
	s.outage(a, func() {})
	awaitAPI(t, a, func(s *cluster.Snapshot) string {
		if len(s.Problems) == 0 {
			return ""
		}
		return fmt.Sprintf("after an outage: %v", s.Problems)
	})
	s.refuse("servicecidrs", nil)
	awaitAPI(t, a, differs(cluster.Parse(s.all()...)))

	s.refuse("namespaces", apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "",
		fmt.Errorf("no role")))
	a = s.open(Options{})
	snap := a.Snapshot()
	if len(snap.Problems) != 1 || !strings.Contains(snap.Problems[0].Message, "namespaces cannot be read since") {
		t.Errorf("problems: %v", snap.Problems)
	}
	pool := &cluster.Pool{NamespaceSelector: cluster.Selecting(labels.SelectorFromSet(labels.Set{"team": "a"}))}
	if why := pool.Excludes(snap.Services.At(0).Spec, snap.Namespaces); !strings.Contains(why, "are not known") {
		t.Errorf("barred %q", why)
	}
	s.refuse("namespaces", nil)
	if why := pool.Excludes(snap.Services.At(0).Spec,
		awaitAPI(t, a, differs(cluster.Parse(s.all()...))).Namespaces); why != "" {
		t.Errorf("barred %q", why)
	}
}

// The CRD may also go while we watch. All pools have gone with it.
func TestAPILostCRD(t *testing.T) {
	s := newAPIServer(t, ordinary()...)
	a := s.open(Options{})
	s.refuse("bgppeers", notFound("bgppeers"))
	s.forget()
	s.drop()
	awaitAPI(t, a, func(s *cluster.Snapshot) string {
		want := cluster.Problem{
			Object:  cluster.Named("CustomResourceDefinition", "bgppeers.fanfare.io"),
			Message: "is not installed; apply manifests/crds/fanfare.io_bgppeers.yaml",
		}
		if !slices.Equal(s.Problems, []cluster.Problem{want}) {
			return fmt.Sprint(s.Problems)
		}
		return ""
	})
	if len(a.Snapshot().Peers) != 1 || !a.InStep() {
		t.Error("the peer went although no client deleted it, or an answer of the API server does not count")
	}
}
