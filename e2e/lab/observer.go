package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An Observer sees every change of the router's routes and of the nodes' rules,
// with the time of its arrival on one clock.
//
// The kernel announces a change when it is in force. A goroutine per namespace
// waits for it, so times are late by what waking a goroutine takes, well under
// a millisecond on a machine that is not overloaded. Between the commit of a
// rule and the route that follows it, a BGP message and three processes have
// their turns.
type Observer struct {
	quit  chan struct{}
	rules []*netlink.Conn
	done  sync.WaitGroup

	mu     sync.Mutex
	routes []routeEvent
	tables []tableEvent
	errs   []error
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
	changes []frontendChange
}

// observe begins to observe. There must be no table and no VIP's route yet.
func (l *Lab) observe() (*Observer, error) {
	o := &Observer{quit: make(chan struct{})}
	routes := make(chan rtnetlink.RouteUpdate, 1024)
	err := rtnetlink.RouteSubscribeWithOptions(routes, o.quit, rtnetlink.RouteSubscribeOptions{
		Namespace: &l.Router.handle, ErrorCallback: o.fail, ReceiveBufferSize: 4 << 20, ReceiveBufferForceSize: true,
	})
	if err != nil {
		return nil, fmt.Errorf("observe routes: %w", err)
	}
	o.done.Go(func() { o.watchRoutes(routes) })
	for _, node := range NodeNames {
		conn, err := subscribeTables(l.namespaces[node])
		if err != nil {
			o.Close()
			return nil, fmt.Errorf("observe nftables of %s: %w", node, err)
		}
		o.rules = append(o.rules, conn)
		o.done.Go(func() { o.watchTables(node, conn) })
	}
	return o, nil
}

// Close ends the observation.
func (o *Observer) Close() {
	close(o.quit)
	for _, c := range o.rules {
		c.Close()
	}
	o.done.Wait()
}

// fail notes that something was missed; no verdict can be given any more.
func (o *Observer) fail(err error) {
	select {
	case <-o.quit:
		return
	default:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

func (o *Observer) watchRoutes(routes <-chan rtnetlink.RouteUpdate) {
	for u := range routes {
		e := routeEvent{at: time.Now()}
		vip, ok := hostRoute(u.Route)
		if !ok {
			continue
		}
		e.vip = vip
		if u.Type == unix.RTM_NEWROUTE {
			e.via = nextHops(u.Route)
		}
		o.mu.Lock()
		o.routes = append(o.routes, e)
		o.mu.Unlock()
	}
}

// hostRoute returns the address of a BGP route to a single address.
func hostRoute(r rtnetlink.Route) (netip.Addr, bool) {
	if r.Dst == nil || r.Table != unix.RT_TABLE_MAIN || r.Protocol != unix.RTPROT_BGP {
		return netip.Addr{}, false
	}
	if ones, bits := r.Dst.Mask.Size(); ones != bits {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP)
	return a.Unmap(), ok
}

func (o *Observer) watchTables(node string, conn *netlink.Conn) {
	var open tableEvent
	for {
		messages, err := conn.Receive()
		if err != nil {
			o.fail(fmt.Errorf("nftables of %s: %w", node, err))
			return
		}
		at := time.Now()
		for _, m := range messages {
			end, err := open.add(m)
			if err != nil {
				o.fail(fmt.Errorf("nftables of %s: %w", node, err))
				return
			}
			if !end {
				continue
			}
			if open.deleted || len(open.changes) > 0 {
				open.at, open.node = at, node
				o.mu.Lock()
				o.tables = append(o.tables, open)
				o.mu.Unlock()
			}
			open = tableEvent{}
		}
	}
}

// snapshot is everything seen so far.
func (o *Observer) snapshot() (routes []routeEvent, tables []tableEvent, errs []error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.routes), slices.Clone(o.tables), slices.Clone(o.errs)
}

// RouteChanges returns how many changes of a VIP's route there have been since a
// time.
func (o *Observer) RouteChanges(vip netip.Addr, since time.Time) int {
	routes, _, _ := o.snapshot()
	n := 0
	for _, e := range routes {
		if e.vip == vip && e.at.After(since) {
			n++
		}
	}
	return n
}

// RouteVia returns when, after a time, a VIP's route first led to exactly these
// nodes; zero if it never has.
func (o *Observer) RouteVia(vip netip.Addr, since time.Time, want ...string) time.Time {
	routes, _, _ := o.snapshot()
	for _, e := range routes {
		if e.vip == vip && e.at.After(since) && slices.Equal(e.via, want) {
			return e.at
		}
	}
	return time.Time{}
}

// Forwarded returns when, after a time, a node's kernel got a rule for a VIP that
// forwards; zero if it never has.
func (o *Observer) Forwarded(node string, vip netip.Addr, since time.Time) time.Time {
	_, tables, _ := o.snapshot()
	for _, e := range tables {
		if e.node != node || !e.at.After(since) {
			continue
		}
		for _, c := range e.changes {
			if c.key.vip == vip && c.forwards {
				return e.at
			}
		}
	}
	return time.Time{}
}

// Outage returns how long a node was without the table after somebody deleted
// it, first time after since.
func (o *Observer) Outage(node string, since time.Time) (time.Duration, error) {
	_, tables, _ := o.snapshot()
	var gone time.Time
	for _, e := range tables {
		switch {
		case e.node != node || !e.at.After(since):
		case e.deleted && len(e.changes) == 0:
			gone = e.at
		case !gone.IsZero() && len(e.changes) > 0:
			return e.at.Sub(gone), nil
		}
	}
	return 0, fmt.Errorf("%s: deleted at %v and not restored", node, gone)
}
