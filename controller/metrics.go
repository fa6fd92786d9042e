package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// metrics are the controller's own metrics. The metrics of watches are in internal/watch.
type metrics struct {
	leading  prometheus.Gauge
	passes   prometheus.Histogram
	failures prometheus.Counter
	writes   *prometheus.CounterVec
	throttle prometheus.Histogram
	assigned *prometheus.GaugeVec
	refused  *prometheus.GaugeVec
}

// newMetrics registers the metrics with r. It panics if r has metrics of these names already.
func newMetrics(r prometheus.Registerer) *metrics {
	const ns, sub = "fanfare", "controller"
	m := &metrics{
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "leading", Help: "Whether this controller is the leader.",
		}),
		passes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "pass_duration_seconds",
			Help:    "Observed time from a snapshot to the API server brought in line with it.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "pass_failures_total",
			Help: "Passes that left something undone because of an error; each is tried again.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "writes_total",
			Help: "Services updated, claims released and nodes preferred, by result: ok, stale (the API server knew " +
				"more than the snapshot) or error.",
		}, []string{"what", "result"}),
		throttle: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "throttle_duration_seconds",
			Help:    "Observed time for which requests wait for this controller's own rate limit.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		assigned: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "addresses_assigned",
			Help: "Desired number of addresses that Services have, by pool; empty for those whose pool is gone.",
		}, []string{"pool"}),
		refused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "refusals",
			Help: "Desired number of reasons for which Services have no address, fewer than they asked for, or a " +
				"doubtful one, by code.",
		}, []string{"code"}),
	}
	r.MustRegister(m.leading, m.passes, m.failures, m.writes, m.throttle, m.assigned, m.refused)
	return m
}

// observe counts a pass. A pass with several errors is one failure.
func (m *metrics) observe(took time.Duration, errs []error) {
	m.passes.Observe(took.Seconds())
	if len(errs) != 0 {
		m.failures.Inc()
	}
}

// wrote counts a write of one kind, such as update, by its result.
func (m *metrics) wrote(what string, err error) {
	result := "ok"
	switch {
	case errors.Is(err, errStale):
		result = "stale"
	case err != nil:
		result = "error"
	}
	m.writes.WithLabelValues(what, result).Inc()
}

// count sets the gauges of the allocation.
func (m *metrics) count(snap *cluster.Snapshot, assignments []cluster.Assignment, reasons []cluster.Reason) {
	pools := map[string]int{}
	for _, p := range snap.Pools {
		pools[p.Name] = 0
	}
	for len(assignments) > 0 {
		pool := assignments[0].Pool // of most that follow
		n := slices.IndexFunc(assignments, func(a cluster.Assignment) bool { return a.Pool != pool })
		if n < 0 {
			n = len(assignments)
		}
		pools[pool] += n
		assignments = assignments[n:]
	}
	m.assigned.Reset()
	for pool, n := range pools {
		m.assigned.WithLabelValues(pool).Set(float64(n))
	}
	codes := map[cluster.Code]int{}
	for _, r := range reasons {
		codes[r.Code]++
	}
	m.refused.Reset()
	for code, n := range codes {
		m.refused.WithLabelValues(string(code)).Set(float64(n))
	}
}

// A throttle is a rate limiter that measures how long requests wait.
type throttle struct {
	flowcontrol.RateLimiter
	waited prometheus.Histogram
}

// newThrottle returns the rate limiter that all requests of the controller share.
func newThrottle(m *metrics) throttle {
	return throttle{flowcontrol.NewTokenBucketRateLimiter(requestRate, requestBurst), m.throttle}
}

// Wait is called before each request.
func (t throttle) Wait(ctx context.Context) error {
	began := time.Now()
	err := t.RateLimiter.Wait(ctx)
	t.waited.Observe(time.Since(began).Seconds())
	return err
}
