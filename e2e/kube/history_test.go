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

// A history holds all events of Services and claims since its start in etcd's order: the
// API server's resource versions are etcd's revisions and comparable across kinds. Unlike
// polling, it misses no event.
type history struct {
	t    *testing.T
	stop context.CancelFunc
	done sync.WaitGroup
	// start is the version of the later list. Older events may be in only one of the lists.
	start uint64

	mu     sync.Mutex
	events []event
	errs   []string // errors of the watches
}

// An event is the state of an object at a version.
type event struct {
	version uint64
	at      time.Time // when it was received
	service bool      // otherwise a claim
	gone    bool
	name    string // of a Service with its namespace, of a claim the address
	// addrs are the addresses in a Service's status.
	addrs []string
	// holders are the Services of a claim.
	holders []string
}

// recordHistory starts a history. It ends with check.
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
		// The API server ends the watch of a slow client. The retry watcher continues at that
		// version, so that nothing is missed.
		w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), watcher(r.Watch))
		must(t, err)
		h.done.Go(func() { h.follow(ctx, w) })
	}
	return h
}

// A watcher is a function that starts watches.
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

// delays returns the time from the first event of each Service to the first one with an
// address.
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

// err returns an error if events may be missing from now on.
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
	e := event{
		version: version, at: time.Now(), gone: gone, service: o.GetKind() == serviceKind.Kind, name: o.GetName(),
	}
	if e.service {
		e.name = o.GetNamespace() + "/" + o.GetName()
		e.addrs = addresses(o)
		return e, nil
	}
	addr, err := v1alpha1.ClaimAddress(o.GetName())
	e.name = addr.String()
	holders, _, _ := unstructured.NestedSlice(o.Object, "spec", "holders") // The API server has validated it.
	for _, x := range holders {
		holder := x.(map[string]any)
		e.holders = append(e.holders, fmt.Sprintf("%s/%s", holder["namespace"], holder["name"]))
	}
	return e, err
}

// addresses returns the addresses in a Service's status.
func addresses(o *unstructured.Unstructured) (addrs []string) {
	ingress, _, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer", "ingress")
	for _, x := range ingress {
		if ip, ok := x.(map[string]any)["ip"].(string); ok {
			addrs = append(addrs, ip)
		}
	}
	return addrs
}

// check ends the history and checks every version of it: no address is in the status of two
// Services, no claim has two holders (no Service shares an address here), each address in a
// status is claimed for that Service, and a Service in steady keeps its address there. It
// returns the number of events.
func (h *history) check(steady map[string]string) int {
	h.t.Helper()
	h.stop()
	h.done.Wait()
	for _, b := range h.errs {
		h.t.Error(b)
	}
	// Deletions have their own versions, so that all versions differ.
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

// A state is the state of the cluster after an event.
type state struct {
	addrs   map[string][]string // of Services
	holders map[string][]string // of claims
	owner   map[string]string   // Service by the address in its status
}

// apply applies an event, and reports addresses that two Services then have.
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

// check compares the statuses and claims that the event concerns.
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
		return []string{fmt.Sprintf("the status of %s has %s, whose claim is held by %v", o, addr, s.holders[addr])}
	}
	return nil
}
