package radv

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/linkwatch"
)

// retryTime is the delay before a failure on a usable interface is retried. Changes of an
// interface are detected at once.
const retryTime = time.Second

// A Watch looks for the router on one interface.
type Watch struct {
	name    string
	changed chan struct{}

	mu      sync.Mutex
	routers routers // since the link last changed
	why     error   // why there is none
	link    context.Context
	end     context.CancelCauseFunc // of link
}

// Start watches an interface, which need not exist yet, until ctx ends.
func Start(ctx context.Context, name string) *Watch {
	w := &Watch{name: name, changed: make(chan struct{}, 1), why: notReceived(name)}
	if _, err := inspect(name); err != nil {
		w.why = err
	}
	go w.run(ctx)
	return w
}

func notReceived(name string) error { return errors.New("no router advertisement on " + name + " yet") }

// Changed receives a value when the result of Router changes. The channel holds one value,
// so that sending never blocks.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Router is the router on the link: its link-local address with the interface as zone. The
// result is valid until link ends: when this node's end of the link goes down or gets another
// address, as link's cause says for an operator. If there is no router, err says why.
func (w *Watch) Router() (router netip.Addr, link context.Context, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.routers.chosen.IsValid() {
		return netip.Addr{}, nil, w.why
	}
	return w.routers.chosen, w.link, nil
}

// Other is another host that advertises itself as a router on the link, invalid if there is
// none. BGP has no session with it: the link should have one router.
func (w *Watch) Other() netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.routers.other
}

// run handles one state of the interface after the other.
func (w *Watch) run(ctx context.Context) {
	changes := make(chan struct{}, 1)
	go linkwatch.Run(ctx, changes, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV6_IFADDR)
	for ctx.Err() == nil {
		here, err := inspect(w.name)
		if err == nil {
			err = w.session(ctx, here, changes)
		}
		if ctx.Err() != nil {
			return // no change to report: the link is the same
		}
		w.forget(err)
		select {
		case <-changes:
		case <-time.After(retryTime):
		case <-ctx.Done():
		}
	}
}

// session advertises and receives until the interface changes, and returns the reason.
func (w *Watch) session(ctx context.Context, here linkEnd, changes <-chan struct{}) error {
	conn, err := listen(w.name, here)
	if err != nil {
		return err
	}
	w.begin()
	ctx, cancel := context.WithCancel(ctx)
	failed, answer := make(chan error, 2), make(chan struct{}, 1)
	// Both end before the next session opens its socket: two sockets would answer twice.
	var running sync.WaitGroup
	running.Go(func() { failed <- conn.receive(answer, w.setRouter) })
	running.Go(func() { failed <- conn.advertise(ctx, answer) })
	err = w.await(ctx, here, changes, failed)
	cancel()
	conn.Close()
	running.Wait()
	return err
}

// await returns why the session on the link must end. Most changes of links are those of other
// interfaces, or of counters: the state of this one decides.
func (w *Watch) await(ctx context.Context, here linkEnd, changes <-chan struct{}, failed <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			if _, now := inspect(w.name); now != nil {
				return now // more precise
			}
			return err
		case <-changes:
			now, err := inspect(w.name)
			switch {
			case err != nil:
				return err
			case now != here:
				return errors.New("interface " + w.name + " has another address")
			}
		}
	}
}

// begin opens a link: sessions over it hold until its context ends.
func (w *Watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.link, w.end = context.WithCancelCause(context.Background())
	w.why = notReceived(w.name)
	notify.Changed(w.changed)
}

// forget removes the router; err says why.
func (w *Watch) forget(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.routers.chosen.IsValid() || w.why.Error() != err.Error() {
		notify.Changed(w.changed)
	}
	w.routers, w.why = routers{}, err
	if w.end != nil {
		w.end(err)
	}
}

// setRouter is called for each advertisement, most of which change nothing.
func (w *Watch) setRouter(router netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.routers.received(router, time.Now()) {
		notify.Changed(w.changed)
	}
}
