package l2

import (
	"context"
	"errors"
	"fmt"
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
	listInterval = 100 * time.Millisecond
)

// A keeper does what has to happen in the network namespace, where sockets are opened and
// interfaces looked at, and one thing after the other.
type worker struct {
	netns   netns.NsHandle
	netlink *netlink.Handle
	tasks   chan func()
	changes chan struct{} // interfaces may have changed
	conflicts chan struct{} // there are conflicts to be looked into
	done    chan struct{} // nothing is done any more
	ports   map[portKey]*port
	own     map[MAC]bool // of all interfaces
}

func newWorker() (*worker, error) {
	here, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	// To enter a namespace, even one's own, takes CAP_SYS_ADMIN, which a speaker has not got.
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		here.Close()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return &worker{
		netns: here, netlink: h, tasks: make(chan func()), changes: make(chan struct{}, 1), conflicts: make(chan struct{}, 1),
		done: make(chan struct{}), ports: make(map[portKey]*port),
	}, nil
}

// do has f done, and waits for that.
func (k *worker) do(ctx context.Context, f func()) error {
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
func (k *worker) enter() error {
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
func (a *Announcer) runWorker(ctx context.Context) {
	k := a.worker
	defer k.close()
	if err := k.enter(); err != nil {
		a.log.ErrorContext(ctx, "BUG: no way back into the network namespace", "err", err)
		return
	}
	a.running.Go(func() { k.watchLinks(ctx) })
	timer := time.NewTimer(time.Hour)
	for {
		wait := time.Hour
		if len(a.failures) > 0 { // which only this goroutine writes
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
			a.refreshInterfaces(ctx)
			k.debounce(ctx, listInterval)
		case <-k.conflicts:
			a.identifyConflicts()
		case <-timer.C:
			a.refreshInterfaces(ctx)
		}
	}
}

// rest lets changes gather, while tasks are done.
func (k *worker) debounce(ctx context.Context, pause time.Duration) {
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

func (k *worker) close() {
	close(k.done)
	for _, p := range k.ports {
		p.close()
	}
	k.netlink.Close()
	k.netns.Close()
}

// follow says when links or addresses have changed, whichever they are. That the kernel
// can tell again counts as a change.
func (k *worker) watchLinks(ctx context.Context) {
	if k.enter() != nil {
		return // of which keep has told
	}
	for ctx.Err() == nil {
		conn, err := subscribeLinks()
		if err == nil {
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			k.readChanges(conn)
			stop()
			conn.Close()
		}
		select {
		case <-time.After(retryTime):
		case <-ctx.Done():
		}
	}
}

// openChanges is told of the changes of links and addresses.
func subscribeLinks() (*rtnl.Conn, error) {
	return rtnl.Dial(unix.NETLINK_ROUTE, &rtnl.Config{Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
}

// heed counts as a change all that comes, and that the kernel had no room to tell, until the socket
// is of no use any more.
func (k *worker) readChanges(conn *rtnl.Conn) {
	for err := error(nil); err == nil || errors.Is(err, unix.ENOBUFS); _, err = conn.Receive() {
		notify(k.changes)
	}
}

// take makes want the State.
func (a *Announcer) setState(want State) {
	good, faults := check(want)
	if a.worker.own == nil {
		a.listInterfaces()
	}
	a.mu.Lock()
	a.want, a.faults = good, faults
	a.mu.Unlock()
	a.reconcile()
}

// look takes up what has become of the interfaces.
func (a *Announcer) refreshInterfaces(ctx context.Context) {
	before := a.Interfaces()
	held := a.held()
	a.listInterfaces()
	a.reconcile()
	a.logInterfaces(ctx, before)
	if !slices.EqualFunc(withSubnets(before), withSubnets(a.Interfaces()), Interface.equal) || !sameSlice(held, a.held()) {
		notify(a.changed)
	}
}

// numbered are interfaces with subnets. The others, those of pods among them, come and go
// without meaning anything to anybody.
func withSubnets(all []Interface) []Interface {
	return slices.DeleteFunc(slices.Clone(all), func(i Interface) bool { return len(i.Prefixes) == 0 })
}

// listFailed stands among what is broken for the interfaces themselves.
var listFailed = portKey{}

func (a *Announcer) listInterfaces() {
	interfaces, own, err := listInterfaces(a.worker.netlink)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.failures, listFailed)
	if err != nil {
		a.failures[listFailed] = err // and what was there before stays
		return
	}
	a.worker.own = own
	if !slices.EqualFunc(interfaces, a.interfaces, Interface.equal) {
		a.interfaces = interfaces
	}
}

// report logs interfaces that have come or gone, if addresses belong on them.
func (a *Announcer) logInterfaces(ctx context.Context, before []Interface) {
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
