package observer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Linger is the speakers' default linger time: how long a node forwards an address after
// the withdrawal of its route.
const Linger = 5 * time.Second

// SendDelay bounds the time from a speaker's decision to withdraw, at which the linger time
// starts, to the arrival of the message at the router.
const SendDelay = 50 * time.Millisecond

// A Verdict says whether speakers kept the promised order of rules and routes, by
// everything that an Observer has recorded.
type Verdict struct {
	Announced  int           // announcements by nodes
	Lead       time.Duration // the shortest time from a rule to its announcement
	Routed     int           // routes to a node that appeared in the router's kernel
	RouteLead  time.Duration // the shortest time from a rule to its route
	Withdrawn  int           // withdrawals after which the address left the node's kernel
	Linger     time.Duration // the shortest time between the two
	Outages    int           // deletions of a table
	Violations []Violation
}

// A Violation is a moment at which the promise was broken.
type Violation struct {
	At      time.Time
	Node    string
	VIP     netip.Addr
	Text    string
	History []string // events of the address on the node around that time
}

func (v Violation) String() string {
	return fmt.Sprintf("%s %s, %s: %s\n  %s", v.At.Format(clock), v.Node, v.VIP, v.Text,
		strings.Join(v.History, "\n  "))
}

// clock is the format for times of day.
const clock = "15:04:05.000000"

// Verdict checks that a node announces an address only while its kernel forwards it, and
// that the address leaves the kernel no earlier than the linger time after the withdrawal,
// and never while the router still routes it there. A withdrawal may reach the router up to
// late after the decision, so the observed linger time may be shorter by that. Nothing is
// promised while a deleted table is being restored.
func (o *Observer) Verdict(late time.Duration) Verdict {
	o.mu.Lock()
	lingerL2 := o.lingerL2
	o.mu.Unlock()
	return o.snapshot().checker(slices.Collect(maps.Keys(o.config.Nodes)), Linger, lingerL2, late)
}

func (r eventLog) checker(nodes []string, linger, lingerL2, late time.Duration) Verdict {
	j := checker{events: r, linger: linger, lingerL2: lingerL2, late: late, nodes: map[string]*nodeState{}}
	for _, n := range nodes {
		j.nodes[n] = &nodeState{vips: map[netip.Addr]bool{}, since: map[netip.Addr]time.Time{},
			frontends: map[frontendKey]change{}, inRange: map[frontendKey]bool{}, routed: map[netip.Addr]bool{},
			withdrawnAt: map[netip.Addr]time.Time{}, early: map[netip.Addr]time.Time{},
			ended: map[netip.Addr]time.Time{}, claimed: map[netip.Addr]time.Time{}, dark: map[netip.Addr]bool{}}
	}
	for _, err := range r.errs {
		j.violate(time.Now(), "", netip.Addr{}, "the observer missed an event: %v", err)
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
	for _, e := range r.claims {
		all = append(all, event{e.at, func() { j.claimed(e) }})
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.at.Compare(b.at) })
	for _, e := range all {
		e.checker()
	}
	for name, n := range j.nodes {
		for vip, at := range n.early {
			j.violate(at, name, vip, "announced, but never forwarded")
		}
	}
	return j.Verdict
}

// A checker processes the events in chronological order.
type checker struct {
	Verdict
	events eventLog
	linger time.Duration
	late   time.Duration
	nodes  map[string]*nodeState

	lingerL2 time.Duration
}

type nodeState struct {
	vips        map[netip.Addr]bool      // addresses in the table
	since       map[netip.Addr]time.Time // when forwarding began
	frontends   map[frontendKey]change   // frontends in the table
	inRange     map[frontendKey]bool     // frontends with source ranges; true: it forwards
	routed      map[netip.Addr]bool      // addresses that the router routes here
	withdrawnAt map[netip.Addr]time.Time // when the router received the withdrawal
	early       map[netip.Addr]time.Time // when it was announced, not being forwarded
	ended       map[netip.Addr]time.Time // when forwarding ended
	claimed     map[netip.Addr]time.Time // the last claim over layer 2
	dark        map[netip.Addr]bool      // that claim was not forwarded
	restoring   bool                     // another program has deleted the table
}

func (j *checker) violate(at time.Time, node string, vip netip.Addr, format string, args ...any) {
	if j.events.isTolerated(at, node) {
		return
	}
	j.Violations = append(j.Violations, Violation{at, node, vip, fmt.Sprintf(format, args...),
		j.events.history(at, node, vip)})
}

// isTolerated reports whether another program damaged the node's table at that time.
func (r eventLog) isTolerated(at time.Time, node string) bool {
	return slices.ContainsFunc(r.tolerated,
		func(e tolerance) bool { return e.node == node && at.After(e.from) && at.Before(e.to) })
}

// history lists the events of an address on a node within a second of a time.
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

// forwards reports whether a frontend of the address leads to backends.
func (n *nodeState) forwards(vip netip.Addr) bool {
	for k, f := range n.frontends {
		if k.vip == vip && n.leads(f) {
			return true
		}
	}
	return false
}

// leads reports whether a frontend leads to backends.
func (n *nodeState) leads(f change) bool { return f.forwards || f.sourceRanges && n.inRange[f.key] }

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

// claimed checks that a node claims an address over layer 2 only while it forwards it.
func (j *checker) claimed(e claimEvent) {
	n := j.nodes[e.node]
	if n == nil {
		return
	}
	n.claimed[e.vip] = e.at
	dark := !n.forwards(e.vip) && !n.restoring
	if dark && !n.dark[e.vip] {
		j.violate(e.at, e.node, e.vip, "claimed over layer 2, but not forwarded")
	}
	n.dark[e.vip] = dark
}

// maxFlight bounds how long a withdrawal may be in flight, as in the speaker.
const maxFlight = 250 * time.Millisecond

// withdrawing reports whether an address without forwarding has just lost its last backends,
// perhaps with its Service, while its withdrawal was on the way. The routes of the router
// until the withdrawal arrives follow from the earlier state.
func (j *checker) withdrawing(node string, n *nodeState, vip netip.Addr) bool {
	ended, ok := n.ended[vip]
	return ok && slices.ContainsFunc(j.events.updates, func(e updateEvent) bool {
		return e.withdrawn && e.node == node && e.vip == vip && e.at.After(ended) &&
			e.at.Sub(ended) < min(j.late, maxFlight)
	})
}

// keepMin stores the shorter duration; zero means none yet.
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
				n.withdrawnAt[e.vip] = e.at // the session ended, or a restart took too long
			}
		}
	}
}

func (j *checker) routed(e routeEvent, name string, n *nodeState) {
	j.Routed++
	_, withdrawnAt := n.withdrawnAt[e.vip]
	switch {
	case n.restoring, withdrawnAt: // the router may still use the earlier routes
	case !n.forwards(e.vip) && j.withdrawing(name, n, e.vip):
	case !n.forwards(e.vip):
		j.violate(e.at, name, e.vip, "the router routes it here, but it is not forwarded")
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
		clear(n.inRange)
	}
	before := n.forwarded()
	for _, c := range e.changes {
		switch {
		case c.in == frontends && c.added:
			n.frontends[c.key] = c
		case c.in == frontends:
			delete(n.frontends, c.key)
		case c.in == inRange:
			n.inRange[c.key] = c.added && c.forwards
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

// forwarded returns the addresses that lead to backends.
func (n *nodeState) forwarded() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for k, f := range n.frontends {
		if n.leads(f) {
			all[k.vip] = true
		}
	}
	return all
}

// forwarded records that a node has begun to forward an address.
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
		j.violate(e.at, e.node, vip, "removed while the router still routes it here")
		return
	}
	if last, ok := n.claimed[vip]; ok && j.lingerL2 > 0 && e.at.Sub(last) < j.lingerL2-j.late {
		j.violate(e.at, e.node, vip, "removed %s after it was last claimed over layer 2: want %s",
			e.at.Sub(last).Round(time.Millisecond), j.lingerL2)
	}
	delete(n.claimed, vip)
	withdrawnAt, ok := n.withdrawnAt[vip]
	if !ok || j.events.isTolerated(e.at, e.node) {
		return // it was never announced, or another program removed it
	}
	delete(n.withdrawnAt, vip)
	j.Withdrawn++
	lingered := e.at.Sub(withdrawnAt)
	keepMin(&j.Linger, lingered)
	if lingered < j.linger-j.late {
		j.violate(e.at, e.node, vip, "removed %s after it was withdrawn: want %s", lingered.Round(time.Millisecond),
			j.linger)
	}
}

func (v Verdict) String() string {
	s := fmt.Sprintf("%d times a node announced an address: its kernel had been forwarding it for at least %s\n"+
		"%d times a route to a node appeared in tor1's kernel: the node's kernel had been forwarding the "+
		"address for at least %s\n"+
		"%d times a node withdrew an address: its kernel kept it for at least %.3f s more",
		v.Announced, ms(v.Lead), v.Routed, ms(v.RouteLead), v.Withdrawn, v.Linger.Seconds())
	if v.Outages > 0 {
		s += fmt.Sprintf("\ntables that the lab deleted: %d (until it was restored, nothing is promised)", v.Outages)
	}
	for _, violation := range v.Violations {
		s += "\nVIOLATION " + violation.String()
	}
	return s
}

// ms formats a duration in milliseconds with one decimal.
func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
