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
)

// How often we advertise: a few times in a row at first, so that one that is lost
// matters little (RFC 4861 §6.2.4), and then as often as FRR does on such links. What
// is heard is answered, so that a router that has just come up need not wait, but
// not more often than a router may (MIN_DELAY_BETWEEN_RAS).
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

// A conn sends and hears router advertisements on one interface.
type conn struct {
	*ndp.Conn
	end end
}

func listen(name string, here end) (*conn, error) {
	// By its number: package net remembers for a minute which interface had a name.
	iface := &net.Interface{Index: here.index, Name: strconv.Itoa(here.index), MTU: 4096} // the room for what is read, of which advertisements need little
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
		err = c.JoinGroup(allRouters) // where solicitations go
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("router advertisements on %s: %w", name, err)
	}
	return &conn{c, here}, nil
}

// hear calls found with each router that advertises itself, and asks for an answer to
// it and to those that solicit one, until the connection is closed.
func (c *conn) hear(answer chan<- struct{}, found func(netip.Addr)) error {
	for {
		m, control, from, err := c.ReadFrom()
		if err != nil {
			return err
		}
		// RFC 4861 §6.1: what a router forwarded has another hop limit.
		if control == nil || control.HopLimit != ndp.HopLimit {
			continue
		}
		if _, ok := m.(*ndp.RouterAdvertisement); ok {
			if !from.IsLinkLocalUnicast() {
				continue
			}
			found(from.WithZone(c.end.local.Zone()))
		}
		poke(answer)
	}
}

// advertise goes on until ctx ends or nothing can be sent any more.
func (c *conn) advertise(ctx context.Context, answer <-chan struct{}) error {
	next := time.NewTimer(0)
	defer next.Stop()
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

func (c *conn) advertisement() *ndp.RouterAdvertisement {
	ra := &ndp.RouterAdvertisement{} // zero: no default router, nothing specified
	if mac := c.end.hardware(); len(mac) == 6 {
		ra.Options = []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: mac}}
	}
	return ra
}
