package l2

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A dryRun is an Announcer with one address, without a network and without a clock: its packetSocket
// writes into a socket that the test reads, and the test says what time it is.
type dryRun struct {
	t      *testing.T
	a      *Announcer
	x      *address
	socket *packetSocket
	frames int // what the packetSocket writes to
	start  time.Time
	now    time.Time
	log    strings.Builder
}

const (
	nodeMAC, clientMAC, ownerMAC, speakerMAC = 0x01, 0x10, 0x20, 0x30
)

func newDryRun(t *testing.T, vip string) *dryRun {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	out := os.NewFile(uintptr(ends[0]), "socket")
	t.Cleanup(func() { out.Close(); unix.Close(ends[1]) })
	d := &dryRun{t: t, a: New(Options{}), frames: ends[1], start: time.Unix(1e9, 0)}
	d.now = d.start
	d.x = &address{want: Address{Addr: ip(vip), Probe: true}, phase: Waiting, needsProbe: true}
	d.socket = &packetSocket{
		key: socketKey{1, protocolOf(ip(vip))}, iface: Interface{Name: "eth0"},
		pools: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, claims: claims{
			mac: mac(nodeMAC), addresses: map[netip.Addr]*address{}, speakers: map[MAC]bool{mac(speakerMAC): true},
		},
	}
	d.socket.raw, err = out.SyscallConn()
	must(t, err)
	d.a.phases.addresses[ip(vip)] = d.x
	return d
}

// assign makes the address this node's.
func (d *dryRun) assign() {
	d.socket.claims.addresses[d.x.want.Addr] = d.x
	d.x.claims = []claim{{socket: d.socket}}
	d.a.phases.advance(d.x, d.x.sockets(), d.now)
}

// at runs the schedule until a time, and records what is sent.
func (d *dryRun) at(t time.Duration) {
	for end := d.start.Add(t); ; {
		_, wait, idle := d.a.phases.runNext(d.now)
		d.record()
		switch {
		case !idle:
		case d.now.Add(wait).After(end):
			d.now = end
			return
		default:
			d.now = d.now.Add(wait)
		}
	}
}

// receive is a packet of another host.
func (d *dryRun) receive(p packet) {
	d.t.Helper()
	d.receiveAt(p, d.now)
}

// receiveAt is a packet that the kernel received earlier.
func (d *dryRun) receiveAt(p packet, when time.Time) {
	d.t.Helper()
	frame, err := d.socket.key.protocol.marshal(p)
	must(d.t, err)
	d.a.phases.receive(d.socket, frame, when, d.now)
	d.record()
}

// ask is a request for the address by a client.
func (d *dryRun) ask() { d.receive(d.request(clientMAC, "9")) }

func (d *dryRun) request(from byte, sender string) packet {
	p := packet{op: opRequest, from: mac(from), to: broadcast, sender: d.near(sender), target: d.x.want.Addr}
	if p.target.Is6() {
		p.to = groupMAC(solicitedNode(p.target))
	}
	return p
}

// near is another address of the same subnet.
func (d *dryRun) near(last string) netip.Addr {
	if d.x.want.Addr.Is4() {
		return ip("192.0.2." + last)
	}
	return ip("2001:db8::" + last)
}

// reply is what a host that has the address says to the node's probe.
func (d *dryRun) reply(from byte) packet {
	return replyTo(probe(d.x.want.Addr, mac(nodeMAC)), mac(from))
}

// record notes what was sent, in words.
func (d *dryRun) record() {
	b := make([]byte, frameLength)
	for {
		n, err := unix.Read(d.frames, b)
		if err != nil || n == 0 {
			return
		}
		p, err := d.socket.key.protocol.parse(b[:n])
		must(d.t, err)
		what := "announces it"
		switch {
		case p.op == opRequest && p.sender.IsUnspecified():
			what = "probes"
		case p.to == mac(clientMAC):
			what = "answers the client"
		case p.to.Unicast():
			what = fmt.Sprintf("answers host %d", p.to[5])
		}
		if p.tentative {
			what += ", without override"
		}
		fmt.Fprintf(&d.log, "%s %s\n", d.now.Sub(d.start), what)
	}
}

func (d *dryRun) expect(phase Phase, want string) {
	d.t.Helper()
	if got := d.log.String(); got != want || d.x.phase != phase {
		d.t.Errorf("%s after\n%swant %s after\n%s", d.x.phase, got, phase, want)
	}
}

// Nothing but the first announcement matters here: repetitions follow.
const untilHeld = 750 * time.Millisecond

// A client is answered when the first probe has had its time, also if it asked before, and at
// once from then on. Hosts that know another owner learn nothing before the probes are over.
func TestEarlyAnswers(t *testing.T) {
	for vip, override := range map[string]string{"192.0.2.1": "", "2001:db8::1": ", without override"} {
		d := newDryRun(t, vip)
		d.assign()
		d.at(5 * time.Millisecond)
		d.ask()
		d.ask() // a host that repeats itself is answered once
		d.at(100 * time.Millisecond)
		d.ask()
		d.at(untilHeld)
		d.ask()
		want := "0s probes\n20ms answers the client" + override + "\n"
		if d.x.want.Addr.Is6() {
			want += "20ms announces it, without override\n"
		}
		want += "100ms answers the client" + override + "\n200ms probes\n400ms probes\n700ms announces it\n"
		if d.x.want.Addr.Is4() {
			want += "700ms announces it\n" // in ARP's other form
		}
		d.expect(Held, want+"750ms answers the client\n")
	}
}

// A client that asked for an IPv4 address before any node had it need not repeat its request,
// unless it does so anyway.
func TestAnswersEarlierRequests(t *testing.T) {
	d := newDryRun(t, "192.0.2.1")
	d.receive(d.request(0x11, "8"))
	d.at(300 * time.Millisecond)
	d.ask()
	d.receive(d.request(0x12, "0"))
	d.at(1200 * time.Millisecond)
	d.assign()
	d.at(1300 * time.Millisecond)
	d.expect(Probing, "1.2s probes\n1.22s answers the client\n1.22s answers host 18\n")
}

// A host that is awake has answered before any client is: no client learns of this node.
func TestNoEarlyAnswerForAddressInUse(t *testing.T) {
	for _, vip := range []string{"192.0.2.1", "2001:db8::1"} {
		d := newDryRun(t, vip)
		d.assign()
		d.at(time.Millisecond)
		d.ask()
		d.at(2 * time.Millisecond)
		d.receive(d.reply(ownerMAC))
		d.at(20 * time.Second)
		d.ask()
		d.expect(Conflicting, "0s probes\n")
		if c := d.x.conflict; c == nil || c.MAC != mac(ownerMAC) {
			t.Errorf("conflict %v", c)
		}
	}
}

// A host that is slow misleads the clients that asked before it spoke, and no others: the address
// is given up and was never announced. At the next attempts nothing is answered early.
func TestEarlyAnswersEndWithConflict(t *testing.T) {
	for vip, override := range map[string]string{"192.0.2.1": "", "2001:db8::1": ", without override"} {
		d := newDryRun(t, vip)
		d.assign()
		d.at(50 * time.Millisecond)
		d.ask()
		d.at(230 * time.Millisecond)
		d.receive(d.reply(ownerMAC)) // to the second probe
		d.ask()
		d.at(30 * time.Second)
		want := "0s probes\n"
		if d.x.want.Addr.Is6() {
			want += "20ms announces it, without override\n"
		}
		want += "50ms answers the client" + override + "\n200ms probes\n"
		d.expect(Conflicting, want)
		d.at(30*time.Second + 600*time.Millisecond)
		d.ask()
		want += "30.23s probes\n30.43s probes\n"
		d.expect(Probing, want)
		d.receive(d.reply(ownerMAC))
		d.expect(Conflicting, want)
	}
}

// Another node of the cluster that still answers, or probes at the same time, is no conflict, and
// ends no early answers.
func TestEarlyAnswersBesideSpeakers(t *testing.T) {
	for vip, override := range map[string]string{"192.0.2.1": "", "2001:db8::1": ", without override"} {
		d := newDryRun(t, vip)
		d.assign()
		d.at(time.Millisecond)
		d.receive(d.reply(speakerMAC))
		d.receive(probe(d.x.want.Addr, mac(speakerMAC)))
		d.receive(announcement(d.x.want.Addr, mac(speakerMAC)))
		d.at(30 * time.Millisecond)
		d.receive(probe(d.x.want.Addr, mac(speakerMAC)))
		d.ask()
		d.at(100 * time.Millisecond)
		want := "0s probes\n"
		if d.x.want.Addr.Is6() {
			want += "20ms announces it, without override\n"
		}
		d.expect(Probing, want+"30ms answers the client"+override+"\n")
		if d.x.conflict != nil {
			t.Errorf("conflict %v", d.x.conflict)
		}
	}
}

// A node that had no processor reads the replies that came meanwhile before it answers.
func TestStarvedNodeListensAgain(t *testing.T) {
	d := newDryRun(t, "192.0.2.1")
	d.assign()
	d.at(time.Millisecond)
	d.ask()
	d.now = d.start.Add(90 * time.Millisecond)
	d.at(100 * time.Millisecond)
	d.expect(Probing, "0s probes\n")
	d.at(200 * time.Millisecond)
	d.expect(Probing, "0s probes\n110ms answers the client\n")
}

// Requests that wait are few, whatever comes.
func TestWaitingRequestsAreBounded(t *testing.T) {
	d := newDryRun(t, "192.0.2.1")
	for i := range 2 * maxHeard {
		p := d.request(byte(i), "9")
		p.from[4] = byte(1 + i>>8)
		d.receive(p)
		p.target = ip("198.51.100.1") // of no pool
		d.receive(p)
	}
	if got := len(d.socket.heard); got != maxHeard {
		t.Errorf("%d requests are remembered", got)
	}
	d.assign()
	d.ask()
	if got := len(d.x.asked); got != maxAsked {
		t.Errorf("%d requests wait", got)
	}
}

// The kernel of a client resolves an address before its probes are over, although it asked before
// this node had the address. An address that another host's kernel has is that host's for the client.
func TestKernelResolvesEarly(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client", "printer")
		n, client, printer := start(t, hosts[0]), hosts[1], hosts[2]
		n.phases.schedule.delays[probe2] = time.Hour // all that follows is early
		here := macOn(t, hosts[0], "eth0")
		printer.Addr("eth0", "10.0.0.100/24", "fd00::100/64")
		client.Sysctl("ipv4.neigh.eth0.retrans_time_ms", "3600000") // it never repeats a request
		client.Sysctl("ipv6.neigh.eth0.retrans_time_ms", "3600000")
		pools := []netip.Prefix{netip.MustParsePrefix("10.0.0.96/28")}
		n.become(State{Pools: pools})
		for _, a := range []string{"10.0.0.101", "fd00::101"} {
			talk(t, client, a)
		}
		heard := func() (count int) {
			n.phases.mu.Lock()
			defer n.phases.mu.Unlock()
			for _, p := range n.worker.sockets {
				count += len(p.heard)
			}
			return count
		}
		until(t, func() string {
			if heard() == 0 {
				return "the request was not received"
			}
			return ""
		})
		want := State{
			Pools: pools, Addresses: []Address{{Addr: ip("10.0.0.100"), Probe: true},
				{Addr: ip("10.0.0.101"), Probe: true}, {Addr: ip("fd00::100"), Probe: true},
				{Addr: ip("fd00::101"), Probe: true}},
		}
		if got := n.become(want); len(got) != 0 {
			t.Errorf("held %v", got)
		}
		for _, a := range []string{"10.0.0.101", "fd00::101"} {
			until(t, func() string {
				if m, state := neighbour(t, client, a); m != here {
					return fmt.Sprintf("%s is at %s (state %#x)", a, m, state)
				}
				return ""
			})
			if s := n.status(a); s.Phase != Probing {
				t.Errorf("%s: %+v", a, s)
			}
		}
		for _, a := range []string{"10.0.0.100", "fd00::100"} {
			resolve(t, client, a, macOn(t, printer, "eth0"))
			if s := n.status(a); s.Phase != Conflicting {
				t.Errorf("%s: %+v", a, s)
			}
		}
	})
}

// A host that answers only the second probe: the client that asked before is misled, and no
// announcement misleads others. Requests after that are the host's alone.
func TestSlowOwnerEndsEarlyAnswers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client", "sleeper")
		n, client, sleeper := start(t, hosts[0]), listen(t, hosts[1], "eth0"), listen(t, hosts[2], "eth0")
		here := macOn(t, hosts[0], "eth0")
		both := []Address{{Addr: ip("10.0.0.100"), Probe: true}, {Addr: ip("fd00::100"), Probe: true}}
		// The probes never end, and are not repeated.
		n.phases.schedule.delays[passed], n.phases.schedule.delays[retry1] = time.Hour, time.Hour
		n.set(both...)
		for _, x := range both {
			a, host := x.Addr.String(), map[bool]string{true: "10.0.0.2", false: "fd00::2"}[x.Addr.Is4()]
			client.ask(a, host)
			if got := client.answer(a); got != here {
				t.Errorf("%s is at %s", a, got)
			}
			asks := func(p packet) bool { return p.target == x.Addr && p.sender.IsUnspecified() }
			p := sleeper.next(asks)
			sleeper.next(asks)
			sleeper.send(replyTo(p, sleeper.mac))
			until(t, func() string {
				if s := n.status(a); s.Phase != Conflicting || s.Conflict.MAC != sleeper.mac {
					return fmt.Sprintf("status %+v", s)
				}
				return ""
			})
			client.ask(a, host)
		}
		// What the node sent before the probe of another address was sent before.
		n.set(append(both, Address{Addr: ip("fd00::101")})...)
		client.next(func(p packet) bool {
			if p.from == here && p.op == announcement(p.sender, here).op && p.to != client.mac && !p.tentative &&
				(p.sender == both[0].Addr || p.sender == both[1].Addr) {
				t.Errorf("announced: %+v", p)
			}
			if p.from == here && p.to == client.mac {
				t.Errorf("answered after the conflict: %+v", p)
			}
			return p.sender == ip("fd00::101")
		})
	})
}
