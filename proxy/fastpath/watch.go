package fastpath

import (
	"context"
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

var errSilent = errors.New("the kernel's notifications ended")

// listen stirs p whenever interfaces or routes change, until ctx ends.
func (p *Path) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.hear(ctx); err != nil {
			// What is missed meanwhile, the next walk makes good.
			p.log.Debug("watch interfaces and routes", "err", err)
			await(ctx, time.Second)
		}
	}
}

func (p *Path) hear(ctx context.Context) error {
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
	for heard := true; heard; {
		// A pod that comes is a dozen of them, and a router that reloads thousands.
		await(ctx, 10*time.Millisecond)
		poke(p.stirred)
		select {
		case <-ctx.Done():
			return nil
		case _, heard = <-links:
		case _, heard = <-routes:
		}
		heard = heard && rest(links) && rest(routes)
	}
	return errSilent
}

// rest takes what has come already; false: no more will come.
func rest[E any](c <-chan E) bool {
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

// drain lets a sender end that has something to say still.
func drain[E any](c <-chan E) {
	go func() {
		for range c {
		}
	}()
}

func await(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
