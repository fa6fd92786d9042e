package speaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// watchRetry is how soon to listen for routes again after the kernel had more of them
// to tell than could be read.
const watchRetry = time.Second

// Gateways are the routers by which a node reaches what it knows no other way to, by
// address family: invalid where none is known.
type Gateways struct{ IPv4, IPv6 netip.Addr }

func (g Gateways) of(family corev1.IPFamily) netip.Addr {
	if family == corev1.IPv6Protocol {
		return g.IPv6
	}
	return g.IPv4
}

// A gatewayWatch follows the node's default routes from the first call of now on.
type gatewayWatch struct {
	log     *slog.Logger
	changed chan struct{} // has room for one
	begin   sync.Once
	ctx     context.Context // ends with close
	close   context.CancelFunc

	mu    sync.Mutex
	known Gateways
	links map[int]bool // that default routes go out by
}

func newGatewayWatch(log *slog.Logger) *gatewayWatch {
	ctx, stop := context.WithCancel(context.Background())
	return &gatewayWatch{log: log, changed: make(chan struct{}, 1), ctx: ctx, close: stop}
}

// now are the gateways.
func (g *gatewayWatch) now() Gateways {
	g.begin.Do(func() {
		g.look()
		go g.watch(g.ctx)
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known
}

// look takes down which gateways there are. One that is gone is kept until there is
// another: a default route goes for a moment when a lease is renewed, and a router
// that has lost its own uplink takes it back; neither is a reason to end a session.
func (g *gatewayWatch) look() {
	ipv4, links4, err4 := defaultGateway(netlink.FAMILY_V4)
	ipv6, links6, err6 := defaultGateway(netlink.FAMILY_V6)
	if err := errors.Join(err4, err6); err != nil {
		g.log.Warn("default gateway", "err", err)
	}
	g.mu.Lock()
	was := g.known
	g.known = Gateways{cmp.Or(ipv4, was.IPv4), cmp.Or(ipv6, was.IPv6)}
	is := g.known
	g.links = map[int]bool{}
	for _, index := range append(links4, links6...) {
		g.links[index] = true
	}
	g.mu.Unlock()
	if is == was {
		return
	}
	g.log.Info("default gateway", "ipv4", is.IPv4, "ipv6", is.IPv6)
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// defaultGateway is that of the default route with the lowest metric in the main
// table, and with the lowest address of several; invalid when there is none. It also
// returns all interfaces that such routes go out by.
func defaultGateway(family int) (best netip.Addr, links []int, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	routes, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	for tries := 0; errors.Is(err, netlink.ErrDumpInterrupted) && tries < 5; tries++ {
		routes, err = netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	}
	if err != nil {
		return netip.Addr{}, nil, fmt.Errorf("routes: %w", err)
	}
	metric := 0
	for _, r := range routes {
		hops := r.MultiPath
		if len(hops) == 0 {
			hops = []*netlink.NexthopInfo{{Gw: r.Gw, LinkIndex: r.LinkIndex, Flags: r.Flags}}
		}
		for _, hop := range hops {
			links = append(links, hop.LinkIndex)
			addr := gatewayOf(hop)
			if !addr.IsValid() || best.IsValid() && (r.Priority > metric || r.Priority == metric && best.Less(addr)) {
				continue
			}
			best, metric = addr, r.Priority
		}
	}
	return best, links, nil
}

// gatewayOf is invalid for a hop without one, and for one whose link is down.
func gatewayOf(hop *netlink.NexthopInfo) netip.Addr {
	addr, ok := netip.AddrFromSlice(hop.Gw)
	if !ok || hop.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0 {
		return netip.Addr{}
	}
	addr = addr.Unmap()
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		link, err := net.InterfaceByIndex(hop.LinkIndex)
		if err != nil {
			return netip.Addr{} // it has just gone
		}
		addr = addr.WithZone(link.Name)
	}
	return addr
}

// watch looks whenever the kernel tells of a default route, or of an interface that
// one goes out by: routes that go with their interface it does not tell of.
func (g *gatewayWatch) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := g.listen(ctx); err != nil {
			g.log.Warn("default gateway: routes cannot be watched", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
}

// listen returns when the kernel stops to tell.
func (g *gatewayWatch) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	routes, links := make(chan netlink.RouteUpdate, 64), make(chan netlink.LinkUpdate, 64)
	ignore := func(error) {} // what follows is the end of the channel
	if err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: ignore}); err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	defer drain(routes)
	if err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: ignore}); err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	defer drain(links)
	g.look() // what was not listened to
	for {
		select {
		case r, ok := <-routes:
			if !ok {
				return nil
			}
			if r.Dst != nil {
				if ones, _ := r.Dst.Mask.Size(); ones != 0 {
					continue
				}
			}
		case l, ok := <-links:
			if !ok {
				return nil
			}
			g.mu.Lock()
			ours := g.links[int(l.Index)]
			g.mu.Unlock()
			if !ours {
				continue
			}
		case <-ctx.Done():
			return nil
		}
		g.look()
	}
}

// drain lets a subscription end that waits for its reader.
func drain[T any](updates <-chan T) {
	go func() {
		for range updates {
		}
	}()
}
