package observer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// requestInterval is the time between two requests. A node would answer ten times as many.
	requestInterval = 20 * time.Millisecond
	// claimLifetime is how long a claim counts. A node answers a request at once, or a little
	// later on a busy machine.
	claimLifetime = 250 * time.Millisecond
	// minRequests is the number of requests in that time without which Now fails.
	minRequests = 5
)

// Claims records which nodes claim addresses on the nodes' segment, and when: in answers to
// constant requests, and unsolicited.
type Claims struct {
	taps []tap
	stop context.CancelFunc
	done chan struct{}
	node map[string]string // hardware address -> node
	log  func(claimEvent)

	mu        sync.Mutex
	requested []time.Time
	of        map[netip.Addr][]claim
	err       error
}

// A claim is one packet that claims an address.
type claim struct {
	at   time.Time
	node string
}

// A tap receives the claims of one address family and sends the requests for them.
type tap struct {
	*Listener
	requests [][]byte
}

// WatchClaims sends requests for addresses from a host's interface until Close. The nodes are
// by hardware address. The claims also count in the Verdict.
func (o *Observer) WatchClaims(host Namespace, iface string, nodes map[string]string,
	vips ...netip.Addr) (c *Claims, err error) {
	c = &Claims{log: o.recordClaim, node: nodes, of: map[netip.Addr][]claim{}, done: make(chan struct{})}
	for _, vip := range vips {
		c.of[vip] = nil
	}
	for _, f := range claimFamilies {
		t := tap{}
		for _, vip := range vips {
			if vip.Is4() == f.is4 {
				t.requests = append(t.requests, f.request(vip))
			}
		}
		open := func(func(int) error) (int, error) { return f.open(iface) }
		record := func(at time.Time, frame []byte) error { c.record(f, at, frame); return nil }
		if t.Listener, err = Listen(host, "claims by "+f.name, open, record, c.fail); err != nil {
			c.closeTaps()
			return nil, err
		}
		c.taps = append(c.taps, t)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go c.sendRequests(ctx)
	return c, nil
}

func (c *Claims) sendRequests(ctx context.Context) {
	defer close(c.done)
	ticks := time.NewTicker(requestInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		now := time.Now()
		for _, t := range c.taps {
			for _, q := range t.requests {
				if _, err := unix.Write(t.fd, q); err != nil {
					c.fail(fmt.Errorf("send a request for an address: %w", err))
					return
				}
			}
		}
		c.mu.Lock()
		c.requested = append(c.requested, now)
		c.mu.Unlock()
	}
}

// record stores the claim in a frame, if there is one.
func (c *Claims) record(f claimFamily, at time.Time, frame []byte) {
	vip, mac, ok := f.read(frame)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ours := c.of[vip]; !ok || !ours {
		return
	}
	node := c.node[mac.String()]
	if node == "" {
		node = mac.String()
	}
	c.of[vip] = append(c.of[vip], claim{at, node})
	c.log(claimEvent{at, node, vip})
}

func (c *Claims) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(c.err, err)
}

// Close stops the requests and the recording.
func (c *Claims) Close() {
	c.stop()
	<-c.done
	c.closeTaps()
}

func (c *Claims) closeTaps() {
	for _, t := range c.taps {
		t.Close()
	}
}

// Now returns the nodes that claim an address, sorted. It fails if too few requests were
// sent since the given time to know.
func (c *Claims) Now(vip netip.Addr, since time.Time) (nodes []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.requested)
	if n <= minRequests || c.err != nil {
		return nil, errors.Join(c.err, errors.New("too few requests were sent so far"))
	}
	// The answers to the last request may be under way.
	from := c.requested[n-1-minRequests]
	if lately := time.Now().Add(-claimLifetime); lately.Before(from) {
		from = lately
	}
	if from.Before(since) {
		return nil, errors.New("too few requests were sent since")
	}
	return claimants(c.of[vip], from), nil
}

// claimants returns the nodes of claims since a time, sorted.
func claimants(list []claim, since time.Time) []string {
	nodes := map[string]bool{}
	for _, x := range slices.Backward(list) {
		if x.at.Before(since) {
			break
		}
		nodes[x.node] = true
	}
	return slices.Sorted(maps.Keys(nodes))
}

// Coverage returns how long several nodes claimed an address between two times, and how
// long no node did.
func (c *Claims) Coverage(vip netip.Addr, from, to time.Time) (several, none time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return coverage(c.of[vip], from, to)
}

// coverage takes a node as claiming an address between two of its claims, unless they are
// more than claimLifetime apart.
func coverage(list []claim, from, to time.Time) (several, none time.Duration) {
	var transitions []transition
	last := map[string]time.Time{}
	for _, x := range list {
		if x.at.Before(from) || x.at.After(to) {
			continue
		}
		if was, ok := last[x.node]; ok && x.at.Sub(was) <= claimLifetime {
			transitions = append(transitions, transition{was, 1}, transition{x.at, -1})
		}
		last[x.node] = x.at
	}
	transitions = append(transitions, transition{to, 0})
	slices.SortStableFunc(transitions, func(a, b transition) int { return a.at.Compare(b.at) })
	at, count := from, 0
	for _, e := range transitions {
		switch {
		case count > 1:
			several += e.at.Sub(at)
		case count == 0:
			none += e.at.Sub(at)
		}
		at, count = e.at, count+e.delta
	}
	return several, none
}

// A transition is the moment at which a node begins or ceases to claim an address.
type transition struct {
	at    time.Time
	delta int
}
