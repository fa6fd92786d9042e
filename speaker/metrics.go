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
			Help:    "Observed time from a snapshot to kernel and network brought in line with it. Only the first one, which loads everything, should take more than 0.02.",
			Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
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
