package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// A backlog has the addresses whose decisions may change. A change of the node, a router or an
// advertisement concerns all addresses, and the change of a Service must not wait until all of
// these are decided about, programmed and announced.
type backlog struct {
	// waiting are sorted. Their decisions are based on an earlier snapshot or View.
	waiting []netip.Addr
	// from is where the next pass begins: in turn, so that addresses that change all the time hold
	// up no others.
	from netip.Addr
	part int // how many addresses are decided about before their cost is looked at
}

// A concern has the addresses whose decisions a change may affect, sorted.
type concern struct {
	urgent []netip.Addr // of changed Services, or newly refused by the proxy
	others []netip.Addr
}

// revise decides about the addresses of a change, and of earlier changes that wait, until applying
// the differences would cost a pass as much as Effort allows. At first, and without Effort, it
// decides about all of them.
func (d *Decider) revise(v *View, last *Desired, snap *cluster.Snapshot, c concern) revision {
	all := sortedset.Union(sortedset.Union(d.backlog.waiting, c.others), c.urgent)
	if d.last == nil || d.Effort == 0 {
		d.backlog.waiting = nil
		return v.revise(last, snap, all)
	}
	others, wrapped := d.backlog.inTurn(sortedset.Minus(all, c.urgent))
	urgent := c.urgent
	var r revision
	for cost := time.Duration(0); cost < d.Effort && len(urgent)+len(others) > 0; {
		// As many of each, so that Services that change all the time do not delay others.
		var first, then []netip.Addr
		first, urgent = cut(urgent, max(d.backlog.part/2, d.backlog.part-len(others)-len(wrapped)))
		then, others = cut(others, d.backlog.part-len(first))
		if len(then) > 0 {
			d.backlog.from = then[len(then)-1].Next()
		}
		if len(others) == 0 {
			others, wrapped = wrapped, nil
		}
		part := v.revise(last, snap, inOrder(slices.Concat(first, then)))
		cost += part.cost()
		r = r.with(part)
	}
	r = r.inOrder()
	d.backlog.waiting = sortedset.Minus(all, r.addrs)
	return r
}

// Behind reports whether the last Desired has addresses Outdated: Decide must be called again.
func (d *Decider) Behind() bool { return len(d.backlog.waiting) > 0 }

// inTurn returns the addresses whose turn it is in this pass, and the addresses after them.
func (b *backlog) inTurn(addrs []netip.Addr) (now, after []netip.Addr) {
	at, _ := slices.BinarySearchFunc(addrs, b.from, netip.Addr.Compare)
	if now, after = addrs[at:], addrs[:at]; len(now) == 0 {
		return after, nil
	}
	return now, after
}

// cut returns up to n addresses, and the rest.
func cut(addrs []netip.Addr, n int) (first, rest []netip.Addr) {
	n = min(n, len(addrs))
	return addrs[:n], addrs[n:]
}

// sessionsMeanwhile returns the sessions while some routes are based on an earlier View: those of
// both Views, as configured now. A route for all sessions, or without a session, may refer to other
// sessions than before.
func sessionsMeanwhile(last, now []bgp.Session) []bgp.Session {
	return slices.DeleteFunc(slices.Clone(now), func(s bgp.Session) bool {
		return !slices.ContainsFunc(last, func(o bgp.Session) bool { o.Weights = s.Weights; return o == s })
	})
}
