package controller

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// stuckAfter is how long a pass may be without any progress before the
// controller counts as stuck. A request ends after requestTimeout, also if the API
// server does not answer.
const stuckAfter = time.Minute

// health is what the probes ask. An unavailable API server makes no
// controller unhealthy: a restart does not bring it back.
type health struct {
	ready atomic.Bool
	// at is when the current pass last made progress, in Unix nanoseconds; zero
	// without a pass.
	at atomic.Int64
}

// progress records that a pass has begun or has made a request; rest, that it has ended.
func (h *health) progress() { h.at.Store(time.Now().UnixNano()) }
func (h *health) idle()     { h.at.Store(0) }

// stuck is for how long the current pass has made no progress.
func (h *health) stuck() time.Duration {
	at := h.at.Load()
	if at == 0 {
		return 0
	}
	return time.Since(time.Unix(0, at))
}

// serve begins to answer /metrics, /healthz and /readyz. Stop ends it.
func (c *controller) serve() (stop func(), err error) {
	if c.Listen == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("metrics and health: %w", err)
	}
	srv := &http.Server{Handler: c.handler(), ReadHeaderTimeout: 5 * time.Second}
	go srv.Serve(l)
	return func() { srv.Close() }, nil
}

// handler answers the probes of the kubelet, and Prometheus.
func (c *controller) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if d := c.health.stuck(); d > stuckAfter {
			http.Error(w, fmt.Sprintf("a pass has made no progress for %s", d.Round(time.Second)), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	// A controller that waits for the Lease is ready, too: it can take over at once.
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !c.health.ready.Load() {
			http.Error(w, "the API server has not been read yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
