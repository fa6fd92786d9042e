package gossip

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// Sizes on the wire in bytes, with the headers of IPv4 and UDP or TCP, for names of
// about 16 letters and no metadata. A test measures them.
const (
	pingBytes  = 174
	ackBytes   = 87
	stateBytes = 125 // of one node in an exchange of the full state
)

// traffic is what one node sends, and receives as well, while no state changes.
type traffic struct {
	Packets float64 // a second
	Bytes   float64 // a second
}

// trafficOf computes the traffic in a cluster of that many nodes. It hardly grows with them:
// each node pings one other node in an interval.
func trafficOf(nodes int) traffic {
	if nodes < 2 {
		return traffic{}
	}
	probes := float64(time.Second) / float64(probeInterval)
	exchange := float64(pushPullInterval)
	if nodes > 32 {
		exchange *= math.Ceil(math.Log2(float64(nodes))-math.Log2(32)) + 1
	}
	// Each node begins one exchange and is chosen for one, and sends its full state in each.
	exchanges := 2 * float64(time.Second) / exchange
	state := float64(nodes) * stateBytes
	return traffic{
		Packets: 2*probes + exchanges*(6+math.Ceil(state/1400)),
		Bytes:   probes*(pingBytes+ackBytes) + exchanges*(state+6*60),
	}
}

// Packets have the number and sizes that trafficOf computes with.
func TestTrafficIsMeasured(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 10
		c := newTestCluster(t, n)
		for i := range c.nodes {
			c.nodes[i].Name = fmt.Sprintf("ip-10-0-0-%03d-abcd", i)
		}
		c.startAll(c.names()...)
		c.await("all are alive", c.names(), sees(fmt.Sprint(n)))
		c.network.mu.Lock()
		clear(c.network.sent)
		c.network.mu.Unlock()
		const seconds = 5
		<-time.After(seconds * time.Second)
		if err := c.running[c.nodes[0].Name].Send(c.nodes[1].Name, make([]byte, 300)); err != nil {
			t.Fatal(err)
		}
		c.network.mu.Lock()
		defer c.network.mu.Unlock()
		// As docs/reference/layer2.md computes: envelope, name, checksum, kind and seal.
		if size := 300 + 18 + len(c.nodes[0].Name) + 5 + 1 + sealedBytes; c.network.sent[size] != 1 {
			t.Errorf("no packet of %d bytes: %v", size, c.network.sent)
		}
		var sizes []int
		packets := 0
		for size, n := range c.network.sent {
			sizes = append(sizes, size)
			packets += n
		}
		if each, want := float64(packets)/seconds/n, trafficOf(n).Packets; math.Abs(each-want) > 0.2*want {
			t.Errorf("%.1f packets a second, want %.1f", each, want)
		}
		slices.SortFunc(sizes, func(a, b int) int { return c.network.sent[b] - c.network.sent[a] })
		usual := []int{sizes[0] + 28, sizes[1] + 28} // with the headers of IPv4 and UDP
		slices.Sort(usual)
		for i, want := range []int{ackBytes, pingBytes} {
			if math.Abs(float64(usual[i]-want)) > 0.1*float64(want) {
				t.Errorf("packets of %v bytes, want %d and %d", usual, ackBytes, pingBytes)
			}
		}
	})
}

// The traffic hardly grows with the number of nodes.
func TestTrafficOf(t *testing.T) {
	for _, n := range []int{0, 1} {
		if got := trafficOf(n); got != (traffic{}) {
			t.Errorf("%d: %+v", n, got)
		}
	}
	few, many := trafficOf(10), trafficOf(1000)
	if few.Packets < 30 || few.Bytes < 3000 || many.Bytes > 3*few.Bytes || many.Packets > 2*few.Packets {
		t.Errorf("10 nodes: %+v, 1,000: %+v", few, many)
	}
}

// The documentation has the traffic that trafficOf computes.
func TestTrafficIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/layer2.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{3, 10, 100, 1000} {
		c := trafficOf(n)
		row := fmt.Sprintf("| %d | %.0f | %.0f |", n, c.Packets, math.Round(c.Bytes/100)*100)
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/reference/layer2.md has no row %s", row)
		}
	}
}
