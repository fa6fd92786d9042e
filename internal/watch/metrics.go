package watch

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of an API. All count observed events.
type metrics struct {
	events, lists *prometheus.CounterVec
	failingSince  *prometheus.GaugeVec
}

// newMetrics registers the metrics with r, unless r is nil. It fails if r has metrics of these names.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "fanfare", Subsystem: "watch", Name: name,
			Help: help}, []string{"resource"})
	}
	m := &metrics{
		events: counter("events_total", "Changes of objects that the API server told."),
		lists:  counter("lists_total", "Times that all objects were read: at the start, and after an outage."),
		failingSince: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fanfare", Subsystem: "watch", Name: "failing_since_timestamp_seconds",
			Help: "Since when the resource cannot be read from the API server, as Unix time; 0 while it can.",
		}, []string{"resource"}),
	}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.events), r.Register(m.lists), r.Register(m.failingSince))
}

// counters are the metrics of one resource.
type counters struct {
	events, lists prometheus.Counter
	since         prometheus.Gauge
}

// of returns the metrics of one resource, and creates them at the first call.
func (m *metrics) of(r resource) counters {
	name := r.String()
	return counters{m.events.WithLabelValues(name), m.lists.WithLabelValues(name), m.failingSince.WithLabelValues(name)}
}

// failing sets since when the resource fails; the zero time: it does not.
func (c counters) failing(since time.Time) {
	if since.IsZero() {
		c.since.Set(0)
		return
	}
	c.since.Set(float64(since.UnixMilli()) / 1000)
}
