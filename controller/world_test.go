package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A world is one API server, users, and two controllers that both believe that
// they lead. In it, whatever can go wrong does: requests wait and overtake one
// another, fail, are carried out though their answer is lost or their sender has
// stopped; each controller receives changes of each kind of object at its own pace; leaders
// come and go. The seed decides what happens next.
type world struct {
	*rand.Rand
	*store
	nodes  [2]*node
	mutant mutant
	ground bool // there are nodes to spread addresses over
	calm   bool // no fault is injected
	// rich: Services also share addresses, ask for several, and keep theirs while
	// they are away.
	rich bool
	// agreed are the pairs of Services that shared at some time, by their paths.
	agreed map[[2]string]bool
	shared int // how often a second Service got an address

	// pending are requests that have not reached the API server.
	waiting sync.Mutex
	pending []*request

	// had is what a steady Service has, by its path.
	had   map[string][]string
	rival bool // another controller writes

	broken string // the first broken promise
}

// A node is one controller and what it hears.
type node struct {
	w      *world
	id     int
	feed   *feed
	cancel context.CancelFunc
	done   chan struct{}
}

type request struct {
	node *node
	req  *http.Request
	body []byte
	done chan answer
}

type answer struct {
	resp *http.Response
	err  error
}

// A feed is a Source that receives the store's changes late: in order for each kind of
// object, in any order for different kinds.
type feed struct {
	w       *world
	mu      sync.Mutex
	builder *cluster.Builder
	at      map[string]int // how much of the log was heard, by kind
	changed chan struct{}
}

var kinds = []string{"/services/", "/addressclaims/", "/addresspools/"}

func (f *feed) Changed() <-chan struct{} { return f.changed }

func (f *feed) Snapshot() *cluster.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.builder.Snapshot()
}

// hear delivers the next n changes of a kind to the feed.
func (f *feed) hear(kind string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ; n > 0 && f.at[kind] < len(f.w.log); f.at[kind]++ {
		if c := f.w.log[f.at[kind]]; strings.Contains(c.path, kind) {
			f.w.apply(f.builder, c)
			n--
		}
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (w *world) apply(b *cluster.Builder, c change) {
	if obj, key := w.typed(c); obj != nil {
		b.Set(obj, "")
	} else {
		b.Delete(key)
	}
}

func (w *world) typed(c change) (runtime.Object, cluster.Key) {
	part := strings.Split(c.path, "/")
	name := part[len(part)-1]
	switch {
	case strings.Contains(c.path, "/services/"):
		if c.object != nil {
			return new(into[corev1.Service](w.t, c.object)), cluster.Key{}
		}
		return nil, cluster.Key{Kind: "Service", Name: cluster.Name{Namespace: "shop", Name: name}}
	case strings.HasPrefix(c.path, namespacesPath) && len(part) == 5:
		if c.object != nil {
			return new(into[corev1.Namespace](w.t, c.object)), cluster.Key{}
		}
		return nil, cluster.Key{Kind: "Namespace", Name: cluster.Name{Name: name}}
	case strings.Contains(c.path, "/events/"):
		return nil, cluster.Key{} // No snapshot has them.
	case strings.Contains(c.path, "/addressclaims/"):
		if c.object != nil {
			return new(into[v1alpha1.AddressClaim](w.t, c.object)), cluster.Key{}
		}
		return nil, cluster.Key{Kind: "AddressClaim", Name: cluster.Name{Name: name}}
	case strings.Contains(c.path, "/l2advertisements/"):
		if c.object != nil {
			return new(into[v1alpha1.L2Advertisement](w.t, c.object)), cluster.Key{}
		}
		return nil, cluster.Key{Kind: "L2Advertisement", Name: cluster.Name{Name: name}}
	case strings.Contains(c.path, "/bgpadvertisements/"):
		if c.object != nil {
			return new(into[v1alpha1.BGPAdvertisement](w.t, c.object)), cluster.Key{}
		}
		return nil, cluster.Key{Kind: "BGPAdvertisement", Name: cluster.Name{Name: name}}
	default:
		if c.object != nil {
			return new(into[v1alpha1.AddressPool](w.t, c.object)), cluster.Key{}
		}
		return nil, cluster.Key{Kind: "AddressPool", Name: cluster.Name{Name: name}}
	}
}

// newBuilder knows three nodes that can answer for every address, if there are any.
func (w *world) newBuilder() *cluster.Builder {
	b := cluster.NewBuilder()
	for _, name := range []string{"n1", "n2", "n3"} {
		if !w.ground {
			break
		}
		b.Set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, "")
		b.Set(speakerStatus(name, "192.0.2.0/23"), "")
	}
	return b
}

func speakerStatus(node, prefix string) *v1alpha1.SpeakerStatus {
	return &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: v1alpha1.SpeakerReport{Interfaces: []v1alpha1.SpeakerInterface{{Name: "eth0",
			Prefixes: []string{prefix}}}}}
}

// truth is the snapshot of what there is.
func (w *world) truth() *cluster.Snapshot {
	b := w.newBuilder()
	for path, o := range w.objects {
		w.apply(b, change{path, o})
	}
	return b.Snapshot()
}

// RoundTrip hands a request to the world, which carries it out when it pleases,
// perhaps after its sender has turned away.
func (n *node) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/addresspools/") {
		// The pools' status is not what this is about, and waits in the way.
		return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody}, nil
	}
	p := &request{node: n, req: r, done: make(chan answer, 1)}
	if r.Body != nil {
		p.body, _ = io.ReadAll(r.Body)
	}
	n.w.waiting.Lock()
	n.w.pending = append(n.w.pending, p)
	n.w.waiting.Unlock()
	select {
	case a := <-p.done:
		return a.resp, a.err
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// start makes node i a new process that leads.
func (w *world) start(i int) {
	n := &node{w: w, id: i, done: make(chan struct{})}
	n.feed = &feed{w: w, builder: w.newBuilder(), at: map[string]int{}, changed: make(chan struct{}, 1)}
	for _, k := range kinds { // what it lists may be a little old
		n.feed.hear(k, len(w.log))
	}
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	c, err := newController(Options{
		Config: w.config(n), Instance: fmt.Sprint("node", i),
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	c.source = n.feed
	w.nodes[i] = n
	go func() {
		defer close(n.done)
		c.lead(ctx)
	}()
}

func (w *world) stop(i int) {
	w.nodes[i].cancel()
	<-w.nodes[i].done
}

// runWorld says which promise was broken in the world of a seed, if any was.
func runWorld(t *testing.T, seed uint64, m mutant, ground bool) (broken string) {
	broken, _ = runEither(t, seed, m, false)
	return broken
}

// runEither also says how often Services came to share an address.
func runEither(t *testing.T, seed uint64, m mutant, rich bool) (broken string, shared int) {
	bubble.Test(t, func(t *testing.T) {
		w := &world{
			Rand: rand.New(rand.NewPCG(seed, 0)), store: newStore(t), mutant: m, rich: rich,
			agreed: map[[2]string]bool{}, had: map[string][]string{},
		}
		w.store.wrote = w.watchOver
		w.populate()
		for i := range w.nodes {
			w.start(i)
		}
		for range 300 {
			if w.broken != "" {
				break
			}
			bubble.Wait()
			w.step()
		}
		w.converge()
		for i := range w.nodes {
			w.stop(i)
		}
		broken, shared = w.broken, w.shared
	})
	return broken, shared
}

// step lets one thing happen.
func (w *world) step() {
	switch n := w.IntN(20); {
	case n < 8:
		w.serveOne()
	case n < 14:
		w.nodes[w.IntN(2)].feed.hear(kinds[w.IntN(3)], 1+w.IntN(3))
	case n < 17:
		w.use()
	case n < 19:
		time.Sleep(time.Duration(w.IntN(100)) * time.Millisecond)
	case w.IntN(4) == 0:
		i := w.IntN(2)
		w.stop(i)
		w.start(i)
	}
}

// serveOne carries out a request that waits, any of them, or does not.
func (w *world) serveOne() {
	w.waiting.Lock()
	if len(w.pending) == 0 {
		w.waiting.Unlock()
		return
	}
	// The order in which goroutines got here is not the seed's.
	slices.SortStableFunc(w.pending, func(a, b *request) int { return strings.Compare(a.String(), b.String()) })
	i := w.IntN(len(w.pending))
	r := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	w.waiting.Unlock()

	fate := w.IntN(20)
	switch {
	case w.calm || fate > 3:
		r.done <- answer{resp: w.mutant.serve(w, r)}
	case fate == 0:
		r.done <- answer{err: errors.New("connection refused")}
	case fate == 1:
		w.mutant.serve(w, r)
		r.done <- answer{err: errors.New("the answer was lost")}
	case fate == 2:
		r.done <- answer{resp: &http.Response{
			StatusCode: 500, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("no")),
		}}
	default:
		r.done <- answer{resp: w.mutant.serve(w, r)}
	}
}

func (r *request) String() string {
	return fmt.Sprint(r.node.id, r.req.Method, r.req.URL.Path, string(r.body))
}

const (
	namespacesPath = "/api/v1/namespaces/"
	servicesPath   = namespacesPath + "shop/services/"
)

// watchOver checks the promises after each write.
func (w *world) watchOver(path string, before, after object) {
	if !strings.Contains(path, "/services/") || after == nil || w.broken != "" || w.rival {
		return
	}
	is := into[corev1.Service](w.t, after)
	w.agree(path, &is)
	for _, a := range w.addrs(is) {
		for other, o := range w.objects {
			if other == path || !strings.Contains(other, "/services/") ||
				!slices.Contains(addrs(into[corev1.Service](w.t, o)), a) {
				continue
			}
			if w.shared++; !w.agreed[[2]string{path, other}] {
				w.broken = fmt.Sprintf("%s has %s, and so has %s", path, a, other)
			}
		}
	}
	if before == nil {
		w.had[path] = nil
	}
	if was := w.had[path]; strings.HasPrefix(is.Name, "steady") && len(was) != 0 && !slices.Equal(was, w.addrs(is)) {
		w.broken = fmt.Sprintf("%s had %v and now has %v", path, was, w.addrs(is))
	}
	w.had[path] = w.addrs(is)
}

// agree notes which Services share with a Service now. That it once did must do: when it
// ceases to, what it shares already stays so.
func (w *world) agree(path string, s *corev1.Service) {
	spec := specOf(s, cluster.Classes{})
	for other, o := range w.objects {
		if !w.rich || spec == nil || other == path || !strings.Contains(other, "/services/") {
			continue
		}
		os := specOf(new(into[corev1.Service](w.t, o)), cluster.Classes{})
		if os == nil {
			continue
		}
		if _, apart := ipam.Apart(spec, os); !apart {
			w.agreed[[2]string{path, other}], w.agreed[[2]string{other, path}] = true, true
		}
	}
}

// addrs are the addresses of a Service that another controller has not written.
func (w *world) addrs(s corev1.Service) []string {
	return slices.DeleteFunc(addrs(s), func(a string) bool { return a == rivalAddress })
}

func addrs(s corev1.Service) []string {
	var out []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" { // else it is a host name
			out = append(out, i.IP)
		}
	}
	return out
}

// converge delivers everything in flight without faults, and checks that the result is as
// wanted, and stays so without a request.
func (w *world) converge() {
	w.calm = true
	idle := 0
	for range 2000 { // Worlds that come to rest do so in 130.
		bubble.Wait()
		if w.broken != "" {
			// The requests that are left must not wait for ever.
			w.drain()
			return
		}
		busy := w.unheard()
		w.waiting.Lock()
		busy = busy || len(w.pending) != 0
		w.waiting.Unlock()
		if !busy {
			if idle++; idle > 60 {
				break
			}
			time.Sleep(rewriteMemory / 30)
			continue
		}
		idle = 0
		for _, n := range w.nodes {
			for _, k := range kinds {
				n.feed.hear(k, 100)
			}
		}
		w.serveOne()
	}
	if idle == 0 {
		w.broken = "it does not come to rest"
		w.drain()
		return
	}
	snap := w.truth()
	as, reasons := ipam.NewAllocator(snap, ipam.Settled).Allocate(time.Time{})
	if left := plan(ipam.NewAllocator(snap, settled), as, reasons, nil,
		time.Time{}).String(); left != "" {
		w.broken = "it came to rest with this undone:\n" + left
		return
	}
	if left := preferences(snap, candidates(snap), func(c *cluster.Claim) string { return c.Node }); len(left) != 0 {
		w.broken = fmt.Sprintf("it came to rest with addresses on the wrong nodes: %v", left)
		return
	}
	for c := range snap.Claims.All() {
		for _, h := range c.Holders {
			if !slices.ContainsFunc(as, func(a cluster.Assignment) bool {
				return a.Addr == c.Addr && a.Service == h.Name && a.Pool == cluster.PoolOf(snap.Pools, c.Addr)
			}) {
				w.broken = fmt.Sprintf("%s holds the claim of %s and does not have it", h.Name, c.Addr)
			}
		}
	}
}

func (w *world) unheard() bool {
	for _, n := range w.nodes {
		for _, k := range kinds {
			if n.feed.at[k] < len(w.log) {
				return true
			}
		}
	}
	return false
}

// drain refuses what waits.
func (w *world) drain() {
	w.waiting.Lock()
	defer w.waiting.Unlock()
	for _, r := range w.pending {
		r.done <- answer{err: errors.New("the world has ended")}
	}
	w.pending = nil
}

// No address is ever in the status of two Services, no steady Service loses its
// address, and everything comes to rest as ipam decides, whatever goes wrong.
func TestWorlds(t *testing.T) {
	n := uint64(100)
	if testing.Short() {
		n = 30
	}
	// More worlds, after a change of the order of writes.
	if s, err := strconv.ParseUint(os.Getenv("FANFARE_WORLDS"), 10, 64); err == nil {
		n = s
	}
	for seed := range n {
		if broken := runWorld(t, seed, mutant{}, seed%2 == 0); broken != "" {
			t.Fatalf("seed %d: %s", seed, broken)
		}
	}
	shared := 0
	for seed := range n {
		broken, times := runEither(t, seed, mutant{}, true)
		if shared += times; broken != "" {
			t.Fatalf("rich seed %d: %s", seed, broken)
		}
	}
	if uint64(shared) < n/4 {
		t.Errorf("in %d worlds something was shared %d times: too few to show anything", n, shared)
	}
}
