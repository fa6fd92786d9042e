package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// An Observer records every change of the nodes' rules, every BGP UPDATE that reaches the
// router, and every change of the router's routes, on one clock.
//
// The times are the kernel's: when it committed a rule, and when a packet arrived. The
// order of the records is therefore the order of the events.
type Observer struct {
	listeners []*listener

	mu sync.Mutex
	eventLog
}

// A routeEvent is the new state of a VIP's route.
type routeEvent struct {
	at  time.Time
	vip netip.Addr
	via []string // next hops, sorted; empty: no route
}

// A tableEvent is what one transaction changed on a node.
type tableEvent struct {
	at      time.Time
	node    string
	deleted bool // the table was deleted with its content
	changes []change
}

// segment is the router's interface to the nodes.
const segment = "br0"

// observe starts the recording. It must run before there is a table or a route to a VIP.
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
	if err := o.add(listen(tor1, "BGP", tap, o.recordUpdates(), o.fail)); err != nil {
		return err
	}
	if err := o.add(listen(tor1, "routes", openRoutes, o.recordRoutes, o.fail)); err != nil {
		return err
	}
	for _, node := range NodeNames {
		if err := o.add(listen(l.namespaces[node], "nftables of "+node, openTables, o.recordTables(node), o.fail)); err != nil {
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

// Close stops the recording.
func (o *Observer) Close() {
	for _, l := range o.listeners {
		l.close()
	}
}

// fail records that an event was missed. No verdict is possible after that.
func (o *Observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

func (o *Observer) recordRoutes(at time.Time, text []byte) error {
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

func (o *Observer) recordUpdates() func(time.Time, []byte) error {
	streams := map[netip.Addr]*bgpStream{}
	return func(at time.Time, packet []byte) error {
		events, err := readPacket(streams, packet)
		for i := range events {
			events[i].at = at
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.updates = append(o.updates, events...)
		return err
	}
}

func (o *Observer) recordTables(node string) func(time.Time, []byte) error {
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

// Tolerate records that another program damages a node's table while do runs. Fanfare
// promises nothing for that time.
func (o *Observer) Tolerate(node string, do func()) {
	from := time.Now()
	do()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tolerated = append(o.tolerated, tolerance{node, from, time.Now()})
}

type tolerance struct {
	node     string
	from, to time.Time
}

// An eventLog holds all recorded events, each kind in chronological order.
type eventLog struct {
	tolerated []tolerance
	updates   []updateEvent
	routes    []routeEvent
	tables    []tableEvent
	errs      []error
}

// snapshot returns all events so far. The slices are append-only, so that the snapshot
// stays valid.
func (o *Observer) snapshot() eventLog {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.eventLog
}

// Announced returns when a node first announced a VIP to the router after the given time;
// zero if it has not.
func (o *Observer) Announced(node string, vip netip.Addr, since time.Time) time.Time {
	return o.firstUpdate(updateEvent{node: node, vip: vip}, since)
}

// Withdrawn returns when a node first withdrew a VIP after the given time; zero if it has
// not.
func (o *Observer) Withdrawn(node string, vip netip.Addr, since time.Time) time.Time {
	return o.firstUpdate(updateEvent{node: node, vip: vip, withdrawn: true}, since)
}

func (o *Observer) firstUpdate(want updateEvent, since time.Time) time.Time {
	for _, e := range o.snapshot().updates {
		if want.at = e.at; e == want && e.at.After(since) {
			return e.at
		}
	}
	return time.Time{}
}

// RouteChanges returns when a VIP's route changed between two times.
func (o *Observer) RouteChanges(vip netip.Addr, from, to time.Time) (at []time.Time) {
	for _, e := range o.snapshot().routes {
		if e.vip == vip && e.at.After(from) && e.at.Before(to) {
			at = append(at, e.at)
		}
	}
	return at
}

// RouteVia returns when the next hops of a VIP's route first were exactly the given nodes
// after a time; zero if they never were.
func (o *Observer) RouteVia(vip netip.Addr, since time.Time, want ...string) time.Time {
	for _, e := range o.snapshot().routes {
		if e.vip == vip && e.at.After(since) && slices.Equal(e.via, want) {
			return e.at
		}
	}
	return time.Time{}
}

// RuleSince returns when a rule for a VIP was first added to or changed in a node's kernel
// after the given time; zero if none was.
func (o *Observer) RuleSince(node string, vip netip.Addr, since time.Time) time.Time {
	for _, e := range o.snapshot().tables {
		if e.node != node || !e.at.After(since) {
			continue
		}
		if slices.ContainsFunc(e.changes, func(c change) bool { return c.key.vip == vip && c.added }) {
			return e.at
		}
	}
	return time.Time{}
}

// RulesGone returns when a VIP was removed from a node's table after the given time; zero
// if the VIP is there.
func (o *Observer) RulesGone(node string, vip netip.Addr, since time.Time) (at time.Time) {
	present := false
	for _, e := range o.snapshot().tables {
		if e.node != node {
			continue
		}
		present = present && !e.deleted
		for _, c := range e.changes {
			if c.key.vip == vip && c.in == vips {
				present, at = c.added, e.at
			}
		}
	}
	if present || !at.After(since) {
		return time.Time{}
	}
	return at
}

// Outage returns how long the table was missing on a node after its first deletion since
// the given time.
func (o *Observer) Outage(node string, since time.Time) (time.Duration, error) {
	var deletedAt time.Time
	for _, e := range o.snapshot().tables {
		switch {
		case e.node != node || !e.at.After(since):
		case deletedAt.IsZero() && e.deleted:
			deletedAt = e.at
		case !deletedAt.IsZero() && len(e.changes) > 0:
			return e.at.Sub(deletedAt), nil
		}
	}
	return 0, fmt.Errorf("%s: deleted at %v and not restored", node, deletedAt)
}
