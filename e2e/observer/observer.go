package observer

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An Observer records every change of the nodes' rules, every BGP UPDATE that reaches the
// router, and every change of the router's routes, on one clock.
//
// The times are the kernel's: when it committed a rule, and when a packet arrived. The
// order of the records is therefore the order of the events.
type Observer struct {
	config    Config
	listeners []*Listener
	polls     context.CancelFunc // nil unless PollSets runs
	polling   sync.WaitGroup

	mu       sync.Mutex
	covered  []*covering   // in the order of Cover
	lingerL2 time.Duration // zero: not checked
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

// A claimEvent is a packet in which a node claims an address over layer 2.
type claimEvent struct {
	at   time.Time
	node string
	vip  netip.Addr
}

// A Config says what to observe.
type Config struct {
	Nodes  map[string]Namespace
	Router Namespace
	// Segment is the router's interface to all nodes. Links are interfaces to one node each, over
	// which the sessions use IPv6.
	Segment string
	Links   map[string]string // interface -> node
	// NodeOf returns the node with an address, NextHop the node that a next hop of the router
	// leads to.
	NodeOf  func(netip.Addr) string
	NextHop func(link int, gateway net.IP) string
}

// New starts the recording. It must run before there is a table or a route to a VIP.
func New(c Config) (*Observer, error) {
	o := &Observer{config: c}
	if err := o.listen(); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

func (o *Observer) listen() error {
	router := o.config.Router
	tap := func(func(int) error) (int, error) { return openTap(o.config.Segment, unix.ETH_P_IP) }
	if err := o.add(Listen(router, "BGP", tap, o.recordUpdates(""), o.fail)); err != nil {
		return err
	}
	for iface, node := range o.config.Links {
		tap := func(func(int) error) (int, error) { return openTap(iface, unix.ETH_P_IPV6) }
		if err := o.add(Listen(router, "BGP of "+node, tap, o.recordUpdates(node), o.fail)); err != nil {
			return err
		}
	}
	if err := o.add(Listen(router, "routes", openRoutes, o.recordRoutes, o.fail)); err != nil {
		return err
	}
	for node, n := range o.config.Nodes {
		if err := o.add(WatchTables(n, node, o.recordTables(node), o.fail)); err != nil {
			return err
		}
	}
	return nil
}

func (o *Observer) add(l *Listener, err error) error {
	if err == nil {
		o.listeners = append(o.listeners, l)
	}
	return err
}

// Close stops the recording.
func (o *Observer) Close() {
	if o.polls != nil {
		o.polls()
		o.polling.Wait()
	}
	for _, l := range o.listeners {
		l.Close()
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
		e, prefix, ok, err := o.config.routeChange(m)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		e.at = at
		o.mu.Lock()
		for _, e.vip = range o.addresses(at, e.vip, prefix) {
			o.routes = append(o.routes, e)
		}
		o.mu.Unlock()
	}
	return nil
}

// Cover makes announcements and routes of prefixes that contain an address count as the
// address's own, until the returned function is called. It is for an address that is forwarded
// all that time: the nodes refuse other addresses of an aggregate, and announce it all the same.
func (o *Observer) Cover(vip netip.Addr) (end func()) {
	c := &covering{vip: vip}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.covered = append(o.covered, c)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		c.until = time.Now()
	}
}

// A covering is an address that counts as announced with each prefix around it.
type covering struct {
	vip   netip.Addr
	until time.Time // zero: it has not ended
}

// LingerL2 sets how long nodes forward an address after their last claim. By default that is
// not checked.
func (o *Observer) LingerL2(linger time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lingerL2 = linger
}

func (o *Observer) recordClaim(e claimEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.claims = append(o.claims, e)
}

// addresses returns the address, or if it has none the addresses that a prefix covered then.
// Events are recorded late, so that a covering may have ended since.
func (o *Observer) addresses(at time.Time, vip netip.Addr, prefix netip.Prefix) (all []netip.Addr) {
	if vip.IsValid() {
		return []netip.Addr{vip}
	}
	for _, c := range o.covered {
		if prefix.Contains(c.vip) && (c.until.IsZero() || at.Before(c.until)) {
			all = append(all, c.vip)
		}
	}
	return all
}

// recordUpdates records the UPDATEs on a tap. If the tap sees one node only, it is named.
func (o *Observer) recordUpdates(node string) func(time.Time, []byte) error {
	streams := map[netip.Addr]*bgpStream{}
	return func(at time.Time, packet []byte) error {
		events, err := readPacket(streams, packet)
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, e := range events {
			e.at, e.node = at, node
			if node == "" {
				e.node = o.config.NodeOf(e.source)
			}
			for _, vip := range o.addresses(at, e.vip, e.wider) {
				o.updates = append(o.updates, updateEvent{at: e.at, node: e.node, vip: vip, withdrawn: e.withdrawn})
			}
		}
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
	claims    []claimEvent
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

// Routed returns when a VIP first had a route to any node after the given time; zero if it had
// none.
func (o *Observer) Routed(vip netip.Addr, since time.Time) time.Time {
	for _, e := range o.snapshot().routes {
		if e.vip == vip && e.at.After(since) && len(e.via) > 0 {
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
