package gossip

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	members   *prometheus.GaugeVec
	deaths    prometheus.Counter
	alarms    prometheus.Counter
	strangers prometheus.Counter
	lost      prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "fanfare", Subsystem: "members", Name: name, Help: help})
	}
	m := &metrics{
		members: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fanfare", Name: "members",
			Help: "Nodes whose speakers were heard of, by what became of them: alive, left or dead.",
		}, []string{"state"}),
		deaths:    counter("deaths_total", "Nodes that were not heard of any more."),
		alarms:    counter("false_alarms_total", "Nodes that somebody took for dead, and that were not."),
		strangers: counter("strangers_total", "Packets and connections refused because they were under no key of ours."),
		lost:      counter("messages_lost_total", "Messages of other speakers that nobody read in time."),
	}
	if r != nil {
		r.MustRegister(m.members, m.deaths, m.alarms, m.strangers, m.lost)
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
