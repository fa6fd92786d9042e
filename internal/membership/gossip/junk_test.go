package gossip

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A junkyard is a speaker among 1,000 nodes, and the one other speaker that it hears.
type junkyard struct {
	victim, other *sealedTransport
	to, from      *endpoint
}

const (
	junkNodes = 1000
	stranger  = "192.0.2.1:7874"
)

// newJunkyard returns two speakers that know each other's boot numbers.
func newJunkyard(tb testing.TB) *junkyard {
	nodes, a := []Node{}, netip.MustParseAddr("10.0.0.1")
	for i := range junkNodes {
		nodes = append(nodes, Node{fmt.Sprintf("node-%04d", i), []netip.Addr{a}})
		a = a.Next()
	}
	n := newNetwork()
	start := func(i int, boot uint64) (*sealedTransport, *endpoint) {
		g := New(Options{Node: nodes[i].Name, Port: 7874, Log: slog.New(slog.DiscardHandler)})
		g.keysInUse.Store(&keysInUse{key{1}, []key{{1}}})
		g.Set(nodes)
		at := netip.AddrPortFrom(nodes[i].Addrs[0], 7874)
		inner, err := n.open(at, g.admits, nil)
		if err != nil {
			tb.Fatal(err)
		}
		t := sealTransport(inner, g, at, boot)
		tb.Cleanup(func() { t.Shutdown() })
		return t, inner.(*endpoint)
	}
	y := &junkyard{}
	y.victim, y.to = start(0, 1000)
	y.other, y.from = start(1, 2000)
	y.exchange(tb, "first")
	return y
}

// exchange sends a packet of memberlist and waits until it has arrived.
func (y *junkyard) exchange(tb testing.TB, text string) {
	tb.Helper()
	if _, err := y.other.WriteTo([]byte(text), y.victim.addr.String()); err != nil {
		tb.Fatal(err)
	}
	select {
	case p := <-y.victim.PacketCh():
		if string(p.Buf) != text {
			tb.Fatalf("received %q, want %q", p.Buf, text)
		}
	case <-time.After(time.Minute):
		tb.Fatalf("%q was not received", text)
	}
}

// receive does with a datagram what the reader of the socket does.
func (y *junkyard) receive(from netip.AddrPort, datagram []byte) (opened bool) {
	if !y.to.admits(from.Addr()) {
		return false
	}
	p := &memberlist.Packet{Buf: append([]byte{}, datagram...), From: net.UDPAddrFromAddrPort(from)}
	return y.victim.open(p) != nil
}

// A junk datagram is not authentic.
type junk struct {
	name   string
	from   func(*junkyard) netip.AddrPort
	head   func(*junkyard, uint64) header
	allocs float64 // limit for one
}

func ofOther(y *junkyard) netip.AddrPort     { return y.other.addr }
func ofStranger(*junkyard) netip.AddrPort    { return netip.MustParseAddrPort(stranger) }
func otherPort(y *junkyard) netip.AddrPort   { return netip.AddrPortFrom(y.other.addr.Addr(), 40000) }
func copied(y *junkyard, i uint64) header    { return header{packetData, y.other.boot, y.victim.boot, i} }
func otherBoot(y *junkyard, i uint64) header { return header{packetData, i << 40, y.victim.boot, i} }
func hello(_ *junkyard, i uint64) header     { return header{packetHello, i << 40, 0, 0} }
func answer(y *junkyard, i uint64) header    { return header{packetAnswer, i << 40, y.victim.boot, 0} }

// junks are what a host on the link can send, with any source. It reads the headers of real packets.
var junks = []junk{
	{"unknown source", ofStranger, copied, 0},
	{"a node's address, another port", otherPort, copied, 6},
	{"a node's address, its boot number, a wrong seal", ofOther, copied, 12},
	{"a node's address, another boot number", ofOther, otherBoot, 8},
	{"a node's address, a hello with a wrong code", ofOther, hello, 20},
	{"a node's address, an answer with a wrong code", ofOther, answer, 20},
}

func (j junk) datagram(y *junkyard, i uint64) []byte {
	b := append(j.head(y, i).bytes(), make([]byte, 75)...)
	binary.BigEndian.PutUint64(b[headerBytes:], i)
	return b
}

// A junk datagram derives no key, which allocates 30 times, and waits for no lock that the members
// have: whatever it costs does not depend on the number of nodes.
func TestJunkIsCheap(t *testing.T) {
	y := newJunkyard(t)
	g := y.victim.gossip
	y.to.network.partition(y.other.addr.Addr(), true) // It answers no hello.
	for _, j := range junks {
		g.unknown, g.wrong = &rate.Limiter{}, &rate.Limiter{} // It was reported just now.
		from, i := j.from(y), uint64(0)
		b := j.datagram(y, 1)
		y.victim.asks.AllowN(time.Now(), asksPerSecond)
		finished := make(chan float64, 1)
		g.mu.Lock()
		go func() {
			defer close(finished)
			finished <- testing.AllocsPerRun(1000, func() {
				i++
				binary.BigEndian.PutUint64(b[headerBytes:], i)
				if y.receive(from, b) {
					t.Errorf("%s: accepted", j.name)
				}
			})
		}()
		select {
		case n := <-finished:
			t.Logf("%s: %v allocations", j.name, n)
			if n > j.allocs {
				t.Errorf("%s: %v allocations, want %v at most", j.name, n, j.allocs)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: waits for the members' lock", j.name)
		}
		g.mu.Unlock()
		<-finished
	}
}

// However much junk has a node's address as its source, each packet of that node is accepted, and a
// new process of it is known with its first hello. The junk makes this node send little.
func TestJunkDoesNotShutOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		y := newJunkyard(t)
		recorded := append(header{kind: packetHello, sender: y.other.boot}.bytes(), make([]byte, 16)...)
		recorded = append(recorded, key{1}.code(recorded, y.other.addr, y.victim.addr)...)
		flood := func() {
			for _, j := range junks {
				for range 1000 {
					if y.receive(j.from(y), j.datagram(y, rand.Uint64())) {
						t.Errorf("%s: accepted", j.name)
					}
				}
			}
			for range 1000 {
				y.receive(y.other.addr, recorded)
			}
		}
		for i := range 20 {
			flood()
			y.exchange(t, fmt.Sprint("packet ", i))
		}
		sent := 0
		for _, n := range y.to.network.sent {
			sent += n
		}
		if limit := 20 + 2*(asksPerSecond+10) + answersPerSecond; sent > limit {
			t.Errorf("%d packets were sent, want %d at most", sent, limit)
		}
		if err := y.other.Shutdown(); err != nil {
			t.Fatal(err)
		}
		inner, err := y.to.network.open(y.other.addr, y.other.gossip.admits, nil)
		if err != nil {
			t.Fatal(err)
		}
		y.other = sealTransport(inner, y.other.gossip, y.other.addr, 3000)
		defer y.other.Shutdown()
		flood()
		<-time.After(helloInterval) // A few answers are allowed again.
		y.exchange(t, "of a new process")
		flood()
		y.exchange(t, "of the same")
		if n := len(y.victim.sessions); n > 2 {
			t.Errorf("%d sessions are kept, want 2 at most", n)
		}
	})
}

// Connections from a node's address that show no key, such as those of a pod on it, end when there
// are many, and hinder none of that node's own.
func TestJunkConnections(t *testing.T) {
	y := newJunkyard(t)
	open := 0
	closed := make(chan struct{}, 1000)
	junk := func(n int) {
		for range n {
			ours, theirs := net.Pipe()
			y.victim.accepted(pipe{Conn: theirs, from: netip.AddrPortFrom(y.other.addr.Addr(), 40000)})
			open++
			go func() {
				io.Copy(io.Discard, ours)
				closed <- struct{}{}
			}()
		}
		for ; open > maxUnproven; open-- {
			select {
			case <-closed:
			case <-time.After(time.Minute):
				t.Fatalf("%d connections without a key are open, want %d", open, maxUnproven)
			}
		}
	}
	junk(100)
	ours, theirs := net.Pipe()
	real := y.victim.accepted(pipe{Conn: theirs, from: y.other.addr})
	open--
	<-closed // the oldest
	dialed := &sealedConn{Conn: pipe{Conn: ours, from: y.victim.addr}, transport: y.other, dialed: true}
	junk(maxUnproven - 1)
	go dialed.Write([]byte("a"))
	got := make([]byte, 1)
	if _, err := io.ReadFull(real, got); err != nil {
		t.Fatal(err)
	}

	junk(100)
	go dialed.Write([]byte("b"))
	if _, err := io.ReadFull(real, got); err != nil || got[0] != 'b' {
		t.Fatalf("received %q: %v", got, err)
	}
	real.Close()
	if n := len(y.victim.unproven.of[y.other.addr.Addr()]); n > maxUnproven {
		t.Errorf("%d connections are kept", n)
	}
}

// BenchmarkDatagram measures what one datagram costs the only reader of the socket, after the
// system call.
func BenchmarkDatagram(b *testing.B) {
	for _, j := range junks {
		b.Run(j.name, func(b *testing.B) {
			y := newJunkyard(b)
			from, datagram, i := j.from(y), j.datagram(y, 1), uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				i++
				binary.BigEndian.PutUint64(datagram[headerBytes:], i)
				y.receive(from, datagram)
			}
		})
	}
	b.Run("good", func(b *testing.B) {
		y := newJunkyard(b)
		var datagrams [][]byte
		for i := range b.N {
			h := header{packetData, y.other.boot, y.victim.boot, uint64(i + 10)}.bytes()
			aead := packetCipher(key{1}, y.other.addr.Addr(), y.other.boot)
			datagrams = append(datagrams, aead.Seal(h, nonceOf(uint64(i+10)), make([]byte, 59),
				authenticated(h, y.victim.addr)))
		}
		b.ReportAllocs()
		b.ResetTimer()
		for _, d := range datagrams {
			if !y.receive(y.other.addr, d) {
				b.Fatal("not accepted")
			}
		}
	})
}
