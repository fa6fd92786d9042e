package radv

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
)

// The interval of advertisements: a few in a row at first, in case one is lost (RFC 4861
// §6.2.4), then FRR's interval on such links. Received messages are answered, so that a
// router that has just come up need not wait, but at most at the rate that RFC 4861 allows
// (MIN_DELAY_BETWEEN_RAS).
const (
	firstTimes   = 3
	firstPause   = time.Second
	usualPause   = 10 * time.Second
	betweenPause = 3 * time.Second
)

var (
	allNodes   = netip.MustParseAddr("ff02::1")
	allRouters = netip.MustParseAddr("ff02::2")
)

// A conn sends and receives router advertisements on one interface. It is bound to the
// link-local address: BGP's peers know each other by it, so advertisements must come from it.
type conn struct {
	*ndp.Conn
	end linkEnd
}

// listen opens a raw socket, which needs CAP_NET_RAW. The kernel still receives the same
// messages: a filter of this socket does not take them away from it.
func listen(name string, here linkEnd) (*conn, error) {
	// By index: package net caches interface names for a minute.
	// size of the read buffer, more than advertisements need
	iface := &net.Interface{Index: here.index, Name: strconv.Itoa(here.index), MTU: 4096}
	c, _, err := ndp.Listen(iface, ndp.Addr(here.local.WithZone("").String()))
	if err != nil {
		return nil, fmt.Errorf("router advertisements on %s: %w", name, err)
	}
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
	filter.Accept(ipv6.ICMPTypeRouterSolicitation)
	if err = c.SetICMPFilter(&filter); err == nil {
		err = c.SetControlMessage(ipv6.FlagHopLimit, true)
	}
	if err == nil {
		err = c.JoinGroup(allRouters) // the destination of solicitations
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("router advertisements on %s: %w", name, err)
	}
	return &conn{c, here}, nil
}

// receive calls found with each router that sends advertisements, and requests an answer to
// it and to solicitations, until the connection is closed.
func (c *conn) receive(answer chan<- struct{}, found func(netip.Addr)) error {
	for {
		m, control, from, err := c.ReadFrom()
		if err != nil {
			return err
		}
		// RFC 4861 §6.1: a forwarded packet has another hop limit.
		if control == nil || control.HopLimit != ndp.HopLimit {
			continue
		}
		if _, ok := m.(*ndp.RouterAdvertisement); ok {
			if !from.IsLinkLocalUnicast() {
				continue
			}
			found(from.WithZone(c.end.local.Zone()))
		}
		notify.Changed(answer)
	}
}

// advertise runs until ctx ends or sending fails.
func (c *conn) advertise(ctx context.Context, answer <-chan struct{}) error {
	next := time.NewTimer(0)
	defer next.Stop()
	// last limits answers: many hosts that solicit at once get one multicast.
	var last time.Time
	for sent := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-answer:
			if time.Since(last) < betweenPause {
				continue
			}
		case <-next.C:
		}
		if err := c.WriteTo(c.advertisement(), nil, allNodes); err != nil {
			return err
		}
		last, sent = time.Now(), sent+1
		if sent < firstTimes {
			next.Reset(firstPause)
		} else {
			next.Reset(usualPause)
		}
	}
}

// advertisement has the sender's hardware address, so that the router need not solicit it before
// its first packet (RFC 4861 §6.2.3).
func (c *conn) advertisement() *ndp.RouterAdvertisement {
	ra := &ndp.RouterAdvertisement{} // zero: no default router, no parameters
	if c.end.mac != (hwaddr.MAC{}) {
		ra.Options = []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: c.end.mac[:]}}
	}
	return ra
}
