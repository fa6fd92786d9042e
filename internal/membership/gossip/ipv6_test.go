package gossip

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// Nodes that have IPv6 addresses alone find one another by real sockets, hear what is said,
// and miss one that goes.
func TestIPv6(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w, host := newTown(t, 3), nstest.Node(t)
		w.hub = nil
		for i := range w.nodes {
			w.nodes[i].Addrs = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1))}
			host.Addr("lo", w.nodes[i].Addrs[0].String()+"/128")
		}
		w.settle(w.names()...)
		w.await("all are there", w.names(), is("3"))
		if err := w.all["node-000"].Broadcast([]byte("to all")); err != nil {
			t.Fatal(err)
		}
		if err := w.all["node-000"].Tell("node-001", []byte("to one")); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]int{"node-001": 2, "node-002": 1} {
			heard := map[string]bool{}
			for range want {
				select {
				case m := <-w.all[name].Received():
					heard[m.Node+" "+string(m.Data)] = true
				case <-time.After(time.Minute):
					t.Fatalf("%s has heard %v alone", name, heard)
				}
			}
			if !heard["node-000 to all"] || want == 2 && !heard["node-000 to one"] {
				t.Errorf("%s has heard %v", name, heard)
			}
		}
		w.all["node-002"].stop()
		w.await("one is gone", w.names("node-002"), is("2 node-002 dead"))
		w.settle("node-002")
		w.await("it is back", w.names(), is("3"))
	})
}
