package l2

import "github.com/prometheus/client_golang/prometheus"

// metrics are what an Announcer counts. All of them are observed.
type metrics struct {
	packets    *prometheus.CounterVec
	counters   map[*protocol]*[numVerdicts]prometheus.Counter // those in packets
	gratuitous *prometheus.CounterVec
	probes     *prometheus.CounterVec
	conflicts  *prometheus.CounterVec
	unsent     *prometheus.CounterVec
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "fanfare", Subsystem: "l2", Name: name, Help: help}, append([]string{"protocol"}, labels...))
	}
	m := &metrics{
		packets: counter("packets_total",
			"Packets of ARP and Neighbor Discovery that came in and were about addresses of ours, or nearly, by what became of them. Observed.", "verdict"),
		gratuitous: counter("gratuitous_sent_total", "Gratuitous ARP packets and unsolicited neighbour advertisements sent. Observed."),
		probes:     counter("probes_sent_total", "Packets sent that ask whether somebody else has an address. Observed."),
		conflicts:  counter("conflicts_total", "Packets by which somebody else, no speaker, claimed an address of ours. Observed."),
		unsent:     counter("unsent_total", "Packets that the interface did not take. Observed."),
		counters:   make(map[*protocol]*[numVerdicts]prometheus.Counter),
	}
	for _, p := range []*protocol{arpProtocol, ndpProtocol} {
		m.counters[p] = new([numVerdicts]prometheus.Counter)
		for v := range numVerdicts {
			m.counters[p][v] = m.packets.WithLabelValues(p.name, v.String())
		}
		for _, vec := range []*prometheus.CounterVec{m.gratuitous, m.probes, m.conflicts, m.unsent} {
			vec.WithLabelValues(p.name) // so that it is there, and 0
		}
	}
	return m
}

func (m *metrics) count(p *port, v verdict) { m.counters[p.key.protocol][v].Inc() }

// A collector reports what an Announcer has counted, and its Status when asked.
type collector struct{ announcer *Announcer }

var addressesDesc = prometheus.NewDesc("fanfare_l2_addresses",
	"Addresses that this node shall answer for, by how far they have come; those Held are answered for. Observed.", []string{"phase"}, nil)

func (c *collector) vecs() []*prometheus.CounterVec {
	m := c.announcer.metrics
	return []*prometheus.CounterVec{m.packets, m.gratuitous, m.probes, m.conflicts, m.unsent}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- addressesDesc
	for _, v := range c.vecs() {
		v.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, v := range c.vecs() {
		v.Collect(ch)
	}
	phases := c.announcer.phases()
	for _, p := range []Phase{Held, Probing, Waiting, Conflicting} {
		ch <- prometheus.MustNewConstMetric(addressesDesc, prometheus.GaugeValue, float64(phases[p]), string(p))
	}
}

// phases counts addresses.
func (a *Announcer) phases() map[Phase]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := make(map[Phase]int)
	for _, x := range a.addresses {
		n[x.phase]++
	}
	return n
}
