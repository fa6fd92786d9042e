package speaker

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// A port in use by another program is a reason of its Service's address of that family, if
// there is one, and needs attention.
func TestHealthPortTakenIsReported(t *testing.T) {
	d := plan.Decide(plan.Config{Node: "n1"}, plantest.Snapshot(t, []byte(plantest.HealthServices)))
	p := &passResult{
		desired: d, programmed: true, failedChecks: []healthcheck.Failure{{Check: d.Checks[0],
			Err: errors.New("taken")}, {Check: d.Checks[2], Err: errors.New("taken")}},
	}
	st := Status{Waiting: p.healthReasonsWithoutAddress()}
	var said []string
	for a := range d.Addresses.All() {
		st.Addresses = append(st.Addresses, p.address(a, bgp.Status{}))
		for _, r := range st.Addresses[len(st.Addresses)-1].Reasons {
			if r.Code == cluster.HealthPortTaken {
				said = append(said, r.Service+" "+a.Addr.String()+": "+r.Message)
			}
		}
	}
	for _, r := range st.Waiting {
		said = append(said, r.Service+": "+r.Message)
	}
	want := []string{
		"shop/a-ours 192.0.2.1: healthCheckNodePort 32001 over IPv4 is not served, and retried: taken",
		"shop/d-waits: healthCheckNodePort 32004 over IPv4 is not served, and retried: taken",
	}
	if !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
	attention := strings.Join(st.Attention(time.Now()), "\n")
	for _, port := range []string{"32001", "32004"} {
		if strings.Count(attention, port) != 1 {
			t.Errorf("%s is not once in\n%s", port, attention)
		}
	}
}

// A port in use by another program is retried, and served when it is free.
func TestHealthPortIsRetried(t *testing.T) { nstest.Run(t, healthPortIsRetried) }

func healthPortIsRetried(t *testing.T) {
	s := speakerWith(t, nil)
	s.result.Store(&passResult{ready: true})
	s.health = healthcheck.New(func() bool { return s.result.Load().upToDate() }, s.Log)
	defer s.health.Close()
	s.retry = backoff.NewExponentialBackOff()
	taken, err := net.Listen("tcp4", ":32001")
	if err != nil {
		t.Fatal(err)
	}
	d := plan.Decide(plan.Config{Node: "n1"}, plantest.Snapshot(t, []byte(plantest.HealthServices)))
	s.serveHealthChecks(t.Context(), d)
	if len(s.failedChecks) != 1 || s.failedChecks[0].Family != healthcheck.IPv4 {
		t.Fatalf("unanswered: %v", s.failedChecks)
	}
	now := time.Now()
	if at := s.nextPass(now, nil); !at.Before(s.recheckAt) || at.After(now.Add(time.Minute)) {
		t.Errorf("tried again %s from now", at.Sub(now))
	}
	taken.Close()
	s.serveHealthChecks(t.Context(), d)
	if len(s.failedChecks) != 0 {
		t.Fatalf("unanswered: %v", s.failedChecks)
	}
	if at := s.nextPass(now, nil); at != s.recheckAt {
		t.Errorf("tried again %s from now although nothing is left to try", at.Sub(now))
	}
	status := func(addr string) int {
		t.Helper()
		resp, err := http.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if four, six := status("127.0.0.1:32001"), status("[::1]:32001"); four != 200 || six != 503 {
		t.Errorf("%d over IPv4 and %d over IPv6, want 200 and 503", four, six)
	}
	s.result.Store(&passResult{ready: true, pendingSince: now.Add(-2 * lateThreshold)})
	if four := status("127.0.0.1:32001"); four != 503 {
		t.Errorf("%d although the kernel has not taken a change for long, want 503", four)
	}
}
