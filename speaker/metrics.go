package speaker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of the loop; bgp, l2 and proxy have their own.
type metrics struct {
	passes   prometheus.Histogram
	failures prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		passes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "fanfare", Subsystem: "speaker", Name: "pass_duration_seconds",
			Help:    "Observed time from a snapshot to kernel and network brought in line with it.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "speaker", Name: "pass_failures_total",
			Help: "Passes that left something undone; each is tried again.",
		}),
	}
	r.MustRegister(m.passes, m.failures)
	return m
}

func (m *metrics) observe(took time.Duration, err error) {
	m.passes.Observe(took.Seconds())
	if err != nil {
		m.failures.Inc()
	}
}
