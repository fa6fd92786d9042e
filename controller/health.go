package controller

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fanfare-lb/fanfare/internal/monitoring"
)

// stuckAfter is how long a pass may make no progress before the controller counts as stuck. A
// request ends after requestTimeout, even if the API server does not answer.
const stuckAfter = time.Minute

// health answers the probes. An unavailable API server does not make a controller unhealthy: a
// restart would not help.
type health struct {
	ready atomic.Bool
	// at is when the current pass last made progress, in Unix nanoseconds; zero
	// without a pass.
	at atomic.Int64
}

// progress records that a pass has begun or has made a request; rest, that it has ended.
func (h *health) progress() { h.at.Store(time.Now().UnixNano()) }
func (h *health) idle()     { h.at.Store(0) }

// stuck returns for how long the current pass has made no progress.
func (h *health) stuck() time.Duration {
	at := h.at.Load()
	if at == 0 {
		return 0
	}
	return time.Since(time.Unix(0, at))
}

// serve starts to answer /metrics, /healthz and /readyz. stop ends it.
func (c *controller) serve() (stop func(), err error) {
	s, err := monitoring.Serve(c.Monitoring, c.handler(), c.Log)
	if err != nil {
		return nil, err
	}
	return s.Close, nil
}

// handler answers the probes of the kubelet, and Prometheus.
func (c *controller) handler() monitoring.Handler {
	return monitoring.Handler{
		Metrics: promhttp.HandlerFor(c.Registry, promhttp.HandlerOpts{}),
		Healthy: func() string {
			if d := c.health.stuck(); d > stuckAfter {
				return fmt.Sprintf("a pass has made no progress for %s", d.Round(time.Second))
			}
			return ""
		},
		// A controller that waits for the Lease is also ready: it can take over at once.
		Ready: func() string {
			if !c.health.ready.Load() {
				return "the API server has not been read yet"
			}
			return ""
		},
	}
}
