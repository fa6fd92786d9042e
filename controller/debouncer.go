package controller

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/internal/election"
)

// A debouncer accepts a change of a node once it has lasted. A node that flaps keeps the
// state from before, so that addresses do not follow it. Changes of several nodes are
// accepted together: otherwise the first of several new nodes would get all addresses.
type debouncer struct {
	after    time.Duration            // how long a change must last
	accepted map[string]election.Node // nil before the first observation, which is accepted at once
	pending  map[string]nodeChange
}

// A nodeChange is a change of one node that is not accepted yet.
type nodeChange struct {
	node  election.Node
	gone  bool
	since time.Time // when the node was first seen in this state
}

// take accepts the changes that have lasted, and returns the accepted nodes by name. Due is
// when the next changes may be accepted, zero if none is pending.
func (d *debouncer) take(now time.Time, seen []election.Node) (nodes []election.Node, due time.Time) {
	if d.accepted == nil {
		d.accepted, d.pending = map[string]election.Node{}, map[string]nodeChange{}
		for _, n := range seen {
			d.accepted[n.Name] = n
		}
	}
	there := map[string]bool{}
	for _, n := range seen {
		there[n.Name] = true
		d.observe(now, nodeChange{node: n})
	}
	for name, n := range d.accepted {
		if !there[name] {
			d.observe(now, nodeChange{node: n, gone: true})
		}
	}
	maps.DeleteFunc(d.pending, func(name string, _ nodeChange) bool { // It was added, and deleted again.
		_, accepted := d.accepted[name]
		return !accepted && !there[name]
	})
	if len(d.pending) != 0 && !d.due().After(now) {
		d.accept(now)
	}
	byName := func(a, b election.Node) int { return strings.Compare(a.Name, b.Name) }
	return slices.SortedFunc(maps.Values(d.accepted), byName), d.due()
}

// observe records the current state of a node. A change that is not the pending one restarts the time;
// a node that is as accepted has no pending change.
func (d *debouncer) observe(now time.Time, c nodeChange) {
	name := c.node.Name
	if accepted, known := d.accepted[name]; known && !c.gone && reflect.DeepEqual(accepted, c.node) {
		delete(d.pending, name)
		return
	}
	if before, ok := d.pending[name]; ok && before.gone == c.gone && reflect.DeepEqual(before.node, c.node) {
		return
	}
	c.since = now
	d.pending[name] = c
}

// accept accepts the pending changes that have lasted. A change that has not remains pending.
func (d *debouncer) accept(now time.Time) {
	for name, c := range d.pending {
		switch {
		case now.Sub(c.since) < d.after:
			continue
		case c.gone:
			delete(d.accepted, name)
		default:
			d.accepted[name] = c.node
		}
		delete(d.pending, name)
	}
}

// due is when pending changes are accepted: when all of them have lasted, or the first one
// twice as long, since a node that flaps must not hold up others for ever. It is zero if
// no change is pending.
func (d *debouncer) due() (due time.Time) {
	if len(d.pending) == 0 {
		return time.Time{}
	}
	var last, first time.Time
	for _, c := range d.pending {
		if c.since.After(last) {
			last = c.since
		}
		if first.IsZero() || c.since.Before(first) {
			first = c.since
		}
	}
	if due = last.Add(d.after); first.Add(2 * d.after).Before(due) {
		due = first.Add(2 * d.after)
	}
	return due
}
