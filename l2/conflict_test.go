package l2

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// An address that another host uses is not announced, and the status names the host. It is
// held once it is free.
func TestProbe(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "printer", "client")
		n, printer := start(t, hosts[0]), hosts[1]
		printer.Addr("eth0", "10.0.0.100/24", "fd00::100/64")
		hosts[0].Route("0.0.0.0/0", "10.0.0.2", "")
		talk(t, hosts[0], "10.0.0.2")
		there := macOn(t, printer, "eth0")
		listener := listen(t, hosts[2], "eth0")
		all := []Address{{Addr: ip("10.0.0.100"), Probe: true}, {Addr: ip("10.0.0.101"), Probe: true},
			{Addr: ip("fd00::100"), Probe: true}, {Addr: ip("fd00::101"), Probe: true}}
		if got := n.set(all...); len(got) != 0 {
			t.Errorf("held before any probe: %v", got)
		}
		if got := n.status("10.0.0.101"); got.Phase != Probing ||
			got.Reason != "probing on eth0, to detect another host that has it" {
			t.Errorf("status %+v", got)
		}
		n.awaitHeld("10.0.0.101", "fd00::101")
		for _, a := range []string{"10.0.0.100", "fd00::100"} {
			until(t, func() string {
				if s := n.status(a); s.Conflict == nil || s.Conflict.MAC != there || s.Conflict.Interface != "eth0" ||
					s.Conflict.Others != 1 || s.Conflict.Count < 2 {
					return fmt.Sprintf("status %+v with %v, want a second conflict with %s", s, s.Conflict, there)
				}
				return ""
			})
		}
		until(t, func() string {
			if s := n.status("10.0.0.100"); s.Phase == Conflicting &&
				!strings.HasPrefix(s.Reason, there.String()+
					" answers for it on eth0, which is 10.0.0.2, a gateway of this node, and for 1 more addresses of "+
					"the pools: if it is a router") {
				return "reason " + s.Reason
			}
			return ""
		})
		inside(t, printer, func() error {
			l, err := netlink.LinkByName("eth0")
			for _, text := range []string{"10.0.0.100/24", "fd00::100/64"} {
				if err == nil {
					var a *netlink.Addr
					a, err = netlink.ParseAddr(text)
					if err == nil {
						err = netlink.AddrDel(l, a)
					}
				}
			}
			return err
		})
		n.awaitHeld("10.0.0.100", "10.0.0.101", "fd00::100", "fd00::101")

		// No address was announced before three probes.
		asked := make(map[netip.Addr]int)
		for announced := 0; announced < 2; {
			p := listener.next(func(p packet) bool { return p.from == macOn(t, hosts[0], "eth0") })
			switch a := p.target; {
			case p.tentative: // for hosts that wait
			case p.op == opRequest && p.sender.IsUnspecified():
				asked[a]++
			case p.sender == ip("10.0.0.101"), p.sender == ip("fd00::101"):
				if announced++; asked[p.sender] < 3 {
					t.Errorf("%s was announced after %d probes", p.sender, asked[p.sender])
				}
			}
		}
	})
}

// Probing starts again when the interface's hardware address changes, and when another
// interface takes its place.
func TestProbeRestartsOnNewInterface(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		host, client := nstest.New(t, "node"), nstest.New(t, "client")
		both := []Address{{Addr: ip("10.0.0.100"), Probe: true}, {Addr: ip("fd00::100"), Probe: true}}
		connect := func() *station {
			nstest.Link(t, host, "eth0", client, "eth0")
			listener := listen(t, client, "eth0")
			host.Addr("eth0", "10.0.0.1/24", "fd00::1/64")
			return listener
		}
		n, pause := start(t, host), defaultDelays(0)[probe2]
		hasten := func(d time.Duration) {
			n.phases.mu.Lock()
			defer n.phases.mu.Unlock()
			n.phases.schedule.delays[probe2] = d
			n.phases.schedule.queues[probe2] = nil // These timers are stale, and pop would wait for them.
		}
		hasten(time.Hour)
		listener := connect()
		awaitCarriers(t, host)
		asked := func() {
			t.Helper()
			here := macOn(t, host, "eth0")
			for _, a := range both {
				listener.next(func(p packet) bool { return p == forget(probe(a.Addr, here), p) })
				until(t, func() string {
					if s := n.status(a.Addr.String()); s.Phase != Probing {
						return fmt.Sprintf("status %+v", s)
					}
					return ""
				})
			}
		}
		n.set(both...)
		asked()
		link(t, host, "eth0", func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0xaa, 1})
		})
		asked()
		link(t, host, "eth0", netlink.LinkDel)
		for _, a := range both {
			until(t, func() string {
				if s := n.status(a.Addr.String()); s.Phase != Waiting {
					return fmt.Sprintf("status %+v", s)
				}
				return ""
			})
		}
		hasten(pause)
		listener = connect()
		n.awaitHeld("10.0.0.100", "fd00::100")
		here, count, announced := macOn(t, host, "eth0"), map[netip.Addr]int{}, map[netip.Addr]bool{}
		for len(announced) < len(both) {
			p := listener.next(func(p packet) bool { return p.from == here })
			switch {
			case p.tentative: // for hosts that wait
			case p.op == opRequest && p.sender.IsUnspecified():
				count[p.target]++
			case p.sender == both[0].Addr, p.sender == both[1].Addr:
				announced[p.sender] = true
				if count[p.sender] != 3 {
					t.Errorf("%s was announced after %d probes", p.sender, count[p.sender])
				}
			}
		}
	})
}

// A host that forges claims of an address does not take it from the node, and neither fills
// the log nor keeps the speaker busy: the node announces it once in ten seconds, and answers
// requests all the time.
func TestForgedClaimsKeepAddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "intruder")
		var log strings.Builder // written with the Announcer's mu held
		n := startWith(t, hosts[0], Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		intruder, here := listen(t, hosts[1], "eth0"), macOn(t, hosts[0], "eth0")
		for s := again1; s < numStages; s++ {
			n.phases.schedule.delays[s] = time.Hour // what follows are defences
		}
		n.set(addresses("10.0.0.100", "fd00::100")...)
		n.awaitHeld("10.0.0.100", "fd00::100")
		unsolicited := func(p packet) bool {
			return p.from == here && p.to != intruder.mac && p.op == announcement(p.sender, here).op
		}
		first := map[netip.Addr]bool{} // the first announcement of each is no defence
		intruder.next(func(p packet) bool {
			if p.sender == ip("10.0.0.100") || p.sender == ip("fd00::100") {
				first[p.sender] = first[p.sender] || unsolicited(p)
			}
			return first[ip("10.0.0.100")] && first[ip("fd00::100")]
		})
		for _, x := range []struct{ vip, host string }{{"10.0.0.100", "10.0.0.2"}, {"fd00::100", "fd00::2"}} {
			const forged = 500
			for range forged {
				intruder.send(announcement(ip(x.vip), intruder.mac))
			}
			intruder.ask(x.vip, x.host)
			defences := 0
			intruder.next(func(p packet) bool {
				if p.sender == ip(x.vip) && unsolicited(p) {
					defences++
				}
				return p.op == opReply && p.sender == ip(x.vip) && p.to == intruder.mac
			})
			if s := n.status(x.vip); s.Phase != Held || s.Conflict == nil || s.Conflict.Count != forged ||
				defences != 1 {
				t.Errorf("%s: %d defences, status %+v with %v", x.vip, defences, s, s.Conflict)
			}
		}
		n.phases.mu.Lock()
		defer n.phases.mu.Unlock()
		if lines := strings.Count(log.String(), "address conflict"); lines != 2 {
			t.Errorf("%d lines for two addresses in the log", lines)
		}
	})
}

// Another host claims a held address that yields: the first conflict is defended by one
// announcement; on the next one the address is given up until a probe finds it free. A
// speaker may claim it without a conflict.
func TestConflict(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "intruder")
		n, intruder, here := start(t, hosts[0]), listen(t, hosts[1], "eth0"), macOn(t, hosts[0], "eth0")
		n.phases.schedule.delays[retry1] = time.Hour // the first retry never comes, later ones do
		both := []Address{{Addr: ip("10.0.0.100"), Yield: true}, {Addr: ip("fd00::100"), Yield: true}}
		n.set(both...)
		for announced := 0; announced < 12; announced++ { // the burst at the beginning
			intruder.next(func(p packet) bool {
				return p == announcement(both[0].Addr, here) || p.from == here && p.sender == both[1].Addr
			})
		}
		for _, a := range both {
			ours := func(p packet) bool {
				return p.from == here && p.sender == a.Addr && p.op == announcement(a.Addr, here).op
			}
			intruder.send(announcement(a.Addr, intruder.mac))
			intruder.next(ours)
			if s := n.status(a.Addr.String()); s.Phase != Held || s.Reason != "" || s.Conflict == nil ||
				s.Conflict.MAC != intruder.mac || s.Conflict.Count != 1 {
				t.Errorf("after one: %+v", s)
			}
			until(t, func() string {
				s := n.status(a.Addr.String())
				if s.Phase == Conflicting && s.Conflict.Count >= 2 {
					return ""
				}
				// One conflict is enough within ten seconds of the first.
				intruder.send(announcement(a.Addr, intruder.mac))
				return fmt.Sprintf("after two: %+v", s)
			})
		}
		if got := n.phases.held(); len(got) != 0 {
			t.Errorf("still held: %v", got)
		}
		// The host turns out to be a speaker.
		if got := n.become(State{Addresses: both, Speakers: []MAC{intruder.mac}}); len(got) != 2 {
			t.Errorf("held %v: %+v", got, n.Status())
		}
		for range 3 {
			intruder.send(announcement(both[0].Addr, intruder.mac))
			intruder.send(announcement(both[1].Addr, intruder.mac))
		}
		// The packets sent before were handled when this is answered.
		intruder.ask("10.0.0.100", "10.0.0.2")
		intruder.answer("10.0.0.100")
		intruder.ask("fd00::100", "fd00::2")
		intruder.answer("fd00::100")
		n.awaitHeld("10.0.0.100", "fd00::100")

		// After the second conflict the address is soon probed again, and it is free.
		n.become(State{Addresses: both})
		until(t, func() string {
			intruder.send(announcement(both[0].Addr, intruder.mac))
			if s := n.status("10.0.0.100"); s.Conflict == nil || s.Conflict.Count < 2 {
				return fmt.Sprintf("after two more: %+v", s)
			}
			return ""
		})
		intruder.next(func(p packet) bool {
			return p.op == opRequest && p.sender.IsUnspecified() && p.target == both[0].Addr
		})
		n.awaitHeld("10.0.0.100", "fd00::100")
	})
}

// A node of the cluster causes no conflict, even if Speakers lacks its MAC: the kernel's
// neighbour table has it under the node's address. A removed node does.
func TestConflictWithNode(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "other")
		n, other := start(t, hosts[0]), listen(t, hosts[1], "eth0")
		for s := retry1; s <= retry5; s++ {
			n.phases.schedule.delays[s] = time.Hour
		}
		resolve(t, hosts[0], "10.0.0.2", other.mac)
		resolve(t, hosts[0], "fd00::2", other.mac)
		want := State{
			Addresses: addresses("10.0.0.100", "fd00::100"), Nodes: []netip.Addr{ip("10.0.0.2"), ip("fd00::2")},
		}
		n.become(want)
		conflicts := func(protocol string) float64 {
			return testutil.ToFloat64(n.metrics.conflicts.WithLabelValues(protocol))
		}
		for _, x := range []struct {
			vip, host, protocol string
		}{{"10.0.0.100", "10.0.0.2", "arp"}, {"fd00::100", "fd00::2", "ndp"}} {
			for range 3 {
				other.send(announcement(ip(x.vip), other.mac))
			}
			until(t, func() string {
				// Read the counter first: a status from before the first conflict proves
				// nothing.
				many := conflicts("arp")
				if s := n.status(x.vip); many == 0 || s.Phase != Held || s.Conflict != nil {
					return fmt.Sprintf("status %+v after %.0f conflicts", s, many)
				}
				return ""
			})
			before := conflicts(x.protocol)
			for range 3 {
				other.send(announcement(ip(x.vip), other.mac))
			}
			// The packets sent before were handled when this is answered.
			other.ask(x.vip, x.host)
			other.answer(x.vip)
			if after := conflicts(x.protocol); after != before {
				t.Errorf("%s: %.0f conflicts with a node that is known", x.vip, after-before)
			}
		}
		n.become(State{Addresses: []Address{{Addr: ip("10.0.0.100"), Yield: true}}})
		until(t, func() string {
			other.send(announcement(ip("10.0.0.100"), other.mac))
			if s := n.status("10.0.0.100"); s.Phase != Conflicting {
				return fmt.Sprintf("status %+v", s)
			}
			return ""
		})
	})
}
