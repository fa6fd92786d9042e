package l2

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"time"

	rtnl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// retryTime is how soon what failed is tried again.
	retryTime = time.Second
	// listPause is between two looks at the interfaces: a node that starts a hundred
	// pods has hundreds of changes.
	listPause = 100 * time.Millisecond
)

// A keeper does what has to happen in the network namespace, where sockets are opened and
// interfaces looked at, and one thing after the other.
type keeper struct {
	netns   netns.NsHandle
	netlink *netlink.Handle
	tasks   chan func()
	changes chan struct{} // interfaces may have changed
	clashes chan struct{} // there are conflicts to be looked into
	done    chan struct{} // nothing is done any more
	ports   map[portKey]*port
	own     map[MAC]bool // of all interfaces
}

func newKeeper() (*keeper, error) {
	here, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	h, err := netlink.NewHandleAt(here, unix.NETLINK_ROUTE)
	if err != nil {
		here.Close()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return &keeper{
		netns: here, netlink: h, tasks: make(chan func()), changes: make(chan struct{}, 1), clashes: make(chan struct{}, 1),
		done: make(chan struct{}), ports: make(map[portKey]*port),
	}, nil
}

// do has f done, and waits for that.
func (k *keeper) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case k.tasks <- func() { f(); close(done) }:
	case <-ctx.Done():
		return ctx.Err()
	case <-k.done:
		return errors.New("layer 2 is closed")
	}
	<-done // it takes no longer than the kernel does
	return nil
}

// enter makes the calling goroutine's thread, which ends with it, one of the namespace.
func (k *keeper) enter() error {
	runtime.LockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	if here.Equal(k.netns) {
		return nil
	}
	return netns.Set(k.netns)
}

// keep runs until ctx ends.
func (a *Announcer) keep(ctx context.Context) {
	k := a.keeper
	defer k.close()
	if err := k.enter(); err != nil {
		a.log.ErrorContext(ctx, "BUG: no way back into the network namespace", "err", err)
		return
	}
	a.running.Go(func() { k.follow(ctx) })
	timer := time.NewTimer(time.Hour)
	for {
		wait := time.Hour
		if len(a.broken) > 0 { // which only this goroutine writes
			wait = retryTime
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case f := <-k.tasks:
			f()
		case <-k.changes:
			a.look(ctx)
			k.rest(ctx, listPause)
		case <-k.clashes:
			a.explain()
		case <-timer.C:
			a.look(ctx)
		}
	}
}

// rest lets changes gather, while tasks are done.
func (k *keeper) rest(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case f := <-k.tasks:
			f()
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (k *keeper) close() {
	close(k.done)
	for _, p := range k.ports {
		p.close()
	}
	k.netlink.Close()
	k.netns.Close()
}

// follow says when links or addresses have changed, whichever they are. What the kernel
// could not tell for lack of room counts as a change, as does that it can tell again.
func (k *keeper) follow(ctx context.Context) {
	if k.enter() != nil {
		return // of which keep has told
	}
	for ctx.Err() == nil {
		conn, err := rtnl.Dial(unix.NETLINK_ROUTE, &rtnl.Config{Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
		if err == nil {
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			for err == nil || errors.Is(err, unix.ENOBUFS) {
				poke(k.changes)
				_, err = conn.Receive()
			}
			stop()
			conn.Close()
		}
		select {
		case <-time.After(retryTime):
		case <-ctx.Done():
		}
	}
}

// take makes want the State.
func (a *Announcer) take(want State) {
	good, faults := check(want)
	if a.keeper.own == nil {
		a.list()
	}
	a.mu.Lock()
	a.want, a.faults = good, faults
	a.mu.Unlock()
	a.reconcile()
}

// look takes up what has become of the interfaces.
func (a *Announcer) look(ctx context.Context) {
	before := a.Interfaces()
	held := a.holding()
	a.list()
	a.reconcile()
	a.report(ctx, before)
	if !slices.EqualFunc(numbered(before), numbered(a.Interfaces()), Interface.equal) || !sameSlice(held, a.holding()) {
		poke(a.changed)
	}
}

// numbered are interfaces with subnets. The others, those of pods among them, come and go
// without meaning anything to anybody.
func numbered(all []Interface) []Interface {
	return slices.DeleteFunc(slices.Clone(all), func(i Interface) bool { return len(i.Prefixes) == 0 })
}

// listFailed stands among what is broken for the interfaces themselves.
var listFailed = portKey{}

func (a *Announcer) list() {
	interfaces, own, err := listInterfaces(a.keeper.netlink)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.broken, listFailed)
	if err != nil {
		a.broken[listFailed] = err // and what was there before stays
		return
	}
	a.keeper.own = own
	if !slices.EqualFunc(interfaces, a.interfaces, Interface.equal) {
		a.interfaces = interfaces
	}
}

// report logs interfaces that have come or gone, if addresses belong on them.
func (a *Announcer) report(ctx context.Context, before []Interface) {
	now := a.Interfaces()
	for _, i := range now {
		if len(i.Prefixes) > 0 && !slices.ContainsFunc(before, i.equal) {
			a.log.InfoContext(ctx, "interface for layer 2", "iface", i.Name, "mac", i.MAC.String(), "prefixes", i.Prefixes)
		}
	}
	for _, b := range before {
		if len(b.Prefixes) > 0 && !slices.ContainsFunc(now, func(i Interface) bool { return i.Index == b.Index }) {
			a.log.InfoContext(ctx, "interface is down, gone, or a part of another one", "iface", b.Name)
		}
	}
}

// A berth is what shall be answered for on a port.
type berth struct {
	iface     Interface
	addresses map[netip.Addr]bool
}

// plan says what is to be answered for where.
func plan(want []Address, interfaces []Interface) map[portKey]*berth {
	named := make(map[string]bool)
	for _, x := range want {
		for _, name := range x.Interfaces {
			named[name] = true
		}
	}
	berths := make(map[portKey]*berth)
	for _, i := range interfaces {
		if len(i.Prefixes) == 0 && !named[i.Name] {
			continue // as those of pods, of which there may be hundreds
		}
		for _, x := range want {
			if !i.carries(x) {
				continue
			}
			key := portKey{i.Index, protocolOf(x.Addr)}
			if berths[key] == nil {
				berths[key] = &berth{i, make(map[netip.Addr]bool)}
			}
			berths[key].addresses[x.Addr] = true
		}
	}
	return berths
}

// reconcile goes from what is to what shall be: first it gives up, then it takes.
func (a *Announcer) reconcile() {
	berths := plan(a.want.Addresses, a.interfaces) // which only this goroutine writes
	a.mu.Lock()
	a.yield(berths)
	a.mu.Unlock()
	failed := a.keeper.equip(a, berths)
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.broken, func(k portKey, _ error) bool { return k != listFailed })
	maps.Copy(a.broken, failed)
	a.occupy(berths, time.Now())
	poke(a.wake)
}

// equip opens and closes sockets as berths say, and takes those out of them for which that
// fails.
func (k *keeper) equip(a *Announcer, berths map[portKey]*berth) map[portKey]error {
	failed := make(map[portKey]error)
	for key, p := range k.ports {
		if berths[key] == nil || p.failed.Load() {
			p.close()
			delete(k.ports, key)
		}
	}
	for key, b := range berths {
		p, err := k.ports[key], error(nil)
		if p == nil {
			p, err = openPort(a, key, b.iface)
		}
		if err == nil {
			k.ports[key] = p
			err = p.fit(b.addresses)
		}
		if err != nil {
			failed[key] = fmt.Errorf("%s on %s: %w", key.protocol.name, b.iface.Name, err)
			delete(berths, key) // what an open port has already, it keeps
		}
	}
	return failed
}

// yield stops, with mu held, answering for all that is not in berths.
func (a *Announcer) yield(berths map[portKey]*berth) {
	for _, x := range a.addresses {
		x.claims = slices.DeleteFunc(x.claims, func(c claim) bool {
			b := berths[c.port.key]
			gone := b == nil || !b.addresses[x.want.Addr] || c.port.failed.Load()
			if gone {
				delete(c.port.claims.addresses, x.want.Addr)
			}
			return gone
		})
	}
	wanted := make(map[netip.Addr]bool, len(a.want.Addresses))
	for _, w := range a.want.Addresses {
		wanted[w.Addr] = true
	}
	for addr, x := range a.addresses {
		if !wanted[addr] {
			x.turn = nil
			delete(a.addresses, addr)
		}
	}
}

// occupy takes, with mu held, what is in berths.
func (a *Announcer) occupy(berths map[portKey]*berth, now time.Time) {
	speakers := make(map[MAC]bool, len(a.want.Speakers))
	for _, m := range a.want.Speakers {
		speakers[m] = true
	}
	fresh := make(map[*port]bool)
	for key, b := range berths {
		p := a.keeper.ports[key]
		if p.claims.mac != b.iface.MAC {
			fresh[p] = true
		}
		p.iface = b.iface
		p.claims.mac, p.claims.own, p.claims.speakers = b.iface.MAC, a.keeper.own, speakers
	}
	for _, w := range a.want.Addresses {
		x := a.addresses[w.Addr]
		if x == nil {
			x = &address{phase: Waiting, since: now, unsure: w.Probe}
			a.addresses[w.Addr] = x
		}
		x.revise(w, speakers)
		a.moor(x, berths, fresh, now)
	}
}

// revise takes up what the State says of an address now.
func (x *address) revise(w Address, speakers map[MAC]bool) {
	x.want = w
	switch {
	case x.phase == Conflicting && speakers[x.conflict.MAC]:
		// It is a speaker, of whom this node did not know yet.
		x.phase, x.turn, x.unsure, x.conflict = Waiting, nil, w.Probe, nil
	case x.phase != Conflicting && x.strikes == 0 && !w.Probe:
		x.unsure = false
	}
}

// moor gives x the ports in berths, and begins what there is to do on those that are new.
func (a *Announcer) moor(x *address, berths map[portKey]*berth, fresh map[*port]bool, now time.Time) {
	var begin []*port
	for key, b := range berths {
		if key.protocol != protocolOf(x.want.Addr) || !b.addresses[x.want.Addr] {
			continue
		}
		p := a.keeper.ports[key]
		if p.claims.addresses[x.want.Addr] == x {
			if fresh[p] {
				begin = append(begin, p)
			}
			continue
		}
		p.claims.addresses[x.want.Addr] = x
		x.claims = append(x.claims, claim{port: p})
		begin = append(begin, p)
	}
	a.settle(x, begin, now)
}

// settle goes on to the phase that x is to be in, and begins what there is to do on ports
// that are new.
func (a *Announcer) settle(x *address, begin []*port, now time.Time) {
	switch {
	case x.phase == Conflicting:
		return // until its turn comes
	case len(x.claims) == 0:
		x.turn = nil
		x.enter(Waiting, now)
	case x.unsure:
		if x.phase != Probing || len(begin) > 0 {
			x.enter(Probing, now)
			x.turn = &turn{address: x, stage: probe1}
			a.agenda.add(x.turn, now)
		}
	default:
		x.turn = nil
		if x.phase != Held {
			x.enter(Held, now)
			begin = x.ports()
		}
		a.proclaim(x, begin, now)
	}
}

func (x *address) enter(p Phase, now time.Time) {
	if x.phase != p {
		x.phase, x.since = p, now
	}
}

func (x *address) ports() []*port {
	ports := make([]*port, len(x.claims))
	for i, c := range x.claims {
		ports[i] = c.port
	}
	return ports
}

// proclaim begins announcing x on ports.
func (a *Announcer) proclaim(x *address, ports []*port, now time.Time) {
	for i, c := range x.claims {
		if slices.Contains(ports, c.port) {
			t := &turn{address: x, port: c.port, stage: announce}
			x.claims[i].turn = t
			a.agenda.add(t, now)
		}
	}
}
