package membership

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A registry is an API server with Leases in memory, which may be unreachable. It is the
// transport of LeaseClients.
type registry struct {
	mu       sync.Mutex
	away     bool
	refusal  *apierrors.StatusError // the answer to every renewal; nil: success
	leases   map[string]*coordinationv1.Lease
	watchers []*registryWatcher
	watches  int // how often a watch was started
	writes   int
}

func newRegistry() *registry {
	return &registry{leases: map[string]*coordinationv1.Lease{}}
}

// newLeases returns the leases of a node that use the registry.
func (r *registry) newLeases(t *testing.T, node string, interval time.Duration) *leases {
	t.Helper()
	c, err := NewLeaseClient(&rest.Config{Host: "http://registry", Transport: r, QPS: -1}, "fanfare-system")
	if err != nil {
		t.Fatal(err)
	}
	return newLeases(node, c, interval, slog.New(slog.DiscardHandler))
}

var errAway = errors.New("the registry is unreachable")

// RoundTrip serves one request.
func (r *registry) RoundTrip(q *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.away:
		return nil, errAway
	case q.Method == http.MethodGet:
		selector, err := labels.Parse(q.URL.Query().Get("labelSelector"))
		if err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: r.watch(q.Context(), selector)}, nil
	case r.refusal != nil:
		return statusResponse(r.refusal), nil
	case q.Method == http.MethodPatch && r.leases[path.Base(q.URL.Path)] == nil:
		return statusResponse(apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, path.Base(q.URL.Path))),
			nil
	}
	lease := &coordinationv1.Lease{}
	if err := json.NewDecoder(q.Body).Decode(lease); err != nil {
		return nil, err
	}
	if q.Method == http.MethodPatch {
		lease.Name = path.Base(q.URL.Path)
	}
	lease.APIVersion, lease.Kind = "coordination.k8s.io/v1", "Lease"
	r.leases[lease.Name] = lease
	r.writes++
	for _, w := range r.watchers {
		if w.selector.Matches(labels.Set(lease.Labels)) {
			w.events <- lease
		}
	}
	return jsonResponse(http.StatusOK, lease), nil
}

func statusResponse(err *apierrors.StatusError) *http.Response {
	status := err.Status()
	status.APIVersion, status.Kind = "v1", "Status"
	return jsonResponse(int(status.Code), status)
}

func jsonResponse(code int, object any) *http.Response {
	body, _ := json.Marshal(object)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// A registryWatcher receives the Leases that match; nil ends it.
type registryWatcher struct {
	selector labels.Selector
	events   chan *coordinationv1.Lease
}

// watch starts a watch of Leases, which begins with the current ones.
func (r *registry) watch(ctx context.Context, selector labels.Selector) io.ReadCloser {
	r.watches++
	c := make(chan *coordinationv1.Lease, 1000)
	w := &registryWatcher{selector, c}
	r.watchers = append(r.watchers, w)
	for _, now := range r.leases {
		if selector.Matches(labels.Set(now.Labels)) {
			c <- now
		}
	}
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watchers = slices.DeleteFunc(r.watchers, func(o *registryWatcher) bool { return o == w })
	})
	out, in := io.Pipe()
	go func() {
		defer in.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case lease := <-c:
				if lease == nil || json.NewEncoder(in).Encode(map[string]any{"type": "MODIFIED", "object": lease}) !=
					nil {
					return
				}
			}
		}
	}()
	return out
}

// disconnect makes the registry unreachable, and ends the watches, or reachable again.
func (r *registry) disconnect(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
	if away {
		for _, w := range r.watchers {
			w.events <- nil
		}
		r.watchers = nil
	}
}

// A node that gossip does not reach is alive an interval later if it renews its Lease, until
// three intervals after the last renewal. The content from before its death does not count.
func TestLeaseShowsAlive(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const interval = 5 * time.Second
		api := newRegistry()
		l, other := api.newLeases(t, "n1", interval), api.newLeases(t, "n2", interval)
		defer l.cancel()
		l.setNode("uid-n1")
		other.setNode("uid-n2")
		go l.run(t.Context())
		ctx, die := context.WithCancel(t.Context())
		go other.run(ctx)
		<-time.After(time.Minute)
		if api.watches != 0 {
			t.Error("a Lease is watched of a node that gossip reaches")
		}

		died := time.Now()
		other.watchOnly([]string{"n1"}, 2) // it does not hear n1 either
		view := &gossip.View{Members: []gossip.Member{{Node: "n1"}, {Node: "n2", State: gossip.Dead, Since: died}}}
		state := func() string {
			m, _ := membersOf(view, l.watchOnly(unreachableNodes(view, &cluster.Snapshot{}, "n1"), 2), l.validity(),
				time.Now()).Find("n2")
			return m.State()
		}
		becomes := func(want string, within time.Duration) time.Duration {
			t.Helper()
			began := time.Now()
			for state() != want {
				select {
				case <-l.changed:
				case <-time.After(within - time.Since(began)):
					t.Fatalf("it is %s for %s, want %s", state(), within, want)
				}
			}
			return time.Since(began)
		}
		if got := state(); got != "dead" {
			t.Errorf("it is %s at once", got)
		}
		if took := becomes("lease", interval+time.Second); took > 2*time.Second {
			t.Errorf("known to be alive after %s: a small cluster renews sooner", took)
		}
		// A short outage of the API server changes nothing.
		api.disconnect(true)
		<-time.After(2 * time.Second)
		api.disconnect(false)
		<-time.After(time.Minute)
		if got := state(); got != "lease" {
			t.Errorf("after an outage it is %s", got)
		}
		die()
		if took := becomes("dead", 4*interval); took < interval {
			t.Errorf("dead %s after its last renewal, want %s or more", took, interval)
		}
		view = &gossip.View{Members: []gossip.Member{{Node: "n1"}, {Node: "n2", Since: time.Now()}}}
		if got := state(); got != "alive" || len(l.watched) != 0 {
			t.Errorf("it is %s, and %d are watched", got, len(l.watched))
		}
		<-time.After(time.Minute)
	})
}

// A dead node is absent if its Lease is not renewed while the API server accepts this node's
// renewals: not before a renewal is overdue, and until the next one. An API server that is
// unreachable, or accepts no renewals, proves nothing.
func TestLeaseShowsAbsent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const interval = 5 * time.Second
		api, cut := newRegistry(), false
		run := func(node string) (l *leases, stop context.CancelFunc) {
			l = api.newLeases(t, node, interval)
			l.setNode("uid-" + types.UID(node))
			if cut {
				l.watchOnly([]string{"n1"}, 3)
			}
			ctx, stop := context.WithCancel(t.Context())
			go l.run(ctx)
			return l, stop
		}
		l, stop := run("n1")
		defer stop()
		other, die := run("n2")
		<-time.After(time.Minute)
		cut = true // neither hears the other
		other.watchOnly([]string{"n1"}, 3)
		dead := []string{"n2", "n3"} // there never was a Lease of n3
		shows := func(within time.Duration, want string) time.Duration {
			t.Helper()
			began, late := time.Now(), time.After(within)
			for {
				leases := l.watchOnly(dead, 3)
				if got := fmt.Sprintf("%v %v", leases["n2"].absent, leases["n3"].absent); got == want {
					return time.Since(began)
				}
				select {
				case <-l.changed:
				case <-late:
					t.Fatalf("%s is not shown within %s: %+v", want, within, leases)
				}
			}
		}
		stays := func(d time.Duration, want string) {
			t.Helper()
			for range 10 {
				<-time.After(d / 10)
				shows(0, want)
			}
		}
		l.watchOnly(dead, 3)
		stays(time.Minute, "false false") // it renews its Lease
		die()
		bubble.Wait()
		// Both may renew at the same instant, in any order.
		if took := shows(3*interval+time.Second, "true false"); took < interval {
			t.Errorf("it is absent %s after it died", took)
		}
		api.disconnect(true)
		stays(time.Minute, "true false")
		api.disconnect(false)
		other, die = run("n2")
		shows(2*interval, "false false")
		for range 10 { // n1, which renewed its Lease rarely meanwhile, is not absent for the node that is back
			stays(6*time.Second, "false false")
			if n1 := other.watchOnly([]string{"n1"}, 3)["n1"]; n1.absent {
				t.Fatalf("n2 is back, and n1 is absent for it: %+v", n1)
			}
		}
		// The API server and the node are unreachable: this node may be cut off itself.
		die()
		api.disconnect(true)
		stays(time.Minute, "false false")
		api.disconnect(false)
		shows(5*interval, "true false")
		// The node is back, and the API server accepts no more renewals.
		_, die = run("n2")
		defer die()
		shows(2*interval, "false false")
		api.mu.Lock()
		api.refusal = apierrors.NewInternalError(errors.New("disk full"))
		api.mu.Unlock()
		stays(time.Minute, "false false")
	})
}

// Without an API server no Lease is watched, which is no problem; one that rejects renewals is.
func TestLeaseRenewError(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLeases("n1", nil, time.Second, slog.New(slog.DiscardHandler))
		if l.watchOnly([]string{"n2"}, 2) != nil {
			t.Error("a Lease is watched without an API server")
		}
		l.run(t.Context()) // returns
		api := newRegistry()
		l = api.newLeases(t, "n1", time.Second)
		l.setNode("uid")
		ctx, cancel := context.WithCancel(t.Context())
		go l.run(ctx)
		bubble.Wait()
		if got := l.problem(); got != "" {
			t.Errorf("problem %q", got)
		}
		api.disconnect(true)
		<-time.After(2 * time.Second)
		if got := l.problem(); got != "" {
			t.Errorf("unreachable API server: %q", got)
		}
		l.watchOnly([]string{"n2"}, 2)
		api.disconnect(false)
		api.mu.Lock()
		api.refusal = apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "x", errors.New("no role"))
		api.mu.Unlock()
		<-time.After(2 * time.Second)
		if got := l.problem(); !strings.Contains(got, "the Lease of this node is not renewed") ||
			!strings.Contains(got, "no role") {
			t.Errorf("API server that rejects the Lease: %q", got)
		}
		cancel()
		bubble.Wait()
	})
}

// While gossip reaches all nodes, a Lease is renewed once in idleInterval; while it does not reach a
// node that renews its Lease, each interval; and a dead node costs that only for some seconds.
func TestLeaseRate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const interval = 5 * time.Second
		api := newRegistry()
		l, other := api.newLeases(t, "n1", interval), api.newLeases(t, "n2", interval)
		l.setNode("uid-n1")
		other.setNode("uid-n2")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go l.run(ctx)
		otherCtx, die := context.WithCancel(ctx)
		writes := func(d time.Duration) float64 {
			api.mu.Lock()
			before := api.writes
			api.mu.Unlock()
			<-time.After(d)
			api.mu.Lock()
			defer api.mu.Unlock()
			return float64(api.writes-before) / d.Seconds()
		}
		if rate := writes(time.Hour); rate > 0.02 || rate < 0.015 {
			t.Errorf("idle: %.4f writes a second", rate)
		}
		go other.run(otherCtx)
		l.watchOnly([]string{"n2"}, 2)
		other.watchOnly([]string{"n1"}, 2)
		if rate := writes(time.Hour); rate < 0.39 || rate > 0.41 {
			t.Errorf("two that do not hear one another: %.4f writes a second", rate)
		}
		die()
		if n := writes(5*time.Minute) * 300; n > 16 {
			t.Errorf("%.0f writes in 5 minutes after a death", n)
		}
		if s := l.watchOnly([]string{"n2"}, 2)["n2"]; !s.absent {
			t.Errorf("%+v", s)
		}
		if rate := writes(time.Hour); rate > 0.02 {
			t.Errorf("beside a dead node: %.4f writes a second", rate)
		}
		// The same with a node that never had a Lease.
		l.watchOnly([]string{"n3"}, 2)
		if n := writes(5*time.Minute) * 300; n > 16 {
			t.Errorf("%.0f writes in 5 minutes beside a node without a Lease", n)
		}
	})
}

// A thousand nodes do not renew their Leases at once when one of them falls silent.
func TestLeaseSpread(t *testing.T) {
	l := newRegistry().newLeases(t, "n1", 5*time.Second)
	for members, want := range map[int]time.Duration{
		2: minRenewPause, 100: 500 * time.Millisecond, 1000: 5 * time.Second, 5000: 5 * time.Second,
	} {
		if l.members = members; l.spread() != want {
			t.Errorf("%d members: %s, want %s", members, l.spread(), want)
		}
	}
}

// The number of watched Leases is bounded, and one watch has them all.
func TestLeaseLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newRegistry()
		l := api.newLeases(t, "n1", time.Second)
		var dead []string
		for i := range 100 {
			dead = append(dead, fmt.Sprintf("n%d", i))
		}
		l.watchOnly(dead, 3)
		bubble.Wait()
		if api.watches != 1 || len(l.watched) != maxLeases {
			t.Errorf("%d watches for %d Leases", api.watches, len(l.watched))
		}
		l.cancel()
		bubble.Wait()
	})
}

// While nodes come and go many times a second, few watches begin.
func TestLeaseWatchPause(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newRegistry()
		l := api.newLeases(t, "n1", 5*time.Second)
		defer l.cancel()
		for i := range 100 {
			l.watchOnly([]string{fmt.Sprint("n", 2+i%3)}, 5)
			<-time.After(50 * time.Millisecond)
		}
		<-time.After(2 * rewatchPause)
		api.mu.Lock()
		defer api.mu.Unlock()
		if api.watches < 1 || api.watches > 8 {
			t.Errorf("%d watches in 7 s", api.watches)
		}
	})
}

// A release is seen in the Lease at once, and reported once; also if the watch began later.
func TestLeaseShowsRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newRegistry()
		l, other := api.newLeases(t, "n1", 5*time.Second), api.newLeases(t, "n2", 5*time.Second)
		defer l.cancel()
		other.setNode("uid-n2")
		ctx, cancel := context.WithCancel(t.Context())
		go other.run(ctx)
		l.watchOnly([]string{"n2"}, 2)
		<-time.After(time.Minute)
		if l.takeReleased() {
			t.Error("a release is reported before there is one")
		}
		for range 2 {
			other.release()
			<-time.After(2 * minRenewPause)
			if !l.takeReleased() || l.takeReleased() {
				t.Error("want it reported once")
			}
		}
		l.watchOnly(nil, 2)
		l.watchOnly([]string{"n2"}, 2)
		bubble.Wait()
		if !l.takeReleased() {
			t.Error("a release before the watch is not reported")
		}
		cancel()
		bubble.Wait()
	})
}
