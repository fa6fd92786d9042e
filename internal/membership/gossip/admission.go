package gossip

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// reportInterval is the shortest time between two reports of rejected senders. A flood of them costs
// a counter each.
const reportInterval = 100 * time.Millisecond

// firstRelease is later than any clock that has not been set since the machine started without one
// of its own. Such a clock sets no limit.
var firstRelease = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// isFarAhead reports whether a boot number is too far ahead of a clock.
func isFarAhead(boot uint64, now time.Time) bool {
	return now.After(firstRelease) && boot > uint64(now.Add(maxAhead).UnixNano())
}

// rejectBoot reports that a node, or the process at an address, uses a boot number that is too far
// ahead.
func (p problems) rejectBoot(of string, boot uint64) error {
	err := fmt.Errorf("messages of %s are rejected: their boot number, %d, is the time of its speaker's start in "+
		"nanoseconds since 1970, and is more than %d days ahead of this node's clock; are the clocks right?", of, boot,
		maxAhead/(24*time.Hour))
	p.set("boot "+of, time.Now(), err)
	return err
}

// admits is the admission of this node: sources are addresses of nodes. For any other host on the
// link, a packet costs a look into a map.
func (g *Gossip) admits(from netip.Addr) bool {
	if _, isNode := (*g.nodeAt.Load())[from]; isNode {
		return true
	}
	g.reject(g.unknown, func() (string, error) {
		// All have one subject: a host that uses many addresses must not hide other problems.
		return "sender", fmt.Errorf("%s, which is the InternalIP of no Node, sends to port %d, which rejects it; is "+
			"the port open to nodes only?", from, g.Port)
	})
	return false
}

// rejectSeal records a packet or a connection from the address of a node under an unknown key.
//
// There is no limit for each source: any host on the link can use the address of a node, and would
// use up the limit of that node. Instead, a seal is cheap to verify: a packet never makes this
// process derive a key.
func (g *Gossip) rejectSeal(from netip.Addr) {
	g.reject(g.wrong, func() (string, error) {
		return "sender " + from.String(), fmt.Errorf(
			"node %s (%s) sends messages with another key, or without one, which are rejected; is its key file the "+
				"same, is its release compatible, and is port %d open to nodes only?", (*g.nodeAt.Load())[from], from,
			g.Port)
	})
}

// reject counts a packet or a connection, and reports it if the limit allows.
func (g *Gossip) reject(reports *rate.Limiter, describe func() (subject string, err error)) {
	g.metrics.rejected.Inc()
	if !reports.Allow() {
		return
	}
	subject, err := describe()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.problems.set(subject, time.Now(), err)
}
