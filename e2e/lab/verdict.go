package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Verdict says whether the promise was kept, by everything that an Observer
// has seen.
type Verdict struct {
	Appearances int           // times that a route to a node appeared
	Departures  int           // times that one went and its linger time is over
	Lead        time.Duration // the shortest time from a rule to its route
	Linger      time.Duration // the shortest time from a route's end to its rule's
	Outages     int           // times that somebody deleted a table
	Violations  []string
}

// Verdict judges: a route to a node appears only when the node forwards the
// address, and the address leaves the node's kernel no sooner than linger after
// the route has gone. While a table is being restored that somebody else has
// deleted, nothing is promised.
func (o *Observer) Verdict(linger time.Duration) Verdict {
	routes, tables, errs := o.snapshot()
	j := judge{linger: linger, nodes: map[string]*nodeState{}}
	for _, n := range NodeNames {
		j.nodes[n] = &nodeState{frontends: map[frontendKey]bool{}, routed: map[netip.Addr]bool{}, left: map[netip.Addr]time.Time{}, since: map[netip.Addr]time.Time{}}
	}
	for _, err := range errs {
		j.violate(time.Time{}, "the observer missed something: %v", err)
	}
	for len(routes) > 0 || len(tables) > 0 {
		if len(routes) == 0 || len(tables) > 0 && tables[0].at.Before(routes[0].at) {
			j.table(tables[0])
			tables = tables[1:]
		} else {
			j.route(routes[0])
			routes = routes[1:]
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
	frontends map[frontendKey]bool     // those in the kernel -> it forwards
	since     map[netip.Addr]time.Time // since when an address is forwarded
	routed    map[netip.Addr]bool      // the router sends it here
	left      map[netip.Addr]time.Time // when the router stopped to
	restoring bool                     // somebody deleted the table
}

func (j *judge) violate(at time.Time, format string, args ...any) {
	j.Violations = append(j.Violations, at.Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// has says whether there is a rule for the address, and whether one forwards.
func (n *nodeState) has(vip netip.Addr) (any, forwards bool) {
	for k, f := range n.frontends {
		if k.vip == vip {
			any, forwards = true, forwards || f
		}
	}
	return any, forwards
}

func (j *judge) route(e routeEvent) {
	for name, n := range j.nodes {
		switch now := slices.Contains(e.via, name); {
		case now && !n.routed[e.vip]:
			n.routed[e.vip] = true
			delete(n.left, e.vip)
			j.appeared(e, name, n)
		case !now && n.routed[e.vip]:
			delete(n.routed, e.vip)
			n.left[e.vip] = e.at
		}
	}
}

func (j *judge) appeared(e routeEvent, name string, n *nodeState) {
	j.Appearances++
	if _, forwards := n.has(e.vip); !forwards && !n.restoring {
		j.violate(e.at, "the router sends %s to %s, which does not forward it", e.vip, name)
		return
	}
	lead := e.at.Sub(n.since[e.vip])
	if j.Appearances == 1 || lead < j.Lead {
		j.Lead = lead
	}
}

func (j *judge) table(e tableEvent) {
	n := j.nodes[e.node]
	before := n.vips()
	if e.deleted {
		clear(n.frontends)
		if len(e.changes) == 0 {
			n.restoring = true
			j.Outages++
		}
	}
	for _, c := range e.changes {
		if c.added {
			n.frontends[c.key] = c.forwards
			n.restoring = false
		} else {
			delete(n.frontends, c.key)
		}
	}
	for vip := range n.vips() {
		if !before[vip] {
			n.since[vip] = e.at
		}
	}
	if n.restoring {
		return
	}
	for vip := range before {
		if any, _ := n.has(vip); !any {
			j.removed(e, n, vip)
		}
	}
}

func (n *nodeState) vips() map[netip.Addr]bool {
	vips := map[netip.Addr]bool{}
	for k := range n.frontends {
		vips[k.vip] = true
	}
	return vips
}

func (j *judge) removed(e tableEvent, n *nodeState, vip netip.Addr) {
	if n.routed[vip] {
		j.violate(e.at, "%s no longer has %s, which the router still sends there", e.node, vip)
		return
	}
	left, ok := n.left[vip]
	if !ok {
		return // it never was in the router
	}
	delete(n.left, vip)
	j.Departures++
	lingered := e.at.Sub(left)
	if j.Departures == 1 || lingered < j.Linger {
		j.Linger = lingered
	}
	if lingered < j.linger {
		j.violate(e.at, "%s forgot %s %s after the route went: want %s", e.node, vip, lingered.Round(time.Millisecond), j.linger)
	}
}

func (v Verdict) String() string {
	s := fmt.Sprintf("%d routes to a node appeared, the rule was there at least %s before; %d went, the rule stayed for at least %s",
		v.Appearances, v.Lead.Round(100*time.Microsecond), v.Departures, v.Linger.Round(time.Millisecond))
	if v.Outages > 0 {
		s += fmt.Sprintf("; tables deleted by others: %d", v.Outages)
	}
	if len(v.Violations) > 0 {
		s += "\nVIOLATIONS:\n" + strings.Join(v.Violations, "\n")
	}
	return s
}
