package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// A history is all that happened to Services and claims since it began, in the
// order in which etcd has it: an API server's versions are etcd's revisions, so
// that those of two kinds can be compared. Nothing between two events is missed,
// as it would be by looking now and then.
type history struct {
	t    *testing.T
	stop context.CancelFunc
	done sync.WaitGroup
	// begun is the version of the later of the two lists: what is older may be in
	// one and not in the other.
	start uint64

	mu     sync.Mutex
	events []event
	errs   []string // what ended before it was to end
}

// An event is what an object was at a version.
type event struct {
	version uint64
	at      time.Time // when it was observed
	service bool      // else it is a claim
	gone    bool
	name    string // of a Service with its namespace, of a claim the address
	// addrs are those in a Service's status.
	addrs []string
	// holders are those of a claim.
	holders []string
}

// record begins a history. It ends with check.
func (c *Cluster) recordHistory(t *testing.T) *history {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &history{t: t, stop: cancel}
	for _, kind := range []schema.GroupVersionKind{serviceKind, kindOf("AddressClaim")} {
		m, err := c.Admin().mapping(kind)
		must(t, err)
		r := c.Admin().dynamic.Resource(m.Resource)
		list, err := r.List(ctx, metav1.ListOptions{})
		must(t, err)
		version, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
		must(t, err)
		h.start = max(h.start, version)
		for i := range list.Items {
			e, err := eventOf(&list.Items[i], false)
			must(t, err)
			h.events = append(h.events, e)
		}
		// An API server ends the watch of a client that is slower than what happens;
		// from where it ended the next one goes on, and nothing is missed.
		w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), watcher(r.Watch))
		must(t, err)
		h.done.Go(func() { h.follow(ctx, w) })
	}
	return h
}

// A watcher begins watches.
type watcher func(context.Context, metav1.ListOptions) (watch.Interface, error)

func (w watcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return w(ctx, o)
}

func (h *history) follow(ctx context.Context, w watch.Interface) {
	defer w.Stop()
	for {
		var ev watch.Event
		var ok bool
		select {
		case <-ctx.Done():
			return
		case ev, ok = <-w.ResultChan():
		}
		if ctx.Err() != nil {
			return
		}
		o, is := ev.Object.(*unstructured.Unstructured)
		if !ok || !is {
			h.fail("a watch ended: %v", ev.Object)
			return
		}
		e, err := eventOf(o, ev.Type == watch.Deleted)
		if err != nil {
			h.fail("%v", err)
			return
		}
		h.mu.Lock()
		h.events = append(h.events, e)
		h.mu.Unlock()
	}
}

// delays are the times from the first event of a Service to the first one in
// which it has an address, of all that have one.
func (h *history) delays() []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	created, all := map[string]time.Time{}, []time.Duration{}
	for _, e := range h.events {
		at, known := created[e.name]
		switch {
		case !e.service:
		case !known:
			created[e.name] = e.at
		case !at.IsZero() && len(e.addrs) != 0:
			all = append(all, e.at.Sub(at))
			created[e.name] = time.Time{}
		}
	}
	return all
}

// intact returns an error if changes from now on are not observed.
func (h *history) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(h.errs, "; "))
}

func (h *history) fail(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, fmt.Sprintf(format, args...))
}

func eventOf(o *unstructured.Unstructured, gone bool) (event, error) {
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return event{}, err
	}
	e := event{version: version, at: time.Now(), gone: gone, service: o.GetKind() == serviceKind.Kind, name: o.GetName()}
	if e.service {
		e.name = o.GetNamespace() + "/" + o.GetName()
		e.addrs = addresses(o)
		return e, nil
	}
	addr, err := v1alpha1.ClaimAddress(o.GetName())
	e.name = addr.String()
	holders, _, _ := unstructured.NestedSlice(o.Object, "spec", "holders") // The API server has checked it.
	for _, x := range holders {
		holder := x.(map[string]any)
		e.holders = append(e.holders, fmt.Sprintf("%s/%s", holder["namespace"], holder["name"]))
	}
	return e, err
}

// addresses are those in a Service's status.
func addresses(o *unstructured.Unstructured) (addrs []string) {
	ingress, _, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer", "ingress")
	for _, x := range ingress {
		if ip, ok := x.(map[string]any)["ip"].(string); ok {
			addrs = append(addrs, ip)
		}
	}
	return addrs
}

// check ends the history, and holds every instant of it against the promises: no
// address is in the status of two Services, no claim has two holders (no Service
// shares here), each address in a status is claimed for that Service, and
// a Service that is named in steady has the address that it has there. It returns
// how many events there were.
func (h *history) check(steady map[string]string) int {
	h.t.Helper()
	h.stop()
	h.done.Wait()
	for _, b := range h.errs {
		h.t.Error(b)
	}
	// Deletions have versions of their own; no two events have the same one.
	slices.SortStableFunc(h.events, func(a, b event) int { return cmp.Compare(a.version, b.version) })
	s := state{addrs: map[string][]string{}, holders: map[string][]string{}, owner: map[string]string{}}
	for i, e := range h.events {
		wrong := s.apply(e)
		if e.version <= h.start {
			continue
		}
		if a, ok := steady[e.name]; ok && !e.gone && !slices.Equal(e.addrs, []string{a}) {
			wrong = append(wrong, fmt.Sprintf("%s had %s and has %v", e.name, a, e.addrs))
		}
		if wrong = append(wrong, s.check(e)...); len(wrong) != 0 {
			h.t.Errorf("event %d, version %d: %s", i, e.version, strings.Join(wrong, "; "))
		}
	}
	return len(h.events)
}

// A state is what is true after an event.
type state struct {
	addrs   map[string][]string // of Services
	holders map[string][]string // of claims
	owner   map[string]string   // of addresses: the Service whose status says it
}

// apply makes the state that of after e, and says who then has what another one has.
func (s *state) apply(e event) (wrong []string) {
	if !e.service {
		s.holders[e.name] = e.holders
		if e.gone {
			delete(s.holders, e.name)
		}
		return nil
	}
	for _, a := range s.addrs[e.name] {
		if s.owner[a] == e.name {
			delete(s.owner, a)
		}
	}
	if e.gone {
		delete(s.addrs, e.name)
		return nil
	}
	s.addrs[e.name] = e.addrs
	for _, a := range e.addrs {
		if other := s.owner[a]; other != "" {
			wrong = append(wrong, fmt.Sprintf("%s has %s, and so has %s", e.name, a, other))
		}
		s.owner[a] = e.name
	}
	return wrong
}

// check compares what e is about.
func (s *state) check(e event) (wrong []string) {
	if !e.service {
		if len(e.holders) > 1 {
			wrong = append(wrong, fmt.Sprintf("claim %s has the holders %v", e.name, e.holders))
		}
		return append(wrong, s.claimed(e.name)...)
	}
	for _, a := range s.addrs[e.name] {
		wrong = append(wrong, s.claimed(a)...)
	}
	return wrong
}

func (s *state) claimed(addr string) []string {
	if o := s.owner[addr]; o != "" && !slices.Contains(s.holders[addr], o) {
		return []string{fmt.Sprintf("the status of %s says %s, whose claim is held by %v", o, addr, s.holders[addr])}
	}
	return nil
}
