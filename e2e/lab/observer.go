package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// An Observer sees every change of the nodes' rules, every BGP UPDATE that
// reaches the router, and every change of the router's routes, with the time of
// its arrival on one clock.
//
// The times are the kernel's own, of when a rule was committed and when a packet
// arrived: what was seen in the right order was in the right order.
type Observer struct {
	listeners []*listener

	mu sync.Mutex
	record
}

// A routeEvent is a VIP's route as it is from now on.
type routeEvent struct {
	at  time.Time
	vip netip.Addr
	via []string // nodes, sorted; none: there is no route
}

// A tableEvent is what one transaction did on a node.
type tableEvent struct {
	at      time.Time
	node    string
	deleted bool // the table is gone, and all that was in it
	changes []change
}

// segment is the router's interface to the nodes.
const segment = "br0"

// observe begins to observe. There must be no table and no VIP's route yet.
func (l *Lab) observe() (*Observer, error) {
	o := &Observer{}
	if err := o.listen(l); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

func (o *Observer) listen(l *Lab) error {
	tor1 := l.Router.Namespace
	tap := func(func(int) error) (int, error) { return openTap(segment) }
	if err := o.add(listen(tor1, "BGP", tap, o.hearWire(), o.fail)); err != nil {
		return err
	}
	if err := o.add(listen(tor1, "routes", openRoutes, o.hearRoutes, o.fail)); err != nil {
		return err
	}
	for _, node := range NodeNames {
		if err := o.add(listen(l.namespaces[node], "nftables of "+node, openTables, o.hearTables(node), o.fail)); err != nil {
			return err
		}
	}
	return nil
}

func (o *Observer) add(l *listener, err error) error {
	if err == nil {
		o.listeners = append(o.listeners, l)
	}
	return err
}

// Close ends the observation.
func (o *Observer) Close() {
	for _, l := range o.listeners {
		l.close()
	}
}

// fail records that an event was missed; no verdict is possible then.
func (o *Observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

func (o *Observer) hearRoutes(at time.Time, text []byte) error {
	messages, err := syscall.ParseNetlinkMessage(text)
	if err != nil {
		return err
	}
	for _, m := range messages {
		e, ok, err := routeChange(m)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		e.at = at
		o.mu.Lock()
		o.routes = append(o.routes, e)
		o.mu.Unlock()
	}
	return nil
}

func (o *Observer) hearWire() func(time.Time, []byte) error {
	voices := map[netip.Addr]*speakersVoice{}
	return func(at time.Time, packet []byte) error {
		heard, err := hear(voices, packet)
		for i := range heard {
			heard[i].at = at
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.wire = append(o.wire, heard...)
		return err
	}
}

func (o *Observer) hearTables(node string) func(time.Time, []byte) error {
	open := tableEvent{node: node}
	return func(at time.Time, text []byte) error {
		messages, err := syscall.ParseNetlinkMessage(text)
		if err != nil {
			return err
		}
		for _, m := range messages {
			end, err := open.add(m)
			if err != nil {
				return err
			}
			if !end {
				continue
			}
			if open.deleted || len(open.changes) > 0 {
				open.at = at
				o.mu.Lock()
				o.tables = append(o.tables, open)
				o.mu.Unlock()
			}
			open = tableEvent{node: node}
		}
		return nil
	}
}

// Excuse says that another program damages a node's table while do runs. Nothing is promised
// then.
func (o *Observer) Excuse(node string, do func()) {
	from := time.Now()
	do()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.excused = append(o.excused, excuse{node, from, time.Now()})
}

type excuse struct {
	node     string
	from, to time.Time
}

// A record is everything that was seen, each kind in the order of time.
type record struct {
	excused []excuse
	wire    []wireEvent
	routes  []routeEvent
	tables  []tableEvent
	errs    []error
}

// seen is everything so far. What it holds is only ever appended to.
func (o *Observer) seen() record {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.record
}

// Announced returns when, after a time, a node first told the router that it has
// a VIP, and Withdrawn when it told it otherwise; zero if it never has.
func (o *Observer) Announced(node string, vip netip.Addr, since time.Time) time.Time {
	return o.told(wireEvent{node: node, vip: vip}, since)
}

func (o *Observer) Withdrawn(node string, vip netip.Addr, since time.Time) time.Time {
	return o.told(wireEvent{node: node, vip: vip, withdrawn: true}, since)
}

func (o *Observer) told(want wireEvent, since time.Time) time.Time {
	for _, e := range o.seen().wire {
		if want.at = e.at; e == want && e.at.After(since) {
			return e.at
		}
	}
	return time.Time{}
}

// RouteChanges returns when a VIP's route changed in a span of time.
func (o *Observer) RouteChanges(vip netip.Addr, from, to time.Time) (at []time.Time) {
	for _, e := range o.seen().routes {
		if e.vip == vip && e.at.After(from) && e.at.Before(to) {
			at = append(at, e.at)
		}
	}
	return at
}

// RouteVia returns when, after a time, a VIP's route first led to exactly these
// nodes; zero if it never has.
func (o *Observer) RouteVia(vip netip.Addr, since time.Time, want ...string) time.Time {
	for _, e := range o.seen().routes {
		if e.vip == vip && e.at.After(since) && slices.Equal(e.via, want) {
			return e.at
		}
	}
	return time.Time{}
}

// RuleSince returns when, after a time, a node's kernel first got or changed a
// rule for a VIP; zero if it never has.
func (o *Observer) RuleSince(node string, vip netip.Addr, since time.Time) time.Time {
	for _, e := range o.seen().tables {
		if e.node != node || !e.at.After(since) {
			continue
		}
		if slices.ContainsFunc(e.changes, func(c change) bool { return c.key.vip == vip && c.added }) {
			return e.at
		}
	}
	return time.Time{}
}

// RulesGone returns when, after a time, a VIP left a node's table; zero if it is
// there.
func (o *Observer) RulesGone(node string, vip netip.Addr, since time.Time) (at time.Time) {
	there := false
	for _, e := range o.seen().tables {
		if e.node != node {
			continue
		}
		there = there && !e.deleted
		for _, c := range e.changes {
			if c.key.vip == vip && c.in == vips {
				there, at = c.added, e.at
			}
		}
	}
	if there || !at.After(since) {
		return time.Time{}
	}
	return at
}

// Outage returns how long a node was without the table after it was deleted, first time after since.
func (o *Observer) Outage(node string, since time.Time) (time.Duration, error) {
	var gone time.Time
	for _, e := range o.seen().tables {
		switch {
		case e.node != node || !e.at.After(since):
		case gone.IsZero() && e.deleted:
			gone = e.at
		case !gone.IsZero() && len(e.changes) > 0:
			return e.at.Sub(gone), nil
		}
	}
	return 0, fmt.Errorf("%s: deleted at %v and not restored", node, gone)
}
