package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	// resolution is how late the observer may hear of a rule, because a thread
	// has to wake up for it. An UPDATE that seems to be ahead by less is too
	// close to tell.
	resolution = 2 * time.Millisecond
	// sending is how long a message may take from the decision, which begins the
	// linger time, to the router.
	sending = 50 * time.Millisecond
)

// A Verdict says whether the promise was kept, by everything that an Observer
// has seen.
type Verdict struct {
	Announced  int           // times that a node told the router that it has an address
	Close      int           // of these, too close to the rule to tell the order
	Lead       time.Duration // the shortest time from a rule to its announcement
	Routed     int           // times that a route to a node appeared in the router's kernel
	RouteLead  time.Duration // the shortest time from a rule to its route
	Withdrawn  int           // times that it withdrew one, and later took it out of its kernel
	Linger     time.Duration // the shortest time between the two
	Outages    int           // times that somebody deleted a table
	Violations []string
}

// Verdict judges: a node announces an address only when its kernel forwards it,
// and the address leaves the kernel no sooner than linger after the node has told
// the router, and never while the router still sends it there. While a table is being restored that somebody else
// has deleted, nothing is promised.
func (o *Observer) Verdict(linger time.Duration) Verdict { return o.record().judge(linger) }

func (r record) judge(linger time.Duration) Verdict {
	j := judge{linger: linger, nodes: map[string]*nodeState{}}
	for _, n := range NodeNames {
		j.nodes[n] = &nodeState{vips: map[netip.Addr]bool{}, since: map[netip.Addr]time.Time{}, frontends: map[frontendKey]bool{},
			routed: map[netip.Addr]bool{}, left: map[netip.Addr]time.Time{}, early: map[netip.Addr]time.Time{}}
	}
	for _, err := range r.errs {
		j.violate(time.Time{}, "the observer missed something: %v", err)
	}
	type event struct {
		at    time.Time
		judge func()
	}
	var all []event
	for _, e := range r.tables {
		all = append(all, event{e.at, func() { j.table(e) }})
	}
	for _, e := range r.wire {
		all = append(all, event{e.at, func() { j.announced(e) }})
	}
	for _, e := range r.routes {
		all = append(all, event{e.at, func() { j.route(e) }})
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.at.Compare(b.at) })
	for _, e := range all {
		e.judge()
	}
	for name, n := range j.nodes {
		for vip, at := range n.early {
			j.violate(at, "%s announced %s and never forwarded it", name, vip)
		}
	}
	return j.Verdict
}

// A judge goes through the events in the order of their times.
type judge struct {
	Verdict
	linger time.Duration
	nodes  map[string]*nodeState
}

type nodeState struct {
	vips      map[netip.Addr]bool      // in the table
	since     map[netip.Addr]time.Time // when an address was first forwarded
	frontends map[frontendKey]bool     // likewise -> it forwards
	routed    map[netip.Addr]bool      // the router sends it here
	left      map[netip.Addr]time.Time // when the router was told to stop
	early     map[netip.Addr]time.Time // announced then, and not forwarded yet
	restoring bool                     // somebody deleted the table
}

func (j *judge) violate(at time.Time, format string, args ...any) {
	j.Violations = append(j.Violations, at.Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// forwards says whether a frontend of the address leads to backends.
func (n *nodeState) forwards(vip netip.Addr) bool {
	for k, f := range n.frontends {
		if k.vip == vip && f {
			return true
		}
	}
	return false
}

func (j *judge) announced(e wireEvent) {
	n := j.nodes[e.node]
	switch {
	case n == nil:
		return
	case e.withdrawn:
		n.left[e.vip] = e.at
		return
	}
	delete(n.left, e.vip)
	j.Announced++
	switch {
	case n.forwards(e.vip):
		shorten(&j.Lead, e.at.Sub(n.since[e.vip]))
	case !n.restoring:
		n.early[e.vip] = e.at
	}
}

// shorten keeps the shorter one of two durations; zero is none yet.
func shorten(d *time.Duration, other time.Duration) {
	if *d == 0 || other < *d {
		*d = other
	}
}

func (j *judge) route(e routeEvent) {
	for name, n := range j.nodes {
		switch now := slices.Contains(e.via, name); {
		case now && !n.routed[e.vip]:
			n.routed[e.vip] = true
			j.routed(e, name, n)
		case !now && n.routed[e.vip]:
			delete(n.routed, e.vip)
			if _, ok := n.left[e.vip]; !ok {
				n.left[e.vip] = e.at // the session went, or a restart took too long
			}
		}
	}
}

func (j *judge) routed(e routeEvent, name string, n *nodeState) {
	j.Routed++
	switch {
	case n.restoring:
	case !n.forwards(e.vip):
		j.violate(e.at, "the router sends %s to %s, which does not forward it", e.vip, name)
	default:
		shorten(&j.RouteLead, e.at.Sub(n.since[e.vip]))
	}
}

func (j *judge) table(e tableEvent) {
	n := j.nodes[e.node]
	if e.deleted {
		if len(n.vips) > 0 && len(e.changes) == 0 {
			n.restoring = true
			j.Outages++
		}
		clear(n.vips)
		clear(n.frontends)
	}
	before := n.forwarded()
	for _, c := range e.changes {
		switch {
		case c.in == frontends && c.added:
			n.frontends[c.key] = c.forwards
		case c.in == frontends:
			delete(n.frontends, c.key)
		case c.in == vips && c.added:
			n.vips[c.key.vip] = true
			n.restoring = false
		case c.in == vips:
			delete(n.vips, c.key.vip)
			j.removed(e, n, c.key.vip)
		}
	}
	for vip := range n.forwarded() {
		if !before[vip] {
			j.forwarded(e, n, vip)
		}
	}
}

// forwarded are the addresses that lead to backends.
func (n *nodeState) forwarded() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for k, f := range n.frontends {
		if f {
			all[k.vip] = true
		}
	}
	return all
}

// forwarded notes that a node has begun to forward an address.
func (j *judge) forwarded(e tableEvent, n *nodeState, vip netip.Addr) {
	n.since[vip] = e.at
	at, early := n.early[vip]
	if !early {
		return
	}
	delete(n.early, vip)
	if ahead := e.at.Sub(at); ahead > resolution {
		j.violate(at, "%s announced %s %s before it forwarded it", e.node, vip, ms(ahead))
		return
	}
	j.Close++
}

func (j *judge) removed(e tableEvent, n *nodeState, vip netip.Addr) {
	if n.routed[vip] {
		j.violate(e.at, "%s no longer has %s, which the router still sends there", e.node, vip)
		return
	}
	left, ok := n.left[vip]
	if !ok {
		return // it never was announced
	}
	delete(n.left, vip)
	j.Withdrawn++
	lingered := e.at.Sub(left)
	shorten(&j.Linger, lingered)
	if lingered < j.linger-sending {
		j.violate(e.at, "%s forgot %s %s after it had withdrawn it: want %s", e.node, vip, lingered.Round(time.Millisecond), j.linger)
	}
}

func (v Verdict) String() string {
	s := fmt.Sprintf("%d times a node announced an address: its kernel had forwarded it for at least %s (%d too close to tell)\n"+
		"%d times a route to a node appeared in tor1's kernel: the node's had forwarded the address for at least %s\n"+
		"%d times a node withdrew one: its kernel kept it for at least %.3f s more",
		v.Announced, ms(v.Lead), v.Close, v.Routed, ms(v.RouteLead), v.Withdrawn, v.Linger.Seconds())
	if v.Outages > 0 {
		s += fmt.Sprintf("\ntables that the lab deleted: %d (until it was restored, nothing is promised)", v.Outages)
	}
	if len(v.Violations) > 0 {
		s += "\nVIOLATIONS:\n" + strings.Join(v.Violations, "\n")
	}
	return s
}
