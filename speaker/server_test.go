package speaker

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/monitoring"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

// A kernel is a forwarder whose calls take as long as the test decides.
type kernel struct {
	intact
	calls chan error
}

func (k *kernel) Set(context.Context, proxy.State) error { return <-k.calls }

type fixedSource struct{ snap *cluster.Snapshot }

func (s fixedSource) Snapshot() *cluster.Snapshot { return s.snap }
func (fixedSource) Changed() <-chan struct{}      { return nil }

// probes returns the responses of /healthz and /readyz.
func (s *server) probes() (health, ready int, why string) {
	h := monitoring.Handler{Healthy: s.unhealthy, Ready: s.unready}
	get := func(path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	return get("/healthz"), get("/readyz"), s.unhealthy() + s.unready()
}

// Only a hanging pass is unhealthy. Waiting for the API server is not, nor is a kernel that
// rejects every change, which makes the speaker unready, nor one that refuses an address.
func TestHealthEndpoints(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &server{Options: Options{Config: plan.Config{Node: "n1"}, Version: "v1"}, began: time.Now()}
		expect := func(when string, health, ready int, reason string) {
			t.Helper()
			bubble.Wait()
			if h, r, why := s.probes(); h != health || r != ready || !strings.Contains(why, reason) {
				t.Errorf("%s: healthy %d, want %d; ready %d, want %d; %q, want %q in it", when, h, health, r, ready,
					why, reason)
			}
		}
		expect("at the start", 200, 503, "waiting since 2000-01-01T00:00:00Z for the API server")
		time.Sleep(time.Hour)
		expect("the API server is away", 200, 503, "waiting since 2000-01-01T00:00:00Z for the API server")
		if st := s.status(); st.Node != "n1" || st.Ready || !strings.Contains(st.Error, "for the API server") {
			t.Errorf("status %+v", st)
		}
		s.opened.Store(new(time.Now()))
		expect("it is read", 200, 503, "the kernel is not programmed yet")
		time.Sleep(hangThreshold)
		expect("the start takes long", 200, 503, "")
		time.Sleep(time.Second)
		expect("the start hangs", 503, 503, "the start hangs: it began at 2000-01-01T01:00:00Z")

		k := &kernel{calls: make(chan error)}
		sp := speakerWith(t, k)
		sp.publish(nil, nil)
		s.speaker.Store(sp)
		expect("started", 200, 503, "the kernel is not programmed yet")
		pass := func() { _ = sp.runPass(t.Context()) } // its error is in the status
		go pass()
		expect("the kernel works", 200, 503, "")
		time.Sleep(hangThreshold)
		expect("the kernel takes long", 200, 503, "")
		time.Sleep(time.Second)
		expect("the kernel hangs", 503, 503, "a pass hangs: it began at")
		k.calls <- nil
		expect("it answers at last", 200, 200, "")
		time.Sleep(time.Hour)
		expect("nothing happens", 200, 200, "")
		for range 5 {
			go pass()
			k.calls <- errors.New("no")
			time.Sleep(hangThreshold)
		}
		expect("it refuses everything", 200, 503, "a change has been waiting since")
		expect("and its error", 200, 503, "forward: no")
		go pass()
		k.calls <- nil
		expect("it takes it", 200, 200, "")
		for range 5 {
			go pass()
			k.calls <- &proxy.Refused{Refusals: []proxy.Refusal{
				{VIP: &proxy.VIP{Addr: netip.MustParseAddr("192.0.2.1")}, Err: errors.New("too large")}}}
			k.calls <- nil // all others
			time.Sleep(hangThreshold)
		}
		expect("it refuses an address", 200, 200, "")
	})
}

// speakerWith has the given kernel and no routers.
func speakerWith(t *testing.T, k forwarder) *speaker {
	o := Options{
		Config: plan.Config{Node: "n1"}, RunDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Registry: prometheus.NewRegistry(),
	}
	s := &speaker{
		Options: o, source: fixedSource{&cluster.Snapshot{}}, health: healthcheck.New(nil, o.Log),
		bgp: bgp.New(bgp.Options{Logger: o.Log}), recheckAt: time.Now().Add(24 * time.Hour),
	}
	s.decider, s.state, s.metrics = plan.NewDecider(o.Config), rundir.New(o.RunDir), newMetrics(o.Registry)
	s.bgpPath = newBGPPath(&bgpAnnouncer{server: s.bgp}, time.Second)
	s.layer2 = newLayer2(o, nil, s.state)
	s.pass = newPass(k, o.Log, s.bgpPath, s.layer2.path)
	return s
}

// A speaker that waits for the API server serves its status, and stops without an error.
func TestStopWhileWaiting(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := make(chan error, 1)
	o := Options{
		Config: plan.Config{Node: "n1"}, RunDir: dir, Log: slog.New(slog.DiscardHandler),
		Registry: prometheus.NewRegistry(), Version: "v1",
	}
	o.Open = func(ctx context.Context) (cluster.Source, func() bool, error) {
		st, err := FetchStatus(ctx, dir)
		if err == nil && !strings.Contains(st.Error, "waiting since") {
			err = errors.New(st.Error)
		}
		asked <- err
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, t.Context(), o) }()
	if err := <-asked; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	o.Open = func(context.Context) (cluster.Source, func() bool, error) { return nil, nil, http.ErrNotSupported }
	if err := Run(t.Context(), t.Context(), o); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("what cannot be opened: %v", err)
	}
}
