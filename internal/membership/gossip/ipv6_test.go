package gossip

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Nodes with only IPv6 addresses find one another by real sockets, receive messages, and
// detect a dead node.
func TestIPv6(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c, host := newTestCluster(t, 3), nstest.Node(t)
		c.network = nil
		for i := range c.nodes {
			c.nodes[i].Addrs = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1))}
			host.Addr("lo", c.nodes[i].Addrs[0].String()+"/128")
		}
		c.startAll(c.names()...)
		c.await("all are alive", c.names(), sees("3"))
		if err := c.running["node-000"].Broadcast([]byte("to all")); err != nil {
			t.Fatal(err)
		}
		if err := c.running["node-000"].Send("node-001", []byte("to one")); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]int{"node-001": 2, "node-002": 1} {
			received := map[string]bool{}
			for range want {
				select {
				case m := <-c.running[name].Received():
					received[m.Node+" "+string(m.Data)] = true
				case <-time.After(time.Minute):
					t.Fatalf("%s received only %v", name, received)
				}
			}
			if !received["node-000 to all"] || want == 2 && !received["node-000 to one"] {
				t.Errorf("%s received %v", name, received)
			}
		}
		c.running["node-002"].stop()
		c.await("one is dead", c.names("node-002"), sees("2 node-002 dead"))
		c.startAll("node-002")
		c.await("it is back", c.names(), sees("3"))
	})
}
