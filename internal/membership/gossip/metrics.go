package gossip

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	members        *prometheus.GaugeVec
	deaths         prometheus.Counter
	falsePositives prometheus.Counter
	rejected       prometheus.Counter
	replayed       prometheus.Counter
	dropped        prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "members", Name: name, Help: help,
		})
	}
	m := &metrics{
		members: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fanfare", Name: "members",
			Help: "Nodes by the state of their speakers: alive, left or dead.",
		}, []string{"state"}),
		deaths:         counter("deaths_total", "Nodes that stopped responding."),
		falsePositives: counter("false_positives_total", "Nodes that were reported dead and were alive."),
		rejected: counter("rejected_total",
			"Packets and connections rejected because they are from an address of no Node, or have an "+
				"unknown key, or none."),
		replayed: counter("replayed_total",
			"Packets rejected because they are copies, or were sent to an earlier speaker of this node."),
		dropped: counter("messages_dropped_total",
			"Messages of other speakers dropped because the queue was full."),
	}
	if r != nil {
		r.MustRegister(m.members, m.deaths, m.falsePositives, m.rejected, m.replayed, m.dropped)
	}
	return m
}

func (m *metrics) observe(v *View) {
	count := map[State]int{Alive: 0, Left: 0, Dead: 0}
	for _, n := range v.Members {
		count[n.State]++
	}
	for state, n := range count {
		m.members.WithLabelValues(state.String()).Set(float64(n))
	}
}
