package lab

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
	// askInterval is how often it is asked who has an address: a tenth of what a node
	// answers at most in a second.
	askInterval = 20 * time.Millisecond
	// claimHolds is for how long a node is taken to go on claiming what it has claimed.
	// A node that is asked answers at once, or, where processors are busy, a little later.
	claimHolds = 250 * time.Millisecond
	// claimAsks is how often at least a node must have been asked in that time.
	claimAsks = 5
)

// Claims are who says on the nodes' segment that it has an address, and when: unasked, and
// because it is asked all the time.
type Claims struct {
	taps []tap
	stop context.CancelFunc
	done chan struct{}
	node map[string]string // by hardware address

	mu    sync.Mutex
	asked []time.Time
	of    map[netip.Addr][]claim
	err   error
}

// A claim is one packet.
type claim struct {
	at   time.Time
	node string
}

// A tap is where claims of one family are heard, and by which they are asked for.
type tap struct {
	*listener
	questions [][]byte
}

// WatchClaims asks who has these addresses, from the host's place, until Close.
func (l *Lab) WatchClaims(vips ...netip.Addr) (c *Claims, err error) {
	c = &Claims{node: map[string]string{}, of: map[netip.Addr][]claim{}, done: make(chan struct{})}
	for _, n := range NodeNames {
		mac, err := l.MAC(n)
		if err != nil {
			return nil, err
		}
		c.node[mac] = n
	}
	for _, vip := range vips {
		c.of[vip] = nil
	}
	for _, f := range claimFamilies {
		t := tap{}
		for _, vip := range vips {
			if vip.Is4() == f.is4 {
				t.questions = append(t.questions, f.question(vip))
			}
		}
		open := func(func(int) error) (int, error) { return f.open("eth1") }
		hear := func(at time.Time, frame []byte) error { c.hear(f, at, frame); return nil }
		if t.listener, err = listen(l.namespaces["host"], "claims by "+f.name, open, hear, c.fail); err != nil {
			c.untap()
			return nil, err
		}
		c.taps = append(c.taps, t)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go c.ask(ctx)
	return c, nil
}

func (c *Claims) ask(ctx context.Context) {
	defer close(c.done)
	ticks := time.NewTicker(askInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		now := time.Now()
		for _, t := range c.taps {
			for _, q := range t.questions {
				if _, err := unix.Write(t.fd, q); err != nil {
					c.fail(fmt.Errorf("ask who has an address: %w", err))
					return
				}
			}
		}
		c.mu.Lock()
		c.asked = append(c.asked, now)
		c.mu.Unlock()
	}
}

// hear takes down who claims an address in one frame.
func (c *Claims) hear(f claimFamily, at time.Time, frame []byte) {
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
}

func (c *Claims) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(c.err, err)
}

// Close ends the watch.
func (c *Claims) Close() {
	c.stop()
	<-c.done
	c.untap()
}

func (c *Claims) untap() {
	for _, t := range c.taps {
		t.close()
	}
}

// Now are the nodes that claim an address, sorted. It is an error that they were not asked
// often enough lately, since a time, to tell.
func (c *Claims) Now(vip netip.Addr, since time.Time) (nodes []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.asked)
	if n <= claimAsks || c.err != nil {
		return nil, errors.Join(c.err, errors.New("no request was sent yet"))
	}
	// Of the last question the answer may be under way.
	from := c.asked[n-1-claimAsks]
	if lately := time.Now().Add(-claimHolds); lately.Before(from) {
		from = lately
	}
	if from.Before(since) {
		return nil, errors.New("they were not asked often enough yet")
	}
	return claimants(c.of[vip], from), nil
}

// Since are the nodes that have claimed an address since a time, sorted.
func (c *Claims) Since(vip netip.Addr, since time.Time) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return claimants(c.of[vip], since), c.err
}

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

// Shares says for how long more than one node claimed an address between two times, and
// for how long no node did.
func (c *Claims) Shares(vip netip.Addr, from, to time.Time) (several, none time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return shares(c.of[vip], from, to)
}

// shares takes it that a node claims an address from one claim to the next, unless there
// is more than claimHolds between them.
func shares(list []claim, from, to time.Time) (several, none time.Duration) {
	var edges []edge
	last := map[string]time.Time{}
	for _, x := range list {
		if x.at.Before(from) || x.at.After(to) {
			continue
		}
		if was, ok := last[x.node]; ok && x.at.Sub(was) <= claimHolds {
			edges = append(edges, edge{was, 1}, edge{x.at, -1})
		}
		last[x.node] = x.at
	}
	edges = append(edges, edge{to, 0})
	slices.SortStableFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) })
	at, count := from, 0
	for _, e := range edges {
		switch {
		case count > 1:
			several += e.at.Sub(at)
		case count == 0:
			none += e.at.Sub(at)
		}
		at, count = e.at, count+e.more
	}
	return several, none
}

// An edge is where a node begins or ends to claim an address.
type edge struct {
	at   time.Time
	more int
}
