package gossip

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A recorder keeps all traffic of a network, as an attacker on the link does who has no key.
type recorder struct {
	mu      sync.Mutex
	packets []recordedPacket
	streams []*recordedStream
}

type recordedPacket struct {
	from netip.AddrPort
	data []byte
}

// A recordedStream has what the side that connected has sent.
type recordedStream struct {
	net.Conn
	recorder *recorder
	from     netip.AddrPort
	data     []byte
}

func (r *recorder) packet(from netip.AddrPort, _ string, b []byte) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.packets = append(r.packets, recordedPacket{from, slices.Clone(b)})
}

func (r *recorder) stream(c net.Conn, from netip.AddrPort) net.Conn {
	if r == nil {
		return c
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &recordedStream{Conn: c, recorder: r, from: from}
	r.streams = append(r.streams, s)
	return s
}

func (s *recordedStream) Write(b []byte) (int, error) {
	s.recorder.mu.Lock()
	s.data = append(s.data, b...)
	s.recorder.mu.Unlock()
	return s.Conn.Write(b)
}

// replay sends all that was recorded to every node, with its former source address, and
// returns the numbers of packets and streams.
func (c *testCluster) replay(r *recorder) (packets, streams int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.network.mu.Lock()
	endpoints := slices.Collect(maps.Values(c.network.endpoints))
	c.network.mu.Unlock()
	for _, to := range endpoints {
		for _, p := range r.packets {
			to.packets <- &memberlist.Packet{
				Buf: slices.Clone(p.data), From: net.UDPAddrFromAddrPort(p.from), Timestamp: time.Now(),
			}
		}
		for _, s := range r.streams {
			ours, theirs := net.Pipe()
			to.streams <- pipe{Conn: theirs, from: s.from}
			go io.Copy(io.Discard, ours)
			ours.SetDeadline(time.Now().Add(time.Second))
			ours.Write(s.data)
			ours.Close()
		}
	}
	return len(r.packets) * len(endpoints), len(r.streams) * len(endpoints)
}

// stopRecording ends the recording and returns it.
func (n *network) stopRecording() *recorder {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.recorder
	n.recorder = nil
	return r
}

// expectNothing fails if a node has received a message, or shows another View than before.
func (c *testCluster) expectNothing(when string, views map[string]*View) {
	c.Helper()
	for name, r := range c.running {
		select {
		case m := <-r.Received():
			c.Errorf("%s: %s received %q of %s", when, name, m.Data, m.Node)
		default:
		}
		if before := views[name]; before != nil && r.View() != before {
			c.Errorf("%s: %s saw %s, and sees %s", when, name, describe(before), describe(r.View()))
		}
	}
}

func (c *testCluster) views() map[string]*View {
	all := map[string]*View{}
	for name, r := range c.running {
		all[name] = r.View()
	}
	return all
}

func describe(v *View) (text string) {
	for _, m := range v.Members {
		text += fmt.Sprintf("%s %s %q since %d; ", m.Node, m.State, m.Meta, m.Since.UnixMilli())
	}
	return text
}

// converse has each node broadcast a message and send another one to each other node, and
// checks that each arrives once.
func (c *testCluster) converse(text string) {
	c.Helper()
	for _, from := range c.names() {
		must(c.T, c.running[from].Broadcast([]byte(text+" to all")))
		for _, to := range c.names(from) {
			must(c.T, c.running[from].Send(to, []byte(text+" to one")))
		}
	}
	<-time.After(2 * time.Second)
	for name, r := range c.running {
		got := map[string]int{}
		for len(r.Received()) > 0 {
			m := <-r.Received()
			got[m.Node+": "+string(m.Data)]++
		}
		for _, from := range c.names(name) {
			for _, m := range []string{from + ": " + text + " to all", from + ": " + text + " to one"} {
				if got[m] != 1 {
					c.Errorf("%s received %q %d times, want once", name, m, got[m])
				}
				delete(got, m)
			}
		}
		if len(got) > 0 {
			c.Errorf("%s also received %v", name, got)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// All traffic of three nodes is recorded while they join, speak, change their metadata,
// leave, die and return. Replayed, it changes nothing, whether the nodes are the same
// processes, one has restarted, one has restarted with a clock that is years behind, or one
// is dead; and all of them hear one another afterwards.
func TestReplayIsHarmless(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 3)
		c.network.recorder = &recorder{}
		c.startAll(c.names()...)
		c.await("all are alive", c.names(), sees("3"))
		c.converse("recorded")
		must(t, c.running["node-000"].SetMeta([]byte("old")))
		<-time.After(time.Second)
		must(t, c.running["node-000"].SetMeta([]byte("new")))
		for range 2 {
			gone := c.running["node-002"]
			gone.Leave()
			gone.stop()
			c.await("one leaves", c.names("node-002"), sees("2 node-002 left"))
			c.startAll("node-002")
			c.await("it is back", c.names(), sees("3"))
		}
		c.running["node-001"].stop()
		c.await("one dies", c.names("node-001"), sees("2 node-001 dead"))
		c.startAll("node-001")
		c.await("it is back", c.names(), sees("3"))
		c.converse("recorded later")
		recorded := c.network.stopRecording()

		attack := func(when string) {
			t.Helper()
			views := c.views()
			for range 3 {
				packets, streams := c.replay(recorded)
				if packets < 1000 || streams < 10 {
					t.Fatalf("%d packets and %d streams were replayed", packets, streams)
				}
				<-time.After(2 * time.Second)
				c.expectNothing(when, views)
			}
		}
		attack("the same processes")
		c.converse("after the first attack")

		restart := func(when, name string, clock time.Time) {
			t.Helper()
			c.running[name].stop()
			c.await(when+": dead", c.names(name), sees("2 "+name+" dead"))
			c.clock = clock
			c.startAll(name)
			c.clock = time.Time{}
			c.replay(recorded) // while it joins
			c.expectNothing(when, nil)
			c.await(when+": back", c.names(), sees("3"))
			c.expectNothing(when, nil)
			if !clock.IsZero() {
				<-time.After(time.Second) // it learns that its boot number was higher
			}
			c.converse(when)
			attack(when)
			c.converse(when + ", after the attack")
		}
		restart("a restart", "node-001", time.Time{})
		restart("a clock that went backwards", "node-001", time.Unix(0, 0))
		restart("and again", "node-001", time.Unix(0, 0))
		restart("a clock in the future", "node-002", time.Now().AddDate(70, 0, 0))
		restart("which was corrected", "node-002", time.Now())

		c.running["node-002"].stop()
		delete(c.running, "node-002")
		two, died := c.names("node-002"), time.Now()
		for range 10 { // Copies of its acks keep no node alive.
			c.replay(recorded)
			<-time.After(probeInterval)
		}
		c.await("one dies for good", two, sees("2 node-002 dead"))
		if took := time.Since(died); took > 2*time.Second {
			t.Errorf("it was dead after %s", took)
		}
		for range 3 {
			<-time.After(2 * gossipToTheDead) // memberlist forgets it
			attack("a dead node")
			c.await("it stays dead", two, sees("2 node-002 dead"))
		}
	})
}

// A copy of what one side of a connection sent opens no connection with the other one. What
// is sent arrives, whatever its length.
func TestStreams(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k := key{1}
		g := New(Options{Node: "n1", Log: slog.New(slog.DiscardHandler)})
		g.keysInUse.Store(&keysInUse{k, []key{{2}, k}})
		side := func(c net.Conn, dialed bool) *sealedConn {
			c.SetDeadline(time.Now().Add(time.Second))
			return &sealedConn{
				Conn:      pipe{Conn: c, from: netip.MustParseAddrPort("127.0.0.2:7874")},
				transport: &sealedTransport{gossip: g}, dialed: dialed,
			}
		}
		text := bytes.Repeat([]byte("0123456789"), 5000)
		a, b := net.Pipe()
		sent := [2]*recordedStream{(&recorder{}).stream(a, netip.AddrPort{}).(*recordedStream),
			(&recorder{}).stream(b, netip.AddrPort{}).(*recordedStream)}
		asks, answers := side(sent[0], true), side(sent[1], false)
		go func() {
			asks.Write(text)
			io.Copy(asks, asks)
			asks.Close()
		}()
		got := make([]byte, len(text))
		if _, err := io.ReadFull(answers, got); err != nil || !bytes.Equal(got, text) {
			t.Fatalf("received %d bytes: %v", len(got), err)
		}
		go answers.Write(text[:100])
		if _, err := io.ReadFull(answers, got[:100]); err != nil || !bytes.Equal(got[:100], text[:100]) {
			t.Fatalf("the answer: %v", err)
		}
		a.Close()
		b.Close()

		for i, s := range sent {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, ours)
			go ours.Write(s.data)
			victim := side(theirs, i == 1)
			if i == 1 { // The victim connects, and the attacker answers.
				victim.Write([]byte("x"))
			}
			if n, err := victim.Read(got); err == nil || n > 0 {
				t.Errorf("side %d: a copy of %d bytes was accepted", i, len(s.data))
			}
			ours.Close()
		}
		if got := testutil.ToFloat64(g.metrics.rejected); got != 2 {
			t.Errorf("%v copies were counted, want 2", got)
		}
	})
}
