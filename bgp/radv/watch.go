package radv

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	rtnl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// retryTime is how soon what failed on an interface that looks right is tried again.
// Changes of an interface are heard of at once.
const retryTime = time.Second

// A Watch looks out for the router on one interface.
type Watch struct {
	name    string
	changed chan struct{}

	mu     sync.Mutex
	router netip.Addr // invalid: none was heard since the link is what it is
	why    error      // why there is no router
	link   context.Context
	end    context.CancelCauseFunc // of link
}

// Start watches an interface, which need not be there yet, until ctx ends.
func Start(ctx context.Context, name string) *Watch {
	w := &Watch{name: name, changed: make(chan struct{}, 1), why: unheard(name)}
	if _, err := look(name); err != nil {
		w.why = err
	}
	go w.run(ctx)
	return w
}

func unheard(name string) error { return errors.New("no router advertisement on " + name + " yet") }

// Changed gets a value when Router has another answer. It has room for one, so that
// nobody waits for the reader.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Router is the one that was heard last, by its link-local address with the
// interface. What it holds for ends with link: when this node's end of the link goes
// down or gets another address, which link's cause says in an operator's words. So
// does err if there is no router.
func (w *Watch) Router() (router netip.Addr, link context.Context, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.router.IsValid() {
		return netip.Addr{}, nil, w.why
	}
	return w.router, w.link, nil
}

// run goes from one state of the interface to the next.
func (w *Watch) run(ctx context.Context) {
	changes := make(chan struct{}, 1)
	go follow(ctx, changes)
	for ctx.Err() == nil {
		here, err := look(w.name)
		if err == nil {
			err = w.stay(ctx, here, changes)
		}
		if ctx.Err() != nil {
			return // without a word of a link that is what it was
		}
		w.forget(err)
		select {
		case <-changes:
		case <-time.After(retryTime):
		case <-ctx.Done():
		}
	}
}

// stay advertises and listens until the interface is another one, and says what it
// is then.
func (w *Watch) stay(ctx context.Context, here end, changes <-chan struct{}) error {
	conn, err := listen(w.name, here)
	if err != nil {
		return err
	}
	w.begin()
	ctx, cancel := context.WithCancel(ctx)
	failed, ended := make(chan error, 2), make(chan struct{}, 2)
	answer := make(chan struct{}, 1)
	start := func(f func() error) {
		go func() {
			failed <- f()
			ended <- struct{}{}
		}()
	}
	start(func() error { return conn.hear(answer, w.heard) })
	start(func() error { return conn.advertise(ctx, answer) })
	err = w.await(ctx, here, changes, failed)
	cancel()
	conn.Close()
	<-ended
	<-ended
	return err
}

func (w *Watch) await(ctx context.Context, here end, changes <-chan struct{}, failed <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			if _, now := look(w.name); now != nil {
				return now // which says more
			}
			return err
		case <-changes:
			now, err := look(w.name)
			switch {
			case err != nil:
				return err
			case now != here:
				return errors.New("interface " + w.name + " has another address")
			}
		}
	}
}

func (w *Watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.link, w.end = context.WithCancelCause(context.Background())
	w.why = unheard(w.name)
	poke(w.changed)
}

// forget is about the router; err says why.
func (w *Watch) forget(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.router.IsValid() || w.why.Error() != err.Error() {
		poke(w.changed)
	}
	w.router, w.why = netip.Addr{}, err
	if w.end != nil {
		w.end(err)
	}
}

func (w *Watch) heard(router netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.router != router {
		w.router = router
		poke(w.changed)
	}
}

// follow says when links or IPv6 addresses have changed, whichever they are. What
// the kernel could not tell for lack of room counts as a change.
func follow(ctx context.Context, changes chan<- struct{}) {
	for ctx.Err() == nil {
		conn, err := rtnl.Dial(unix.NETLINK_ROUTE, &rtnl.Config{Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV6_IFADDR})
		if err == nil {
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			for err == nil {
				poke(changes)
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

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
