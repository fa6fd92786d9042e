package speaker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

// watchRetry is the pause after the kernel sent more changes than could be read.
const watchRetry = time.Second

// A netWatch reads a part of the node's network configuration at its start, and again after
// each relevant change.
type netWatch struct {
	log     *slog.Logger
	what    string // what is read, for logs
	refresh func() // may run in several goroutines at a time
	// These report whether a change is relevant; nil: no change of that kind is.
	route func(netlink.RouteUpdate) bool
	link  func(netlink.LinkUpdate) bool
	addr  func(netlink.AddrUpdate) bool

	changed chan struct{} // has room for one
	once    sync.Once
	ctx     context.Context // ends with stop
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

func newNetWatch(what string, look func(), log *slog.Logger) *netWatch {
	ctx, cancel := context.WithCancel(context.Background())
	return &netWatch{log: log, what: what, refresh: look, changed: make(chan struct{}, 1), ctx: ctx, cancel: cancel}
}

// start starts the watch after a first refresh, unless it runs already.
func (w *netWatch) start() (first bool) {
	w.once.Do(func() {
		first = true
		w.refresh()
		w.wg.Go(w.run)
	})
	return first
}

// stop ends the watch and waits for its end.
func (w *netWatch) stop() {
	w.cancel()
	w.wg.Wait()
}

// run subscribes again after errors: too many changes at once overflow the socket.
func (w *netWatch) run() {
	for w.ctx.Err() == nil {
		if err := w.listen(); err != nil {
			w.log.Warn(w.what+" cannot be watched", "err", err)
		}
		select {
		case <-w.ctx.Done():
		case <-time.After(watchRetry):
		}
	}
}

// listen returns when the subscription ends.
func (w *netWatch) listen() error {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	ignore := func(error) {} // the channel ends after an error
	routes, err := subscribe(w.route, func(c chan<- netlink.RouteUpdate) error {
		return netlink.RouteSubscribeWithOptions(c, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: ignore})
	})
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	defer drain(routes)
	links, err := subscribe(w.link, func(c chan<- netlink.LinkUpdate) error {
		return netlink.LinkSubscribeWithOptions(c, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: ignore})
	})
	if err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	defer drain(links)
	addrs, err := subscribe(w.addr, func(c chan<- netlink.AddrUpdate) error {
		return netlink.AddrSubscribeWithOptions(c, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: ignore})
	})
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	defer drain(addrs)
	for {
		w.refresh() // first, changes from before the subscription
		for matters := false; !matters; {
			var ok bool
			select {
			case r, open := <-routes:
				ok, matters = open, open && w.route(r)
			case l, open := <-links:
				ok, matters = open, open && w.link(l)
			case a, open := <-addrs:
				ok, matters = open, open && w.addr(a)
			case <-ctx.Done():
			}
			if !ok {
				return nil
			}
		}
	}
}

// subscribe returns a channel of changes, nil if none are relevant.
func subscribe[T any](matters func(T) bool, to func(chan<- T) error) (<-chan T, error) {
	if matters == nil {
		return nil, nil
	}
	updates := make(chan T, 64)
	if err := to(updates); err != nil {
		return nil, err
	}
	return updates, nil
}

// drain lets a subscription end that blocks on a full channel.
func drain[T any](updates <-chan T) {
	if updates == nil {
		return
	}
	go func() {
		for range updates {
		}
	}()
}

// isDefault reports whether a default route changed.
func isDefault(r netlink.RouteUpdate) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}
