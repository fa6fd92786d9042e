package gossip

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A holder of the key, such as a taken-over node, sends messages in the name of another node. None
// of them silences that node or makes it leave for longer than it takes to refute them.
func TestKeyHolder(t *testing.T) {
	const victim, attacker, witness = "node-000", "node-002", "node-001"
	// sendTo sends an envelope as the attacker to the named nodes.
	sendTo := func(c *testCluster, e envelope, names ...string) {
		for _, name := range names {
			list := c.running[attacker].list
			must(c.T, list.SendToAddress(memberlist.Address{Addr: c.addr(name).String() + ":7874", Name: name},
				e.bytes()))
		}
	}
	of := func(c *testCluster) *Gossip { return c.running[victim].Gossip }
	boot := func(c *testCluster) uint64 {
		of(c).mu.Lock()
		defer of(c).mu.Unlock()
		return of(c).boot
	}
	hour := uint64(time.Hour)
	message := func(k kind, boot, seq uint64) envelope {
		return envelope{Message{victim, []byte("forged")}, k, boot, seq}
	}
	for _, tt := range []struct {
		name   string
		attack func(c *testCluster)
	}{
		{"leave", func(c *testCluster) { sendTo(c, message(kindLeave, boot(c), 1<<20), witness) }},
		{"leave, to all", func(c *testCluster) { sendTo(c, message(kindLeave, boot(c), 1<<20), witness, victim) }},
		{"leave of a later process", func(c *testCluster) { sendTo(c, message(kindLeave, boot(c)+hour, 1), witness) }},
		{"a broadcast of a later process", func(c *testCluster) {
			sendTo(c, message(kindBroadcast, boot(c)+hour, 1), witness)
		}},
		{"a message to one node of a later process",
			func(c *testCluster) { sendTo(c, message(kindUnicast, boot(c)+hour, 1), witness) }},
		{"the highest boot number", func(c *testCluster) {
			sendTo(c, message(kindBroadcast, math.MaxUint64, 1), witness, victim)
		}},
		{"the highest boot number to one node",
			func(c *testCluster) { sendTo(c, message(kindUnicast, math.MaxUint64, 1), witness) }},
		{"the highest sequence number", func(c *testCluster) {
			sendTo(c, message(kindBroadcast, boot(c), math.MaxUint64), witness)
		}},
		{"the highest sequence number to one node",
			func(c *testCluster) { sendTo(c, message(kindUnicast, boot(c), math.MaxUint64), witness) }},
		{"hellos of a later process at its address",
			func(c *testCluster) { c.forgeHello(victim, witness, boot(c)+hour) }},
		{"hellos with the highest boot number", func(c *testCluster) { c.forgeHello(victim, witness, math.MaxUint64) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := newTestCluster(t, 3)
				c.clock = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
				c.startAll(c.names()...)
				c.await("all are alive", c.names(), sees("3"))
				<-time.After(time.Second)
				tt.attack(c)
				<-time.After(100 * time.Millisecond) // It may have an effect now.
				must(t, of(c).Broadcast([]byte("a message that may be lost")))
				must(t, of(c).Send(witness, []byte("another one")))
				c.await("all are alive", c.names(), sees("3"))
				<-time.After(time.Second)
				for _, r := range c.running {
					for len(r.Received()) > 0 {
						<-r.Received()
					}
				}
				c.converse("after the attack")
				c.await("all are alive", c.names(), sees("3"))
			})
		})
	}
}

// forgeHello sends a hello from the address of a node to another one.
func (c *testCluster) forgeHello(from, to string, boot uint64) {
	at, receiver := netip.AddrPortFrom(c.addr(from), 7874), netip.AddrPortFrom(c.addr(to), 7874)
	packet := append(header{kind: packetHello, sender: boot}.bytes(), binary.BigEndian.AppendUint64(nil, 7)...)
	packet = append(append(packet, make([]byte, 8)...), from...)
	packet = append(packet, c.running[to].keysInUse.Load().use.code(packet, at, receiver)...)
	c.network.mu.Lock()
	e := c.network.endpoints[receiver.String()]
	c.network.mu.Unlock()
	for range 10 {
		e.receive(&memberlist.Packet{Buf: packet, From: net.UDPAddrFromAddrPort(at)})
	}
}

// A node whose clock is years ahead is reported and not heard until it is corrected. One whose
// clock was never set hears all others.
func TestWrongClocks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTestCluster(t, 3)
		today := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
		c.clock = today
		c.startAll("node-000")
		c.clock = time.Unix(0, 0)
		c.startAll("node-001")
		c.await("a clock that was not set", c.names("node-002"), sees("2"))
		c.clock = today.AddDate(2, 0, 0)
		c.startAll("node-002")
		c.await("two years ahead", []string{"node-000"}, func(r *testNode) error {
			if !strings.Contains(strings.Join(r.Problems(), "; "),
				"is more than 365 days ahead of this node's clock; are the clocks right?") {
				return errors.New(strings.Join(r.Problems(), "; "))
			}
			return sees("2")(r)
		})
		c.running["node-002"].stop()
		c.clock = today.AddDate(0, 11, 0)
		c.startAll("node-002")
		c.await("less than a year ahead", []string{"node-000", "node-002"}, sees("3"))
	})
}
