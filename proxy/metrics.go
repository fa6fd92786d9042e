package proxy

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// metrics are a Proxy's metrics for Prometheus. They describe what the kernel holds, not the wanted
// State.
type metrics struct {
	elements     prometheus.Gauge
	vips         prometheus.Gauge
	transactions prometheus.Histogram
	dumps        prometheus.Counter
	retries      prometheus.Counter
	repairs      prometheus.Counter
	crashes      prometheus.Counter
	flows        prometheus.Counter
	flowErrors   prometheus.Counter
	obstacles    *prometheus.GaugeVec
	looks        prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: name, Help: help,
		})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: name, Help: help,
		})
	}
	m := &metrics{
		elements: gauge("elements", "Elements in the sets and maps of table inet fanfare, as last written."),
		vips:     gauge("vips", "Addresses that the kernel forwards, as last written."),
		transactions: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "transaction_duration_seconds",
			Help:    "Time that the kernel took for transactions of nftables that succeeded.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 9), // 10 µs to 0.65 s
		}),
		dumps: counter("dumps_total", "Times that the whole table was read from the kernel."),
		retries: counter("retries_total", "Transactions that were repeated because the kernel held "+
			"something else than expected."),
		repairs: counter("repairs_total", "Times that the table differed from what had been "+
			"written, and was repaired."),
		crashes: counter("nft_crashes_total",
			"Times that nft crashed, as old versions do at tables that newer ones have written."),
		flows:      counter("conntrack_deleted_total", "Conntrack entries deleted because a change made them wrong."),
		flowErrors: counter("conntrack_errors_total", "Failures to list or delete conntrack entries."),
		obstacles: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "obstacles",
			Help: "Things on this node that are in the way of traffic to VIPs, as last seen, by code.",
		}, []string{"code"}),
		looks: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "look_duration_seconds",
			Help:    "Time that it took to look for obstacles.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 7), // 1 ms to 4 s
		}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.elements, m.vips, m.transactions, m.dumps, m.retries, m.repairs,
		m.crashes, m.flows, m.flowErrors, m.obstacles, m.looks} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// count counts obstacles by code. Every code has a series.
func (m *metrics) count(obstacles []obstacle.Obstacle) {
	for _, code := range obstacle.Codes {
		n := 0
		for _, o := range obstacles {
			if o.Code == code {
				n++
			}
		}
		m.obstacles.WithLabelValues(string(code)).Set(float64(n))
	}
}
