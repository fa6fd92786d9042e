package fastpath

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/linkwatch"
)

// errUnsubscribed says that the library has closed a channel, after an error such as ENOBUFS:
// there were too many changes at once.
var errUnsubscribed = errors.New("the netlink subscription ended")

// listen runs watchLinks until ctx ends, and again after an error.
func (d *Datapath) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := d.watchLinks(ctx); err != nil && ctx.Err() == nil {
			// It signals a change when it begins, in case one was missed.
			d.log.Debug("fast path: watch interfaces and routes", "err", err)
			await(ctx, time.Second)
		}
	}
}

// watchLinks signals changes of interfaces and routes.
func (d *Datapath) watchLinks(ctx context.Context) error {
	links, routes := make(chan netlink.LinkUpdate), make(chan netlink.RouteUpdate)
	done := make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{}); err != nil {
		return err
	}
	defer drain(links)
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{}); err != nil {
		return err
	}
	defer drain(routes)
	notify.Changed(d.linksChanged) // for changes before the subscription
	notify.Changed(d.peersChanged)
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-links:
			if !ok {
				return errUnsubscribed
			}
		case u, ok := <-routes:
			if !ok {
				return errUnsubscribed
			}
			if !d.affectsBackends(u.Dst) {
				continue
			}
		}
		// A new pod causes a dozen notifications: handle them together.
		await(ctx, 10*time.Millisecond)
		if !discardPending(links) || !discardPending(routes) {
			return errUnsubscribed
		}
		notify.Changed(d.linksChanged)
		notify.Changed(d.peersChanged)
	}
}

// watchOthers signals changes of interfaces' queues and filters, of routing rules, which change policies and
// routes, and of IPsec policies. For tcx programs there is no notification; the check every five seconds
// finds them.
func (d *Datapath) watchOthers(ctx context.Context) {
	const groupPolicy = 4 // XFRMNLGRP_POLICY
	d.work.Go(func() { linkwatch.Run(ctx, d.peersChanged, unix.RTNLGRP_TC) })
	d.work.Go(func() { linkwatch.Run(ctx, d.linksChanged, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE) })
	d.work.Go(func() { linkwatch.RunProtocol(ctx, d.linksChanged, unix.NETLINK_XFRM, groupPolicy) })
}

// affectsBackends reports whether a route's destination contains a backend; nil is the
// default route. On a router thousands of other routes may change.
func (d *Datapath) affectsBackends(to *net.IPNet) bool {
	if to == nil {
		return true
	}
	addr, ok := netip.AddrFromSlice(to.IP)
	if !ok {
		return true
	}
	bits, _ := to.Mask.Size()
	prefix := netip.PrefixFrom(addr.Unmap(), bits)
	d.mu.Lock()
	defer d.mu.Unlock()
	for a := range d.routes.of {
		if prefix.Contains(a) {
			return true
		}
	}
	return false
}

// discardPending empties a channel without waiting; false if it is closed.
func discardPending[E any](c <-chan E) bool {
	for {
		select {
		case _, ok := <-c:
			if !ok {
				return false
			}
		default:
			return true
		}
	}
}

// drain discards values until the sender closes the channel, so that it does not block.
func drain[E any](c <-chan E) {
	go func() {
		for range c {
		}
	}()
}

// await returns after d, or when ctx ends.
func await(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
