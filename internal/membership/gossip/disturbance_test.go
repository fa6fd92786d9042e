package gossip

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A disturbance loses packets of a network and stalls its nodes. Nil does neither.
//
// A stall holds all that a node sends and receives until it ends, as if its process had no
// processor time. Its timers run on, and what they send leaves at the end of the stall: then the
// timers of a stalled process expire, too.
type disturbance struct {
	latency time.Duration // of each packet
	loss    float64       // the share of lost packets
	stall   time.Duration
	// maxBytes is the size above which all packets are lost; 0: none.
	maxBytes int

	mu      sync.Mutex
	rand    *rand.Rand
	stalled map[string]time.Time // until when, by address
	count   traffic              // of all nodes together
	lost    int
	stalls  int
}

const (
	// synRetry and dataRetry are after how long Linux repeats a lost segment (RFC 6298): the
	// first one of a connection, and those after it.
	synRetry  = time.Second
	dataRetry = 200 * time.Millisecond
	// udpHeaders are the bytes of the headers of IPv4 and UDP.
	udpHeaders = 28
)

func newDisturbance(seed uint64) *disturbance {
	return &disturbance{rand: rand.New(rand.NewPCG(seed, 0)), stalled: map[string]time.Time{}}
}

// packet counts a packet of some bytes, and returns after how long it arrives, unless it is
// lost.
func (d *disturbance) packet(from, to string, bytes int) (delay time.Duration, lost bool) {
	if d == nil {
		return 0, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Packets++
	d.count.Bytes += float64(bytes + udpHeaders)
	if d.maxBytes > 0 && bytes > d.maxBytes || d.losesLocked(1) {
		return 0, true
	}
	return max(d.remainingLocked(from), d.remainingLocked(to)) + d.latency, false
}

// connection returns after how long a node is connected, and how long after that the process at
// the other end receives the first data: the kernel of a stalled process accepts connections.
func (d *disturbance) connection(from, to string) (connected, received time.Duration) {
	if d == nil {
		return 0, 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	connected = d.remainingLocked(from) + 2*d.latency
	if d.losesLocked(2) {
		connected += synRetry
	}
	received = max(0, d.remainingLocked(to)-connected) + d.latency
	if d.losesLocked(4) {
		received += dataRetry
	}
	return connected, received
}

// streamed counts the bytes of a connection.
func (d *disturbance) streamed(bytes int) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Bytes += float64(bytes)
}

// losesLocked reports whether one of some packets is lost.
func (d *disturbance) losesLocked(packets int) (lost bool) {
	for range packets {
		if d.rand.Float64() < d.loss {
			d.lost++
			lost = true
		}
	}
	return lost
}

// remainingLocked is how long a node is still stalled.
func (d *disturbance) remainingLocked(addr string) time.Duration {
	until, stalled := d.stalled[addr]
	if !stalled {
		return 0
	}
	left := time.Until(until)
	if left <= 0 {
		delete(d.stalled, addr)
	}
	return max(left, 0)
}

// begin stalls a node.
func (d *disturbance) begin(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stalled[addr] = time.Now().Add(d.stall)
	d.stalls++
}
