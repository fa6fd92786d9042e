package speaker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the loop. Packages bgp, l2 and proxy have their own.
type metrics struct {
	passes   prometheus.Histogram
	phases   *prometheus.HistogramVec
	failures prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		passes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "fanfare", Subsystem: "speaker", Name: "pass_duration_seconds",
			Help: "Observed time from a snapshot to kernel and network brought in line with it. In nftables mode, " +
				"only the first one, which loads everything, should take more than 0.25 of CPU time.",
			Buckets: passBuckets,
		}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "fanfare", Subsystem: "speaker", Name: "pass_phase_duration_seconds",
			Help: "Observed time of a phase of passes: decide, shrink (withdraw), forward (program the " +
				"kernel), or grow (announce).",
			Buckets: passBuckets,
		}, []string{"phase"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "speaker", Name: "pass_failures_total",
			Help: "Passes that left something undone; each is tried again.",
		}),
	}
	r.MustRegister(m.passes, m.phases, m.failures)
	return m
}

// passBuckets are in seconds. One ends at 0.25, where a pass that changes all of 10,000 addresses should.
var passBuckets = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
	10}

// The phases of a pass, in their order.
const (
	phaseDecide  = "decide"
	phaseShrink  = "shrink"
	phaseForward = "forward"
	phaseGrow    = "grow"
)

// observePhase observes a phase that has ended, and returns when it did.
func (m *metrics) observePhase(phase string, began time.Time) time.Time {
	now := time.Now()
	if m != nil {
		m.phases.WithLabelValues(phase).Observe(now.Sub(began).Seconds())
	}
	return now
}

func (m *metrics) observe(took time.Duration, err error) {
	m.passes.Observe(took.Seconds())
	if err != nil {
		m.failures.Inc()
	}
}
