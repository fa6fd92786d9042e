package fastpath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
)

// flood sends SYNs to an address from as many client ports, from the first one on.
func (l *lab) flood(p *Datapath, to netip.AddrPort, first, n uint16) (taken int) {
	l.t.Helper()
	for i := range n {
		if verdict, _ := l.arrive(p, packet{from: port("client", 0, first+i), to: to, protocol: TCP,
			flags: syn}.ip()); verdict == redirect {
			taken++
		}
	}
	return taken
}

// An address has at most as many flows as the table has room for others. The rules get its
// further ones, and no existing flow is evicted.
func TestAddressFull(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		o := l.options()
		o.Flows = 6
		p := l.pathWith(o)
		l.set(p, state("pod1"))
		l.rules(port("vip", 0, 80), port("pod2", 0, 8081))
		var in []net.Conn
		for range 3 {
			in = append(in, l.mustDial("tcp", 0, port("vip", 0, 80)))
		}
		l.bypassed()
		for range 3 {
			if got := l.probe("tcp", port("vip", 0, 80)); got != "pod2 saw client" {
				t.Errorf("without room: %s", got)
			}
		}
		for _, c := range in {
			if got := ask(c, "?"); got != "pod1 saw client" {
				t.Errorf("with room: %s", got)
			}
		}
		p.walk()
		want := []Limit{{at("vip", 0), 3, 3}}
		if s := p.Status(); s.Full != 3 || s.Capacity != 6 || !slices.Equal(s.Limited, want) {
			t.Errorf("status %+v; want 3 rejected and limited %v", s, want)
		}
	})
}

// A flood of SYNs at one address leaves room for connections to every other address, however
// many addresses are flooded.
func TestFloodLeavesRoom(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		o := l.options()
		o.Flows = 60
		p := l.pathWith(o)
		l.set(p, state("pod1"))
		send, sent := l.sender(), 0
		for i, front := range []netip.AddrPort{port("vip", 0, 80), port("vip2", 0, 80)} {
			l.rules(front, port("pod2", 0, 8081))
			before := l.mustDial("tcp", 0, front)
			if got := ask(before, "?"); got != "pod1 saw client" {
				t.Errorf("a connection to address %d: %s", i, got)
			}
			from := netip.AddrFrom4([4]byte{10, 0, 1, byte(100 + i)}) // no host answers there
			for n := range uint16(500) {
				send(packet{from: netip.AddrPortFrom(from, 1000+n), to: front, protocol: TCP, flags: syn}.ip())
			}
			sent += 1 + 500
			l.await("the SYNs to arrive", func() bool { return int(p.Status().Full)+len(l.flows(p)) >= sent })
			if got := ask(before, "?"); got != "pod1 saw client" {
				t.Errorf("a connection before the flood at address %d: %s", i, got)
			}
		}
		// Both are at their limits, and the rules get what comes in addition.
		for _, vip := range []string{"vip", "vip2"} {
			if got := l.probe("tcp", port(vip, 0, 80)); got != "pod2 saw client" {
				t.Errorf("another connection to %s: %s", vip, got)
			}
		}
		l.nft("reset counters table inet watch")
		if got := l.probe("tcp", port("vip", 1, 80)); got != "pod1 saw client" || l.counted("vip") != 0 {
			t.Errorf("a connection to a third address: %s, and %d packets by the rules", got, l.counted("vip"))
		}
	})
}

// While an address has many flows, those without an answer end after seconds. So the limit
// is for a faster flood than the timeout of a minute allows.
func TestHalfOpenEndSoon(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		o := l.options()
		o.Flows = 60
		p := l.pathWith(o)
		l.set(p, state("pod1"))
		vip := port("vip", 0, 80)
		c := l.mustDial("tcp", 0, vip)
		ask(c, "?")
		if n := l.flood(p, vip, 1000, 10); n != 10 {
			t.Fatalf("%d flows of 10 were taken", n)
		}
		p.walk()
		l.age(p, 6)
		p.walk()
		if n := len(l.flows(p)); n != 11 {
			t.Errorf("%d flows after 6 s of a few; want 11", n)
		}
		l.flood(p, vip, 2000, 50)
		p.walk()
		l.age(p, 6)
		p.walk()
		if n := len(l.flows(p)); n != 1 {
			t.Errorf("%d flows after 6 s of many; want the connection", n)
		}
		if n := l.flood(p, vip, 3000, 10); n != 10 {
			t.Errorf("%d new flows of 10 were taken afterwards", n)
		}
	})
}

// counted compares the numbers of flows in the maps with the flows.
func (d *Datapath) counted(t *testing.T, l *lab, when string) {
	t.Helper()
	if why := d.miscounted(l); why != "" {
		t.Errorf("%s: %s", when, why)
	}
}

// awaitCounted is counted while walks run: a flow that begins during a walk may count twice until
// the next one.
func (d *Datapath) awaitCounted(l *lab, when string) {
	l.t.Helper()
	l.await("the numbers of flows to be right, "+when, func() bool { return d.miscounted(l) == "" })
}

// miscounted returns how the numbers of flows in the maps differ from the flows; empty if they do
// not.
func (d *Datapath) miscounted(l *lab) string {
	l.t.Helper()
	used := make(map[netip.Addr]int32)
	all := l.flows(d)
	for _, f := range all {
		used[f.VIP.Addr()]++
	}
	c, err := d.kernel.readCounts()
	if err != nil {
		l.t.Fatal(err)
	}
	var wrong []string
	for vip, u := range c.usages {
		if u.Flows != used[vip.addr()] {
			wrong = append(wrong, fmt.Sprintf("%d flows of %s are counted; want %d", u.Flows, vip.addr(),
				used[vip.addr()]))
		}
	}
	if c.room != int32(d.kernel.room-len(all)) {
		wrong = append(wrong, fmt.Sprintf("room for %d; want %d", c.room, d.kernel.room-len(all)))
	}
	return strings.Join(wrong, "; ")
}

// The programs count what they begin and end, and a walk corrects what is wrong.
func TestFlowsAreCounted(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		l.await("the first walk", func() bool { return !p.Status().Busy })
		p.stop()
		p.work.Wait() // a flow that begins during a walk may count twice until the next one
		vip := port("vip", 0, 80)
		l.flood(p, vip, 1000, 20)
		p.counted(t, l, "begun")
		for i := range uint16(10) { // both programs delete a flow that has ended
			client, pod := port("client", 0, 1000+i), port("pod1", 0, 8080)
			l.comeBack(p, "cali1", packet{from: pod, to: client, protocol: TCP, flags: rst | ack}.ip())
			l.arrive(p, packet{from: client, to: vip, protocol: TCP, flags: syn}.ip())
			l.arrive(p, packet{from: client, to: vip, protocol: TCP, flags: ack}.ip())
			l.comeBack(p, "cali1", packet{from: pod, to: client, protocol: TCP, flags: fin | ack}.ip())
			l.arrive(p, packet{from: client, to: vip, protocol: TCP, flags: fin | ack}.ip())
			l.comeBack(p, "cali1", packet{from: pod, to: client, protocol: TCP, flags: syn | ack}.ip())
		}
		p.counted(t, l, "ended")
		if n := len(l.flows(p)); n != 10 {
			t.Errorf("%d flows; want 10", n)
		}
		if err := p.kernel.Usages.Put(addressOf(vip.Addr()), kernelUsage{Flows: 77}); err != nil {
			t.Fatal(err)
		}
		if err := p.kernel.Room.Put(uint32(0), int32(-5)); err != nil {
			t.Fatal(err)
		}
		p.walk()
		p.counted(t, l, "corrected")

		w := p.newWalk()
		var err error
		if w.before, err = p.kernel.readCounts(); err != nil {
			t.Fatal(err)
		}
		l.flood(p, vip, 2000, 1) // seen by the walk, and counted by the program
		w.all(w.check)
		if err := errors.Join(append(w.errs, p.correct(w))...); err != nil {
			t.Fatal(err)
		}
		if got, want := p.miscounted(l), "12 flows of 192.0.2.1 are counted; want 11"; !strings.HasPrefix(got, want) {
			t.Errorf("after a walk during which a flow began: %q; want %q", got, want)
		}
		p.walk()
		p.counted(t, l, "corrected by the next walk")
		l.set(p, each(state("pod1"), func(f *Frontend) { f.Take = false }))
		p.walk()
		if c, err := p.kernel.readCounts(); err != nil || len(c.usages) != 0 {
			t.Errorf("%v remain for addresses that are not taken, %v", c.usages, err)
		}
	})
}

// UDP frontends of a full address are left to the rules until its flows have halved. They come
// back with the flows of conntrack, which keep their backend.
func TestDatagramsOfFullAddress(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		o := l.options()
		o.Flows = 60
		p := l.pathWith(o)
		l.set(p, state("pod1"))
		vip := port("vip", 0, 80)
		l.rules(vip, port("pod2", 0, 8080))
		l.flood(p, vip, 1000, 100)
		p.walk()
		c := l.mustDial("udp", 0, vip)
		if got := ask(c, "?"); got != "pod2 saw client" {
			t.Errorf("without room: %s", got)
		}
		if s := p.Status(); len(s.NotOffloaded) != 1 || s.NotOffloaded[0] != (NotOffloaded{vip, UDP, limitedWhy}) {
			t.Errorf("left %+v", s.NotOffloaded)
		}
		l.set(p, each(state("pod1", "pod2"), func(f *Frontend) {}))
		l.age(p, 6)
		p.walk()
		l.await("the frontend to be taken", func() bool { return len(p.Status().NotOffloaded) == 0 })
		l.nft("reset counters table inet watch")
		if got := ask(c, "?"); got != "pod2 saw client" || l.counted("vip") != 0 {
			t.Errorf("with room again: %s, and %d packets by the rules", got, l.counted("vip"))
		}
	})
}

// Maps keep their layout within a version: the process adopts them with their flows, or loses
// all of them. A map that must change gets a new name.
func TestLayout(t *testing.T) {
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for name, m := range spec.Maps {
		if m.Pinning == ebpf.PinByName {
			got = append(got, fmt.Sprintf("%s %s %s: %d to %d bytes, at most %d", version, name, m.Type, m.KeySize,
				m.ValueSize, m.MaxEntries))
		}
	}
	slices.Sort(got)
	want := []string{
		"v1 clients LPMTrie: 20 to 4 bytes, at most 65536",
		"v1 datagrams LRUHash: 40 to 12 bytes, at most 4096",
		"v1 flows Hash: 40 to 28 bytes, at most 524288",
		"v1 frontends Hash: 20 to 8 bytes, at most 65536",
		"v1 interfaces Hash: 4 to 4 bytes, at most 4096",
		"v1 lease Array: 4 to 4 bytes, at most 1",
		"v1 overtaken LRUHash: 40 to 4 bytes, at most 4096",
		"v1 room Array: 4 to 4 bytes, at most 1",
		"v1 slots Hash: 8 to 44 bytes, at most 262144",
		"v1 statistics PerCPUArray: 4 to 8 bytes, at most 32",
		"v1 usages Hash: 16 to 8 bytes, at most 65536",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A process that finds flows of one that did not count them counts them, and flows continue.
func TestUpgradeFromUncounted(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		c := l.mustDial("tcp", 0, port("vip", 0, 80))
		ask(c, "?")
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"usages", "room", "datagrams", "overtaken", "statistics"} {
			if err := os.Remove(p.kernel.pins.path(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(p.kernel.pins.path("lease"), p.kernel.pins.path("fragments")); err != nil {
			t.Fatal(err)
		}
		p = l.path()
		if got := ask(c, "?"); got != "pod1 saw client" {
			t.Errorf("a connection during the upgrade: %s", got)
		}
		l.set(p, state("pod1"))
		l.await("flows to be counted", func() bool {
			n, err := p.kernel.readRoom()
			return err == nil && n == int32(p.kernel.room-1)
		})
		if got := ask(c, "?"); got != "pod1 saw client" {
			t.Errorf("a connection after the upgrade: %s", got)
		}
		if got := l.probe("tcp", port("vip", 0, 80)); got != "pod1 saw client" {
			t.Errorf("a new connection: %s", got)
		}
		if got := l.pinned("fragments"); len(got) != 0 {
			t.Error("a map of the earlier program remains")
		}
		l.bypassed()
	})
}
