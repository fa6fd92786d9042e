package bgp

import "github.com/prometheus/client_golang/prometheus"

// metrics computes its values from a Server's Status when Prometheus asks. So they always agree
// with `fanfare status`, and the series of a session disappear with it.
type metrics struct {
	server *Server

	up, bfdUp, flaps, announced, leftOut, updates, routes *prometheus.Desc
}

func newMetrics(s *Server) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fanfare_bgp_"+name, help, labels, nil)
	}
	return &metrics{
		server: s,
		up: desc("session_up",
			"Whether the BGP session is established (1) or not (0). Observed.", "peer"),
		bfdUp: desc("bfd_up",
			"Whether BFD hears the router (1) or not (0); absent without BFD. Observed.", "peer"),
		flaps: desc("session_flaps_total",
			"How often the BGP session went down although this node did not close it. Observed.", "peer"),
		announced: desc("announced_prefixes",
			"Prefixes that are announced to the router now, 0 while the session is down. Observed: sent, not "+
				"necessarily accepted.", "peer"),
		leftOut: desc("left_out_prefixes",
			"Prefixes that cannot be announced to this router, for lack of a next hop or of the "+
				"address family. Observed.", "peer"),
		updates: desc("updates_sent_total",
			"UPDATE messages sent to the router. Observed.", "peer"),
		routes: desc("routes",
			"Prefixes that this node announces to all routers. Desired."),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.up, m.bfdUp, m.flaps, m.announced, m.leftOut, m.updates, m.routes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	st := m.server.Status()
	gauge(m.routes, float64(st.Routes))
	for _, s := range st.Sessions {
		gauge(m.up, oneIf(s.State == Established), s.Name)
		if s.BFD != nil {
			gauge(m.bfdUp, oneIf(s.BFD.Up()), s.Name)
		}
		counter(m.flaps, s.Flaps, s.Name)
		gauge(m.announced, float64(s.Advertised), s.Name)
		gauge(m.leftOut, float64(s.LeftOut), s.Name)
		counter(m.updates, s.Updates, s.Name)
	}
}

// oneIf is a boolean as Prometheus has it.
func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
