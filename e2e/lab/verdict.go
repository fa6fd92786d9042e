package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// sending is how long a message may take from the decision, which begins the linger
// time, to the router.
const sendDelay = 50 * time.Millisecond

// Sending is that in this lab.
func (l *Lab) SendDelay() time.Duration { return l.within(sendDelay) }

// A Verdict says whether the promise was kept, by everything that an Observer
// has seen.
type Verdict struct {
	Announced  int           // times that a node told the router that it has an address
	Lead       time.Duration // the shortest time from a rule to its announcement
	Routed     int           // times that a route to a node appeared in the router's kernel
	RouteLead  time.Duration // the shortest time from a rule to its route
	Withdrawn  int           // times that it withdrew one, and later took it out of its kernel
	Linger     time.Duration // the shortest time between the two
	Outages    int           // times that a table was deleted
	Violations []Violation
}

// A Violation is a moment at which the promise was broken.
type Violation struct {
	At      time.Time
	Node    string
	VIP     netip.Addr
	Text    string
	History []string // what was seen of the address on the node around that time
}

func (v Violation) String() string {
	return fmt.Sprintf("%s %s, %s: %s\n  %s", v.At.Format(clock), v.Node, v.VIP, v.Text, strings.Join(v.History, "\n  "))
}

// clock is how times of day are written.
const clock = "15:04:05.000000"

// Verdict judges: a node announces an address only when its kernel forwards it,
// and the address leaves the kernel no sooner than the linger time after the node has
// told the router, and never while the router still sends it there. What was decided is
// seen at the router up to late later, by which the linger time may be the shorter. While
// a deleted table is being restored, nothing is promised.
func (o *Observer) Verdict(late time.Duration) Verdict { return o.snapshot().checker(Linger, late) }

func (r eventLog) checker(linger, late time.Duration) Verdict {
	j := checker{events: r, linger: linger, late: late, nodes: map[string]*nodeState{}}
	for _, n := range NodeNames {
		j.nodes[n] = &nodeState{vips: map[netip.Addr]bool{}, since: map[netip.Addr]time.Time{}, frontends: map[frontendKey]bool{},
			routed: map[netip.Addr]bool{}, withdrawnAt: map[netip.Addr]time.Time{}, early: map[netip.Addr]time.Time{}, ended: map[netip.Addr]time.Time{}}
	}
	for _, err := range r.errs {
		j.violate(time.Now(), "", netip.Addr{}, "the observer missed something: %v", err)
	}
	type event struct {
		at      time.Time
		checker func()
	}
	var all []event
	for _, e := range r.tables {
		all = append(all, event{e.at, func() { j.table(e) }})
	}
	for _, e := range r.updates {
		all = append(all, event{e.at, func() { j.announced(e) }})
	}
	for _, e := range r.routes {
		all = append(all, event{e.at, func() { j.route(e) }})
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.at.Compare(b.at) })
	for _, e := range all {
		e.checker()
	}
	for name, n := range j.nodes {
		for vip, at := range n.early {
			j.violate(at, name, vip, "announced and never forwarded")
		}
	}
	return j.Verdict
}

// A judge goes through the events in the order of their times.
type checker struct {
	Verdict
	events eventLog
	linger time.Duration
	late   time.Duration
	nodes  map[string]*nodeState
}

type nodeState struct {
	vips        map[netip.Addr]bool      // in the table
	since       map[netip.Addr]time.Time // when an address was first forwarded
	frontends   map[frontendKey]bool     // likewise -> it forwards
	routed      map[netip.Addr]bool      // the router sends it here
	withdrawnAt map[netip.Addr]time.Time // when the router got the withdrawal
	early       map[netip.Addr]time.Time // announced then, and not forwarded yet
	ended       map[netip.Addr]time.Time // when it was last forwarded
	restoring   bool                     // another program deleted the table
}

func (j *checker) violate(at time.Time, node string, vip netip.Addr, format string, args ...any) {
	if j.events.isTolerated(at, node) {
		return
	}
	j.Violations = append(j.Violations, Violation{at, node, vip, fmt.Sprintf(format, args...), j.events.history(at, node, vip)})
}

// harmed says whether the node's table was damaged at that time.
func (r eventLog) isTolerated(at time.Time, node string) bool {
	return slices.ContainsFunc(r.tolerated, func(e tolerance) bool { return e.node == node && at.After(e.from) && at.Before(e.to) })
}

// history tells what was seen of an address on a node, within a second of a time.
func (r eventLog) history(around time.Time, node string, vip netip.Addr) []string {
	var lines []string
	add := func(at time.Time, format string, args ...any) {
		if at.Sub(around).Abs() < time.Second {
			lines = append(lines, at.Format(clock)+" "+fmt.Sprintf(format, args...))
		}
	}
	for _, e := range r.tables {
		if e.node != node {
			continue
		}
		if e.deleted {
			add(e.at, "table deleted")
		}
		for _, c := range e.changes {
			if c.key.vip == vip && c.in != backends {
				add(e.at, "rule %s", c)
			}
		}
	}
	for _, e := range r.updates {
		if e.node == node && e.vip == vip {
			add(e.at, "UPDATE, withdrawn %t", e.withdrawn)
		}
	}
	for _, e := range r.routes {
		if e.vip == vip {
			add(e.at, "route via %v", e.via)
		}
	}
	slices.Sort(lines)
	return lines
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

func (j *checker) announced(e updateEvent) {
	n := j.nodes[e.node]
	switch {
	case n == nil:
		return
	case e.withdrawn:
		n.withdrawnAt[e.vip] = e.at
		return
	}
	delete(n.withdrawnAt, e.vip)
	j.Announced++
	switch {
	case n.forwards(e.vip):
		keepMin(&j.Lead, e.at.Sub(n.since[e.vip]))
	case !n.restoring:
		n.early[e.vip] = e.at
	}
}

// flight is how long a withdrawal may be under way at most, as the speaker reckons.
const maxFlight = 250 * time.Millisecond

// leaving says whether an address that is not forwarded has lost its last backends just
// now, perhaps with its Service, and word of that was on its way: what the router does
// until it arrives follows from the routes while the address was forwarded.
func (j *checker) withdrawing(node string, n *nodeState, vip netip.Addr) bool {
	ended, ok := n.ended[vip]
	return ok && slices.ContainsFunc(j.events.updates, func(e updateEvent) bool {
		return e.withdrawn && e.node == node && e.vip == vip && e.at.After(ended) && e.at.Sub(ended) < min(j.late, maxFlight)
	})
}

// shorten keeps the shorter one of two durations; zero is none yet.
func keepMin(d *time.Duration, other time.Duration) {
	if *d == 0 || other < *d {
		*d = other
	}
}

func (j *checker) route(e routeEvent) {
	for name, n := range j.nodes {
		switch now := slices.Contains(e.via, name); {
		case now && !n.routed[e.vip]:
			n.routed[e.vip] = true
			j.routed(e, name, n)
		case !now && n.routed[e.vip]:
			delete(n.routed, e.vip)
			if _, ok := n.withdrawnAt[e.vip]; !ok {
				n.withdrawnAt[e.vip] = e.at // the session went, or a restart took too long
			}
		}
	}
}

func (j *checker) routed(e routeEvent, name string, n *nodeState) {
	j.Routed++
	_, withdrawnAt := n.withdrawnAt[e.vip]
	switch {
	case n.restoring, withdrawnAt: // the router may use the routes from before
	case !n.forwards(e.vip) && j.withdrawing(name, n, e.vip):
	case !n.forwards(e.vip):
		j.violate(e.at, name, e.vip, "the router sends it there and it is not forwarded")
	default:
		keepMin(&j.RouteLead, e.at.Sub(n.since[e.vip]))
	}
}

func (j *checker) table(e tableEvent) {
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
	now := n.forwarded()
	for vip := range now {
		if !before[vip] {
			j.forwarded(e, n, vip)
		}
	}
	for vip := range before {
		if !now[vip] {
			n.ended[vip] = e.at
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
func (j *checker) forwarded(e tableEvent, n *nodeState, vip netip.Addr) {
	n.since[vip] = e.at
	at, early := n.early[vip]
	if !early {
		return
	}
	delete(n.early, vip)
	j.violate(at, e.node, vip, "announced %s before it was forwarded", e.at.Sub(at))
}

func (j *checker) removed(e tableEvent, n *nodeState, vip netip.Addr) {
	if n.routed[vip] {
		j.violate(e.at, e.node, vip, "forgotten while the router still sends it there")
		return
	}
	withdrawnAt, ok := n.withdrawnAt[vip]
	if !ok || j.events.isTolerated(e.at, e.node) {
		return // it never was announced, or it was not us
	}
	delete(n.withdrawnAt, vip)
	j.Withdrawn++
	lingered := e.at.Sub(withdrawnAt)
	keepMin(&j.Linger, lingered)
	if lingered < j.linger-j.late {
		j.violate(e.at, e.node, vip, "forgotten %s after it was withdrawn: want %s", lingered.Round(time.Millisecond), j.linger)
	}
}

func (v Verdict) String() string {
	s := fmt.Sprintf("%d times a node announced an address: its kernel had forwarded it for at least %s\n"+
		"%d times a route to a node appeared in tor1's kernel: the node's had forwarded the address for at least %s\n"+
		"%d times a node withdrew one: its kernel kept it for at least %.3f s more",
		v.Announced, ms(v.Lead), v.Routed, ms(v.RouteLead), v.Withdrawn, v.Linger.Seconds())
	if v.Outages > 0 {
		s += fmt.Sprintf("\ntables that the lab deleted: %d (until it was restored, nothing is promised)", v.Outages)
	}
	for _, violation := range v.Violations {
		s += "\nVIOLATION " + violation.String()
	}
	return s
}
