package l2

import "github.com/prometheus/client_golang/prometheus"

// metrics are the counters of an Announcer. All are observed.
type metrics struct {
	packets    *prometheus.CounterVec
	counters   map[*protocol]*[numVerdicts]prometheus.Counter // the children of packets
	gratuitous *prometheus.CounterVec
	probes     *prometheus.CounterVec
	conflicts  *prometheus.CounterVec
	sendErrors *prometheus.CounterVec
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "fanfare", Subsystem: "l2", Name: name,
			Help: help}, append([]string{"protocol"}, labels...))
	}
	m := &metrics{
		packets: counter("packets_total",
			"ARP and Neighbor Discovery packets received about addresses of this node, by verdict. Observed.",
			"verdict"),
		gratuitous: counter("gratuitous_sent_total",
			"Gratuitous ARP packets and unsolicited neighbour advertisements sent. Observed."),
		probes: counter("probes_sent_total", "Probes sent for addresses that another host may have. Observed."),
		conflicts: counter("conflicts_total",
			"Packets received in which a host other than a speaker claimed an address of this node. Observed."),
		sendErrors: counter("send_errors_total", "Packets that could not be sent on the interface. Observed."),
		counters:   make(map[*protocol]*[numVerdicts]prometheus.Counter),
	}
	for _, p := range []*protocol{arpProtocol, ndpProtocol} {
		m.counters[p] = new([numVerdicts]prometheus.Counter)
		for v := range numVerdicts {
			m.counters[p][v] = m.packets.WithLabelValues(p.name, v.String())
		}
		for _, vec := range []*prometheus.CounterVec{m.gratuitous, m.probes, m.conflicts, m.sendErrors} {
			vec.WithLabelValues(p.name) // exported as 0 from the beginning
		}
	}
	return m
}

func (m *metrics) count(p *packetSocket, v verdict) { m.counters[p.key.protocol][v].Inc() }

// A collector exports the number of addresses by phase.
type collector struct{ phases *phases }

var addressesDesc = prometheus.NewDesc("fanfare_l2_addresses",
	"Addresses that this node should answer for, by phase; it answers for those Held. Observed.", []string{"phase"},
	nil)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) { ch <- addressesDesc }

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	phases := make(map[Phase]int)
	c.phases.mu.Lock()
	for _, x := range c.phases.addresses {
		phases[x.phase]++
	}
	c.phases.mu.Unlock()
	for _, p := range []Phase{Held, Probing, Waiting, Conflicting} {
		ch <- prometheus.MustNewConstMetric(addressesDesc, prometheus.GaugeValue, float64(phases[p]), string(p))
	}
}
