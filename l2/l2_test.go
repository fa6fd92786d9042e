package l2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Hosts resolve held addresses and keep them reachable by unicast solicitations (RFC 4861
// §7.3). A removed address no longer resolves.
func TestResolve(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		n, client := start(t, hosts[0]), hosts[1]
		here := macOn(t, hosts[0], "eth0")
		client.Sysctl("ipv4.neigh.eth0.retrans_time_ms", "200") // resolution fails sooner
		client.Sysctl("ipv6.neigh.eth0.retrans_time_ms", "200")
		hosts[0].Forward() // like a node: the kernel would forward packets to these addresses
		both := []string{"10.0.0.100", "fd00::100"}
		if got := fmt.Sprint(n.set(addresses(both...)...)); got != fmt.Sprint(both) {
			t.Fatalf("held at once: %s", got)
		}
		for _, a := range both {
			resolve(t, client, a, here)
			recheck(t, client, a)
		}
		if got := n.set(); len(got) != 0 {
			t.Errorf("still held: %v", got)
		}
		forgetAll(t, client)
		for _, a := range both {
			talk(t, client, a)
			until(t, func() string {
				if m, state := neighbour(t, client, a); state != unix.NUD_FAILED {
					return fmt.Sprintf("%s is at %s (state %#x)", a, m, state)
				}
				return ""
			})
		}
	})
}

// recheck puts a neighbour into state probe, in which the kernel sends unicast requests,
// and waits until it is reachable.
func recheck(t *testing.T, ns *nstest.NS, a string) {
	t.Helper()
	m, _ := neighbour(t, ns, a)
	inside(t, ns, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, IP: ip(a).AsSlice(), HardwareAddr: m[:], State: unix.NUD_PROBE,
		})
	})
	until(t, func() string {
		if _, state := neighbour(t, ns, a); state != unix.NUD_REACHABLE {
			return fmt.Sprintf("%s is in state %#x", a, state)
		}
		return ""
	})
}

// Frames to another host, which arrive because the switch floods them or the interface is
// promiscuous, are not answered.
func TestIgnoresFramesForOtherHosts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		n, listener := start(t, hosts[0]), listen(t, hosts[1], "eth0")
		n.set(addresses("10.0.0.100", "10.0.0.101", "fd00::100", "fd00::101")...)
		for _, a := range []struct {
			sender, first, second string
		}{{"10.0.0.2", "10.0.0.100", "10.0.0.101"}, {"fd00::2", "fd00::100", "fd00::101"}} {
			listener.send(packet{
				op: opRequest, from: listener.mac, to: mac(0x77), sender: ip(a.sender), target: ip(a.first),
			})
			listener.ask(a.second, a.sender)
			if p := listener.next(func(p packet) bool {
				return p.op == opReply && p.to == listener.mac
			}); p.sender != ip(a.second) {
				t.Errorf("%s is answered for", p.sender)
			}
		}
	})
}

// When another node takes over an address, hosts receive announcements at once, in every
// form, and repetitions.
func TestTakeOver(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "first", "second", "client")
		first, second, client := start(t, hosts[0]), start(t, hosts[1]), hosts[2]
		both := addresses("10.0.0.100", "fd00::100")
		first.set(both...)
		for _, a := range both {
			resolve(t, client, a.Addr.String(), macOn(t, hosts[0], "eth0"))
		}
		first.set()
		listener, there := listen(t, client, "eth0"), macOn(t, hosts[1], "eth0")
		second.set(both...)
		for _, a := range both {
			until(t, func() string {
				if m, _ := neighbour(t, client, a.Addr.String()); m != there {
					return fmt.Sprintf("%s is still at %s", a.Addr, m)
				}
				return ""
			})
		}
		// Each form at once and five times more.
		count := make(map[packet]int)
		for len(count) < 3 || min(count[announcement(ip("10.0.0.100"), there)],
			count[confirmation(ip("10.0.0.100"), there)], count[announcement(ip("fd00::100"), there)]) < 6 {
			p := listener.next(func(p packet) bool {
				return p.from == there && (p.sender == both[0].Addr || p.sender == both[1].Addr)
			})
			if p.about == (MAC{}) || p.op == opReply {
				count[p]++
			}
		}
		for p, n := range count {
			if n > 6 {
				t.Errorf("%+v was sent %d times", p, n)
			}
		}
	})
}

// A new round announces a held address like a new one. It remains held: no new probe, the
// same sockets, and the recorded conflict stays.
func TestNewRoundAnnouncesAgain(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		n, listener, here := start(t, hosts[0]), listen(t, hosts[1], "eth0"), macOn(t, hosts[0], "eth0")
		n.phases.mu.Lock()
		n.phases.schedule.delays[again1] = time.Hour // Each round is announced once in each form.
		n.phases.mu.Unlock()
		both := []Address{{Addr: ip("10.0.0.100"), Probe: true}, {Addr: ip("fd00::100"), Probe: true}}
		forms := []packet{announcement(both[0].Addr, here), confirmation(both[0].Addr, here),
			announcement(both[1].Addr, here)}
		awaitAnnouncements := func() {
			t.Helper()
			for seen := map[packet]bool{}; len(seen) < len(forms); {
				seen[listener.next(func(p packet) bool { return slices.Contains(forms, p) })] = true
			}
		}
		n.set(both...)
		n.awaitHeld("10.0.0.100", "fd00::100")
		awaitAnnouncements()
		listener.send(announcement(both[0].Addr, listener.mac))
		until(t, func() string {
			if s := n.status("10.0.0.100"); s.Conflict == nil {
				return fmt.Sprintf("status %+v", s)
			}
			return ""
		})
		listener.next(func(p packet) bool { return p == forms[0] }) // the defence
		sockets := func() (all []*packetSocket) {
			n.phases.mu.Lock()
			defer n.phases.mu.Unlock()
			for _, a := range both {
				all = append(all, n.phases.addresses[a.Addr].sockets()...)
			}
			return all
		}
		before, open := n.Status(), sockets()
		for round := range uint64(2) {
			next := slices.Clone(both)
			for i := range next {
				next[i].Round = round + 1
			}
			if got := n.set(next...); len(got) != len(both) {
				t.Errorf("round %d: held are %v", round, got)
			}
			awaitAnnouncements()
		}
		for i, s := range n.Status() {
			if b := before[i]; s.Phase != Held || s.Since != b.Since || (s.Conflict == nil) != (b.Conflict == nil) {
				t.Errorf("status %+v, was %+v", s, b)
			}
		}
		if !slices.Equal(sockets(), open) {
			t.Error("sockets were closed, and opened again")
		}
	})
}

// With Refresh, announcements repeat without end.
func TestRefreshRepeatsAnnouncements(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		n, listener, here := startWith(t, hosts[0], Options{Refresh: 20 * time.Millisecond}),
			listen(t, hosts[1], "eth0"), macOn(t, hosts[0], "eth0")
		n.set(addresses("10.0.0.100", "fd00::100")...)
		for announced := map[netip.Addr]int{}; announced[ip("10.0.0.100")] < 24 || announced[ip("fd00::100")] < 12; {
			announced[listener.next(func(p packet) bool { return p.from == here }).sender]++
		}
	})
}

// A host that probes for a held address receives an answer.
func TestDefendsAgainstProbes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		n, client, listener := start(t, hosts[0]), hosts[1], listen(t, hosts[1], "eth0")
		n.set(addresses("10.0.0.100", "fd00::100")...)

		listener.send(probe(ip("10.0.0.100"), listener.mac))
		if got := listener.answer("10.0.0.100"); got != macOn(t, hosts[0], "eth0") {
			t.Errorf("answered by %s", got)
		}
		client.Sysctl("ipv6.conf.eth0.accept_dad", "1")
		client.Sysctl("ipv6.conf.all.accept_dad", "1")
		inside(t, client, func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr("fd00::100/64")
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, a)
		})
		until(t, func() string {
			why := "the address is not there"
			inside(t, client, func() error {
				all, err := netlink.AddrList(nil, unix.AF_INET6)
				for _, a := range all {
					if a.IP.String() == "fd00::100" {
						if why = fmt.Sprintf("flags %#x", a.Flags); a.Flags&unix.IFA_F_DADFAILED != 0 {
							why = ""
						}
					}
				}
				return err
			})
			return why
		})
		// A probe by duplicate address detection is no conflict.
		n.awaitHeld("10.0.0.100", "fd00::100")
		if s := n.Status(); s[0].Conflict != nil || s[1].Conflict != nil {
			t.Errorf("status %+v", s)
		}
	})
}

// A sender above the rate limit is answered at the limit; other senders are not affected.
func TestRateLimitPerSender(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "greedy", "modest")
		n, greedy, modest := start(t, hosts[0]), listen(t, hosts[1], "eth0"), listen(t, hosts[2], "eth0")
		n.set(addresses("10.0.0.100", "fd00::100")...)
		const allowed, asked = 20, 100
		n.phases.mu.Lock()
		for _, x := range n.phases.addresses {
			// A limit that does not grow, so that the machine's load does not matter.
			x.claims[0].socket.limiter = limiter{
				senders: map[MAC]*rate.Limiter{greedy.mac: rate.NewLimiter(0, allowed)}, shared: allowance(),
			}
		}
		n.phases.mu.Unlock()
		for _, x := range []struct {
			vip, from, other, protocol string
		}{{"10.0.0.100", "10.0.0.2", "10.0.0.3", "arp"}, {"fd00::100", "fd00::2", "fd00::3", "ndp"}} {
			for range asked {
				greedy.ask(x.vip, x.from)
			}
			count := func(v verdict) int {
				return int(testutil.ToFloat64(n.metrics.packets.WithLabelValues(x.protocol, v.String())))
			}
			until(t, func() string {
				if answers, refused := count(answered),
					count(rateLimited); answers != allowed || refused != asked-allowed {
					return fmt.Sprintf("%s: %d answered, %d refused", x.vip, answers, refused)
				}
				return ""
			})
			for range allowed {
				greedy.answer(x.vip)
			}
			modest.ask(x.vip, x.other)
			modest.answer(x.vip)
		}
	})
}

// Changed signals every change that Set did not cause.
func TestChanged(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node")
		n := start(t, hosts[0])
		want := State{Addresses: []Address{{Addr: ip("10.0.0.100"), Probe: true}, {Addr: ip("10.1.0.100")}}}
		n.become(want)
		for have := n.become(want); len(have) < 1; have = n.become(want) {
			<-n.Changed()
		}
		hosts[0].Addr("eth0", "10.1.0.1/24")
		for have := n.become(want); len(have) < 2; have = n.become(want) {
			<-n.Changed()
		}
		hosts[0].Down("eth0")
		for have := n.become(want); len(have) > 0; have = n.become(want) {
			<-n.Changed()
		}
		if s := n.status("10.0.0.100"); s.Phase != Waiting ||
			s.Reason != "no interface that is up, has a carrier and is no port of another one has its subnet" {
			t.Errorf("status %+v", s)
		}
	})
}

// The error lists what is invalid in a State; the rest is applied.
func TestInvalidAddresses(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node")
		n := start(t, hosts[0])
		var have []netip.Addr
		var err error
		state := State{Addresses: []Address{{}, {Addr: ip("10.0.0.100")}, {Addr: ip("10.0.0.100")},
			{Addr: ip("10.0.0.99")}, {Addr: ip("224.0.0.1")}, {Addr: ip("255.255.255.255")}, {Addr: ip("::")},
			{Addr: ip("::ffff:10.0.0.7")}, {Addr: ip("fd00::100")}, {Addr: ip("fe80::1")}, {Addr: ip("fe80::1%eth0")}}}
		hosts[0].Do(func() { have, err = n.Set(context.Background(), state) })
		if got := fmt.Sprint(have); got != "[10.0.0.100 fd00::100]" {
			t.Errorf("held %s", got)
		}
		const want = `address invalid IP: not an address: want IPv4 or IPv6
address 10.0.0.100: twice in the State
address 10.0.0.99: after 10.0.0.100: want them sorted
address 224.0.0.1: not a unicast address: no host can have it
address 255.255.255.255: not a unicast address: no host can have it
address ::: not a unicast address: no host can have it
address ::ffff:10.0.0.7: an IPv4 address written as IPv6: want 10.0.0.7
address fe80::1: a link-local address: hosts take them for themselves
address fe80::1%eth0: an address with a zone: want one that means the same on every node`
		if err == nil || err.Error() != want {
			t.Errorf("error\n%v\nwant\n%s", err, want)
		}
		if _, again := n.Set(context.Background(), state); again == nil || again.Error() != want {
			t.Errorf("the second time: %v", again)
		}
	})
}

// The package needs no capability beyond manifests/speaker.yaml: entering a namespace
// would.
func TestNeedsOnlyNetAdminAndNetRaw(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		n := start(t, hosts[0])
		inside(t, hosts[0], func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of this thread
			var had [2]unix.CapUserData
			if err := unix.Capget(&header, &had[0]); err != nil {
				return err
			}
			few := had
			few[0].Effective, few[1].Effective = 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW, 0
			if err := unix.Capset(&header, &few[0]); err != nil {
				return err
			}
			have, err := n.Set(t.Context(), State{Addresses: addresses("10.0.0.100", "fd00::100")})
			if len(have) != 2 {
				err = errors.Join(err, fmt.Errorf("held at once: %v", have))
			}
			return errors.Join(err, unix.Capset(&header, &had[0]))
		})
		resolve(t, hosts[1], "10.0.0.100", macOn(t, hosts[0], "eth0"))
	})
}

// Nothing is open before the first Set and after Close.
func TestBeforeSetAndAfterClose(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		n := start(t, hosts[0])
		if got := n.Interfaces(); got != nil {
			t.Errorf("interfaces before the first Set: %v", got)
		}
		if got := n.Problems(t.Context(), []netip.Addr{ip("10.0.0.100")}); got != nil {
			t.Errorf("problems before the first Set: %v", got)
		}
		if got := n.AsymmetricPaths(t.Context(), []netip.Addr{ip("10.0.0.100")}); got != nil {
			t.Errorf("detours before the first Set: %v", got)
		}
		n.set(addresses("10.0.0.100")...)
		other := start(t, hosts[1])
		must(t, n.Close(t.Context()))
		if _, err := n.Set(t.Context(), State{}); err == nil {
			t.Error("a closed Announcer takes a State")
		}
		must(t, New(Options{}).Close(t.Context()))
		listener := listen(t, hosts[0], "eth0")
		other.set(addresses("10.0.0.101")...)
		listen(t, hosts[1], "eth0").ask("10.0.0.100", "10.0.0.2")
		listener.ask("10.0.0.101", "10.0.0.1")
		listener.answer("10.0.0.101")
	})
}
