package speaker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
)

// An uplinkWatch follows the interfaces by which external clients arrive: the named ones,
// or the interfaces that have default routes or the node's addresses.
type uplinkWatch struct {
	*netWatch[uplinks]
	own atomic.Pointer[[]netip.Addr] // of the Node object
}

// uplinks are interfaces that lead to other machines.
type uplinks struct {
	names []string       // sorted; some of the named ones may not exist now
	links map[int]string // the existing ones, by index
}

func newUplinkWatch(named []string, log *slog.Logger) *uplinkWatch {
	w := &uplinkWatch{}
	w.own.Store(new([]netip.Addr))
	named = slices.Compact(slices.Sorted(slices.Values(named)))
	w.netWatch = newNetWatch(func(was uplinks) (uplinks, bool) {
		now := uplinks{named, make(map[int]string)}
		for _, name := range named {
			if i, err := net.InterfaceByName(name); err == nil { // a missing one may appear
				now.links[i.Index] = name
			}
		}
		if len(named) == 0 {
			var err error
			if now.links, err = uplinksOf(*w.own.Load()); err != nil {
				log.Warn("uplinks not read", "err", err)
				if was.links != nil {
					return was, false // what could be read may be a part
				}
			}
			now.names = slices.Sorted(maps.Values(now.links))
		}
		if maps.Equal(was.links, now.links) {
			return now, false
		}
		log.Info("uplinks of external clients", "iface", now.names)
		return now, true // also if a new interface has an old name
	}, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	return w
}

// names returns the names of the interfaces, sorted. own are the node's addresses.
func (w *uplinkWatch) names(own []netip.Addr) []string {
	was := w.own.Swap(&own)
	if first := w.start(); !first && !slices.Equal(*was, own) {
		w.refresh()
	}
	return w.current().names
}

// removeFastPath removes the fast path of an earlier speaker, which would receive no updates.
func (o Options) removeFastPath(ctx context.Context) {
	if err := fastpath.Cleanup(ctx, o.FastPathDir); err != nil {
		o.Log.Warn("fast path of an earlier speaker not removed", "err", err)
	}
}

// openFastPath returns nil without a fast path.
func (o Options) openFastPath() proxy.OpenFastPath {
	if !o.FastPath {
		return nil
	}
	return func(ctx context.Context, ended func([]fastpath.Flow)) (proxy.FastPath, error) {
		return fastpath.New(ctx, fastpath.Options{
			Dir: o.FastPathDir, Flows: fastpath.DefaultFlows, Log: o.Log, Ended: ended,
		})
	}
}

// uplinksOf returns the interfaces that lead to other machines, by index: the interfaces of
// default routes and of the node's own addresses.
func uplinksOf(own []netip.Addr) (links map[int]string, err error) {
	links = make(map[int]string)
	_, hops4, err4 := defaultGateway(netlink.FAMILY_V4)
	_, hops6, err6 := defaultGateway(netlink.FAMILY_V6)
	indexes := slices.Concat(hops4, hops6)
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && slices.Contains(own, ip.Unmap()) {
			indexes = append(indexes, a.LinkIndex)
		}
	}
	for _, index := range indexes {
		// Skip removed interfaces, and loopback, by which no client arrives.
		if i, err := net.InterfaceByIndex(index); err == nil && i.Flags&net.FlagLoopback == 0 {
			links[index] = i.Name
		}
	}
	return links, errors.Join(err4, err6, err)
}
