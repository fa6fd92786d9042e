package l2

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// The metrics count the packets on the link.
func TestMetrics(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		r := prometheus.NewPedanticRegistry()
		n := startWith(t, hosts[0], Options{Registerer: r})
		listener, here := listen(t, hosts[1], "eth0"), macOn(t, hosts[0], "eth0")
		n.set(append(addresses("10.0.0.100", "10.9.0.1"), Address{Addr: ip("fd00::100"), Probe: true})...)
		n.awaitHeld("10.0.0.100", "fd00::100")
		for announced := map[netip.Addr]int{}; announced[ip("10.0.0.100")] < 6 || announced[ip("fd00::100")] < 6; {
			announced[listener.next(func(p packet) bool {
				return p == forget(announcement(p.sender, here), p)
			}).sender]++
		}
		for range 3 {
			listener.ask("10.0.0.100", "10.0.0.2")
			listener.answer("10.0.0.100")
		}
		listener.ask("fd00::100", "fd00::2")
		listener.answer("fd00::100")
		listener.send(packet{
			op: opRequest, from: listener.mac, to: broadcast, sender: ip("224.0.0.1"), target: ip("10.0.0.100"),
		})
		listener.send(announcement(ip("10.0.0.100"), listener.mac))
		listener.next(func(p packet) bool { return p == announcement(ip("10.0.0.100"), here) }) // the defence
		var want strings.Builder
		for _, m := range []struct {
			name, help, labels string
			value              int
		}{
			{"fanfare_l2_addresses", "", `phase="Conflicting"`, 0},
			{"", "", `phase="Held"`, 2}, {"", "", `phase="Probing"`, 0}, {"", "", `phase="Waiting"`, 1},
		} {
			if m.name != "" {
				fmt.Fprintf(&want, "# HELP %s Addresses that this node should answer for, by phase; it answers for "+
					"those Held. Observed.\n# TYPE %s gauge\n", m.name, m.name)
			}
			fmt.Fprintf(&want, "fanfare_l2_addresses{%s} %d\n", m.labels, m.value)
		}
		if err := testutil.GatherAndCompare(r, strings.NewReader(want.String()), "fanfare_l2_addresses"); err != nil {
			t.Error(err)
		}
		for _, m := range []struct {
			c    *prometheus.CounterVec
			with []string
			want float64
		}{
			{n.metrics.packets, []string{"arp", "answered"}, 3}, {n.metrics.packets, []string{"ndp", "answered"}, 1},
			{n.metrics.packets, []string{"arp", "malformed"}, 1}, {n.metrics.packets, []string{"arp", "conflict"}, 1},
			{n.metrics.conflicts, []string{"arp"}, 1}, {n.metrics.conflicts, []string{"ndp"}, 0},
			{n.metrics.probes, []string{"ndp"}, 3}, {n.metrics.probes, []string{"arp"}, 0},
			{n.metrics.sendErrors, []string{"arp"}, 0},
			// one before the probes are over
			{n.metrics.gratuitous, []string{"arp"}, 13}, {n.metrics.gratuitous, []string{"ndp"}, 7},
		} {
			until(t, func() string { // counted after it was sent
				if got := testutil.ToFloat64(m.c.WithLabelValues(m.with...)); got != m.want {
					return fmt.Sprintf("%v: %v, want %v", m.with, got, m.want)
				}
				return ""
			})
		}
		if problems, err := testutil.GatherAndLint(r); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
	})
}
