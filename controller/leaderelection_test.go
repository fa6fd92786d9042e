package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/fanfare-system/leases/fanfare-controller"

// A candidate runs in an election and can be cut off from the API server.
type candidate struct {
	store   *store
	cut     atomic.Bool
	leading atomic.Bool
	until   time.Time // when it last led
	stop    context.CancelFunc
	done    chan struct{}
}

func (c *candidate) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		return nil, errors.New("no route to host")
	}
	return c.store.RoundTrip(r)
}

func stand(t *testing.T, s *store, identity string) *candidate {
	t.Helper()
	c := &candidate{store: s, done: make(chan struct{})}
	client, err := newClient(s.config(c), newThrottle(newMetrics(noRegistry{})))
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(t.Context())
	e := Election{Namespace: "fanfare-system", Name: "fanfare-controller", Identity: identity}
	go func() {
		defer close(c.done)
		e.run(ctx, client.leases, slog.New(slog.DiscardHandler), func(ctx context.Context) {
			c.leading.Store(true)
			<-ctx.Done()
			c.until = time.Now()
			c.leading.Store(false)
		})
	}()
	return c
}

func (s *store) lease(t *testing.T) coordinationv1.LeaseSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return into[coordinationv1.Lease](t, s.objects[leasePath]).Spec
}

// after lets time pass and says who leads then.
func after(d time.Duration, all ...*candidate) string {
	time.Sleep(d)
	bubble.Wait()
	var who []string
	for i, c := range all {
		if c.leading.Load() {
			who = append(who, fmt.Sprint(i))
		}
	}
	return strings.Join(who, ",")
}

// One controller leads, also for hours. A controller that stops releases the Lease at once.
func TestElection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStore(t)
		a := stand(t, s, "a")
		if got := after(0, a); got != "0" {
			t.Fatalf("%q lead, want the only one", got)
		}
		b := stand(t, s, "b")
		for range 100 {
			if got := after(time.Minute, a, b); got != "0" {
				t.Fatalf("%q lead, want 0 to go on", got)
			}
		}
		a.stop()
		<-a.done
		if got := after(renewPeriod, a, b); got != "1" {
			t.Errorf("%q lead, want 1 after 0 has stopped", got)
		}
		if l := s.lease(t); *l.HolderIdentity != "b" || *l.LeaseTransitions != 1 {
			t.Errorf("lease of %s after %d transitions", *l.HolderIdentity, *l.LeaseTransitions)
		}
		b.stop()
		<-b.done
	})
}

// A leader that is cut off stops writing before the other one begins.
func TestElectionCutOff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStore(t)
		a := stand(t, s, "a")
		after(0, a)
		b := stand(t, s, "b")
		after(time.Minute, a, b)
		a.cut.Store(true)
		if got := after(renewDeadline-renewPeriod-time.Millisecond, a, b); got != "0" {
			t.Errorf("%q lead, want 0: a short outage changes nothing", got)
		}
		if got := after(renewPeriod+time.Second, a, b); got != "" {
			t.Errorf("%q lead, want none for a moment", got)
		}
		if got := after(leaseDuration, a, b); got != "1" {
			t.Errorf("%q lead, want 1", got)
		}
		a.cut.Store(false)
		if got := after(time.Minute, a, b); got != "1" {
			t.Errorf("%q lead, want 1 to go on", got)
		}
		a.stop()
		b.stop()
		<-a.done
		<-b.done
	})
}

// A leader that dies is replaced when its Lease has expired, by the clock of the
// controller that waits.
func TestElectionAfterDeath(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStore(t)
		a := stand(t, s, "a")
		after(0, a)
		a.cut.Store(true) // so that it cannot hand over
		a.stop()
		<-a.done
		b := stand(t, s, "b")
		if got := after(leaseDuration-renewPeriod, b); got != "" {
			t.Errorf("%q lead before the Lease has run out", got)
		}
		if got := after(2*renewPeriod+time.Second, b); got != "0" {
			t.Errorf("%q lead, want the remaining controller", got)
		}
		b.stop()
		<-b.done
	})
}
