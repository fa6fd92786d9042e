package l2

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/kernel/linkwatch"
)

const (
	// retryTime is the delay before a failed operation is retried.
	retryTime = time.Second
	// listInterval is the minimum time between two listings of the interfaces: a node that
	// starts a hundred pods has hundreds of changes.
	listInterval = 100 * time.Millisecond
)

// A worker does what must happen in the network namespace, one task after the other: open
// sockets and list interfaces.
type worker struct {
	netns    netns.NsHandle
	netlink  *netlink.Handle
	tasks    chan func()
	changes  chan struct{} // interfaces may have changed
	done     chan struct{} // closed when the worker has ended
	sockets  map[socketKey]*packetSocket
	own      map[MAC]bool // hardware addresses of all interfaces
	speakers map[MAC]bool // hardware addresses that cause no conflict
	// plans are what the last reconcile applied. They are nil before the first one, after a part has
	// failed, and after a change of anything but State.Addresses: the next reconcile then makes all
	// plans again and reconsiders all addresses. With plans it reconsiders changed addresses only.
	plans socketPlans
}

func newWorker() (*worker, error) {
	here, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	// Entering a namespace, even the current one, needs CAP_SYS_ADMIN, which a speaker does
	// not have.
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		here.Close()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return &worker{
		netns: here, netlink: h, tasks: make(chan func()), changes: make(chan struct{}, 1),
		done: make(chan struct{}), sockets: make(map[socketKey]*packetSocket),
	}, nil
}

// do runs f on the worker and waits until it has returned.
func (w *worker) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case w.tasks <- func() { f(); close(done) }:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.done:
		return errors.New("layer 2 is closed")
	}
	<-done // bounded by the kernel's answers
	return nil
}

// enter moves the calling goroutine's thread, which ends with it, into the namespace.
func (w *worker) enter() error {
	runtime.LockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	if here.Equal(w.netns) {
		return nil
	}
	return netns.Set(w.netns)
}

// runWorker runs until ctx ends.
func (a *Announcer) runWorker(ctx context.Context) {
	k := a.worker
	defer k.close()
	if err := k.enter(); err != nil {
		a.log.ErrorContext(ctx, "BUG: cannot enter the network namespace again", "err", err)
		return
	}
	a.running.Go(func() { k.watchLinks(ctx) })
	changes := k.changes
	var rested <-chan time.Time
	for {
		var retry <-chan time.Time
		if len(a.failures) > 0 { // written by this goroutine only
			retry = time.After(retryTime)
		}
		select {
		case <-ctx.Done():
			return
		case f := <-k.tasks:
			f()
		case <-changes:
			a.refreshInterfaces(ctx)
			changes, rested = nil, time.After(listInterval)
		case <-rested:
			changes, rested = k.changes, nil
		case <-a.phases.conflicts:
			a.identifyConflicts()
		case <-retry:
			a.refreshInterfaces(ctx)
		}
	}
}

func (w *worker) close() {
	close(w.done)
	for _, p := range w.sockets {
		p.close()
	}
	w.netlink.Close()
	w.netns.Close()
}

// watchLinks signals changes of links and addresses in the namespace.
func (w *worker) watchLinks(ctx context.Context) {
	if w.enter() != nil {
		return // runWorker has logged it
	}
	linkwatch.Run(ctx, w.changes, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// setState applies the valid part of want.
func (a *Announcer) setState(want State) {
	good, faults := check(want)
	if a.worker.own == nil {
		a.listInterfaces()
	}
	before := a.want
	if !before.equalButAddresses(good) || a.worker.hasFailedSocket() {
		a.worker.plans = nil
	}
	a.phases.mu.Lock()
	a.want, a.faults = good, faults
	a.phases.mu.Unlock()
	a.reconcile(before.Addresses)
}

func (w *worker) hasFailedSocket() bool {
	for _, p := range w.sockets {
		if p.failed.Load() {
			return true
		}
	}
	return false
}

// refreshInterfaces lists the interfaces again and applies the State to them.
func (a *Announcer) refreshInterfaces(ctx context.Context) {
	before := a.Interfaces()
	held := a.phases.held()
	a.listInterfaces()
	a.reconcile(a.want.Addresses)
	a.logInterfaces(ctx, before)
	if !slices.EqualFunc(withSubnets(before), withSubnets(a.Interfaces()), Interface.equal) ||
		!sortedset.Same(held, a.phases.held()) {
		notify.Changed(a.changed)
	}
}

// withSubnets returns the interfaces with subnets. The others, such as those of pods, come
// and go without effect.
func withSubnets(all []Interface) []Interface {
	return slices.DeleteFunc(slices.Clone(all), func(i Interface) bool { return len(i.Prefixes) == 0 })
}

// listFailed is the key in failures for listing the interfaces.
var listFailed = socketKey{}

func (a *Announcer) listInterfaces() {
	a.worker.plans = nil
	interfaces, own, err := listInterfaces(a.worker.netlink)
	a.phases.mu.Lock()
	defer a.phases.mu.Unlock()
	delete(a.failures, listFailed)
	if err != nil {
		a.failures[listFailed] = err // the previous list stays
		return
	}
	a.worker.own = own
	if !slices.EqualFunc(interfaces, a.interfaces, Interface.equal) {
		a.interfaces = interfaces
	}
}

// logInterfaces logs interfaces with subnets that have appeared or gone.
func (a *Announcer) logInterfaces(ctx context.Context, before []Interface) {
	now := a.Interfaces()
	for _, i := range now {
		if len(i.Prefixes) > 0 && !slices.ContainsFunc(before, i.equal) {
			a.log.InfoContext(ctx, "interface can answer for addresses over L2", "iface", i.Name, "mac", i.MAC.String(),
				"prefixes", i.Prefixes)
		}
	}
	for _, b := range before {
		if len(b.Prefixes) > 0 && !slices.ContainsFunc(now, func(i Interface) bool { return i.Index == b.Index }) {
			a.log.InfoContext(ctx, "interface is down, removed, or has become a port of another one", "iface", b.Name)
		}
	}
}
