package fastpath

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// split returns the fragments of a packet, each with so many bytes of its content, the rest in
// the last one.
func split(ip []byte, id uint32, size int) (all [][]byte) {
	header := 20
	if ip[0]>>4 == 6 {
		header = 40
	}
	for at := 0; at < len(ip)-header; at += size {
		end := min(at+size, len(ip)-header)
		all = append(all, fragment(ip[:header], ip[header+at:header+end], id, at, header+end < len(ip)))
	}
	return all
}

// fragment returns one fragment of a packet with this header.
func fragment(header, content []byte, id uint32, at int, more bool) []byte {
	b := slices.Clone(header)
	if header[0]>>4 == 4 {
		offset := uint16(at / 8)
		if more {
			offset |= 0x2000
		}
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(content)))
		binary.BigEndian.PutUint16(b[4:], uint16(id))
		binary.BigEndian.PutUint16(b[6:], offset)
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], ^sum(b))
		return append(b, content...)
	}
	offset := uint16(at)
	if more {
		offset |= 1
	}
	b[6] = unix.IPPROTO_FRAGMENT
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(content)))
	b = append(b, header[6], 0)
	b = binary.BigEndian.AppendUint16(b, offset)
	b = binary.BigEndian.AppendUint32(b, id)
	return append(b, content...)
}

// large is a datagram with room for several fragments.
func large(from, to netip.AddrPort) packet {
	return packet{from: from, to: to, protocol: UDP, payload: append([]byte("who?"), make([]byte, 2000)...)}
}

// All fragments of a datagram go one way: by the program if the first one is first, else by the
// stack, with all packets of its flow.
func TestFragmentOrder(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			for i, tt := range []struct {
				name  string
				order []int
				want  []int32 // verdicts
				whole int32   // of a later packet of the flow
			}{
				{"in order", []int{0, 1, 2}, []int32{redirect, redirect, redirect}, redirect},
				{"the rest reordered", []int{0, 2, 1}, []int32{redirect, redirect, redirect}, redirect},
				{"one before", []int{1, 0, 2}, []int32{next, next, next}, next},
				{"reversed", []int{2, 1, 0}, []int32{next, next, next}, next},
			} {
				client := port("client", family, uint16(40000+i))
				all := split(large(client, port("vip", family, 80)).ip(), uint32(i), 800)
				for j, n := range tt.order {
					verdict, out := l.arrive(p, all[n])
					if verdict != tt.want[j] || verdict == next && !bytes.Equal(out[14:], all[n]) {
						t.Errorf("IPv%d, %s: fragment %d: verdict %d; want %d", 4+2*family, tt.name, n, verdict,
							tt.want[j])
					}
				}
				if verdict, _ := l.arrive(p, packet{from: client, to: port("vip", family, 80),
					protocol: UDP}.ip()); verdict != tt.whole {
					t.Errorf("IPv%d, %s: the next datagram: verdict %d; want %d", 4+2*family, tt.name, verdict,
						tt.whole)
				}
			}
		}
	})
}

// A number that a sender uses again soon is another datagram's.
func TestFragmentNumberUsedAgain(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		all := split(large(port("client", 0, 40000), port("vip", 0, 80)).ip(), 7, 800)
		for _, f := range all {
			l.arrive(p, f)
		}
		var key kernelDatagram
		var first kernelFirst
		if it := p.kernel.Datagrams.Iterate(); !it.Next(&key, &first) {
			t.Fatal(it.Err())
		}
		first.Seen -= 3
		if err := p.kernel.Datagrams.Put(key, first); err != nil {
			t.Fatal(err)
		}
		if verdict, _ := l.arrive(p, all[1]); verdict != next {
			t.Errorf("a fragment of another datagram: verdict %d", verdict)
		}
	})
}

// sender returns a function that sends packets from the client as they are.
func (l *lab) sender() func(ip []byte) {
	l.t.Helper()
	var fd, index int
	var err error
	l.client.Do(func() {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if link, e := netlink.LinkByName("eth0"); e != nil {
			err = e
		} else {
			index = link.Attrs().Index
		}
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { unix.Close(fd) })
	return func(ip []byte) {
		if err := unix.Sendto(fd, in(l.mac("eth0"), ip), 0, &unix.SockaddrLinklayer{Ifindex: index}); err != nil {
			l.t.Error(err)
		}
	}
}

// listen returns a socket of the client, which receives replies to sent packets.
func (l *lab) listen(at netip.AddrPort) net.PacketConn {
	l.t.Helper()
	var c net.PacketConn
	var err error
	l.client.Do(func() { c, err = net.ListenPacket("udp", at.String()) })
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return c
}

// received returns the next reply, or "silence".
func received(c net.PacketConn, wait time.Duration) string {
	buf := make([]byte, 1<<16)
	_ = c.SetReadDeadline(time.Now().Add(wait))
	n, _, err := c.ReadFrom(buf)
	if err != nil {
		return outcome(err)
	}
	return string(buf[:n])
}

// The stack reassembles a datagram whose first fragment comes last, and the rules translate it.
// Later datagrams of the flow stay with the endpoint that the rules chose.
func TestOvertakenDatagramReachesPod(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		send := l.sender()
		for _, family := range families {
			l.nft("table inet rules\ndelete table inet rules")
			l.rules(port("vip", family, 80), port("pod2", family, 8080))
			client, vip := port("client", family, 40000), port("vip", family, 80)
			c := l.listen(client)
			all := split(large(client, vip).ip(), 9, 800)
			slices.Reverse(all)
			for range 2 {
				for _, f := range all {
					send(f)
				}
				if got := received(c, 10*time.Second); got != "pod2 saw client" {
					t.Errorf("in fragments: %s", got)
				}
				send(packet{from: client, to: vip, protocol: UDP, payload: []byte("?")}.ip())
				if got := received(c, 10*time.Second); got != "pod2 saw client" {
					t.Errorf("then: %s", got)
				}
			}
		}
	})
}

// A flow whose datagrams are overtaken later keeps its endpoint: it moves to the rules.
func TestOvertakenFlowKeepsItsPod(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		send := l.sender()
		for _, family := range families {
			l.set(p, state("pod1"))
			l.nft("table inet rules\ndelete table inet rules")
			l.rules(port("vip", family, 80), port("pod2", family, 8080))
			client, vip := port("client", family, 40000), port("vip", family, 80)
			c := l.listen(client)
			whole := packet{from: client, to: vip, protocol: UDP, payload: []byte("?")}.ip()
			send(whole)
			if got := received(c, 10*time.Second); got != "pod1 saw client" {
				t.Fatalf("at first: %s", got)
			}
			id := uint32(20)
			overtaken := func() {
				id++
				all := split(large(client, vip).ip(), id, 800)
				slices.Reverse(all)
				for _, f := range all {
					send(f)
				}
			}
			overtaken() // this one is lost, as a whole
			l.await("the flow to be marked", func() bool { return l.state(p, client, vip)&flowLeave != 0 })
			p.walk()
			if l.state(p, client, vip) != flowLeft {
				t.Fatalf("state %d", l.state(p, client, vip))
			}
			for range 2 {
				overtaken()
				if got := received(c, 10*time.Second); got != "pod1 saw client" {
					t.Errorf("in fragments: %s", got)
				}
				send(whole)
				if got := received(c, 10*time.Second); got != "pod1 saw client" {
					t.Errorf("then: %s", got)
				}
			}
			l.set(p, each(state("pod1", "pod3"), func(*Frontend) {})) // ends nothing
			l.await("the walk", func() bool { return !p.Status().Busy })
			if l.state(p, client, vip) != flowLeft {
				t.Errorf("state %d after a change of endpoints", l.state(p, client, vip))
			}
			l.age(p, 121)
			p.walk()
			if n := len(l.flows(p)); n != 0 {
				t.Errorf("%d flows remain", n)
			}
		}
	})
}

// state returns the state of a client's UDP flow.
func (l *lab) state(p *Datapath, client, vip netip.AddrPort) uint32 {
	l.t.Helper()
	key := kernelTuple{
		Source: addressOf(client.Addr()), SourcePort: client.Port(),
		Destination: addressOf(vip.Addr()), DestinationPort: vip.Port(), Protocol: UDP, Direction: outward,
	}
	var f kernelFlow
	if err := p.kernel.Flows.Lookup(key, &f); err != nil {
		l.t.Fatal(err)
	}
	return f.State
}

// A connection that moves to the rules continues with its endpoint.
func TestConnectionMovesToRules(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			l.nft("table inet rules\ndelete table inet rules")
			l.rules(port("vip", family, 80), port("pod2", family, 8080))
			c := l.mustDial("tcp", 0, port("vip", family, 80))
			ask(c, "?")
			client := netip.MustParseAddrPort(c.LocalAddr().String())
			// One fragment of a segment that the connection ignores, and before it the other.
			old := packet{
				from: client, to: port("vip", family, 80), protocol: TCP, flags: ack, payload: make([]byte, 1000),
			}
			all := split(old.ip(), 5, 800)
			if verdict, _ := l.arrive(p, all[1]); verdict != next {
				t.Errorf("the overtaking one: verdict %d", verdict)
			}
			if verdict, _ := l.arrive(p, all[0]); verdict != drop {
				t.Errorf("the overtaken one: verdict %d", verdict)
			}
			p.walk()
			if n := len(l.flows(p)); n != 0 {
				t.Errorf("%d flows remain", n)
			}
			l.nft("reset counters table inet watch")
			for range 3 {
				if got := ask(c, "?"); got != "pod1 saw client" {
					t.Errorf("by the rules: %s", got)
				}
			}
			if l.counted("vip") == 0 || l.counted("pods") == 0 {
				t.Error("netfilter had no packets")
			}
		}
	})
}

// Where the first fragment is too large for the link to the pod, the stack gets all of them, and
// sends smaller ones.
func TestFragmentsForNarrowLink(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		if err := netlink.LinkSetMTU(l.link("cali1"), 1300); err != nil {
			t.Fatal(err)
		}
		p := l.path()
		l.set(p, state("pod1"))
		send := l.sender()
		client, vip := port("client", 0, 40000), port("vip", 0, 80)
		c := l.listen(client)
		send(packet{from: client, to: vip, protocol: UDP, payload: []byte("?")}.ip())
		if got := received(c, 10*time.Second); got != "pod1 saw client" {
			t.Fatalf("at first: %s", got)
		}
		for _, f := range split(large(client, vip).ip(), 9, 1480) {
			send(f)
		}
		if got := received(c, 10*time.Second); got != "pod1 saw client" {
			t.Errorf("in fragments: %s", got)
		}
	})
}
