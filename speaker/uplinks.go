package speaker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
)

// An uplinkWatch follows the interfaces by which external clients arrive: the named ones,
// or the interfaces that have default routes or the node's addresses. It starts with the
// first call of current.
type uplinkWatch struct {
	*netWatch
	named []string // sorted

	mu    sync.Mutex
	own   []netip.Addr // of the Node object
	known []string     // sorted
	links map[int]bool // of known
}

// newUplinkWatch reads nothing yet.
func newUplinkWatch(named []string, log *slog.Logger) *uplinkWatch {
	o := &uplinkWatch{named: slices.Compact(slices.Sorted(slices.Values(named)))}
	o.netWatch = newNetWatch("uplinks", o.refresh, log)
	o.route, o.link, o.addr = isDefault, o.knows, o.owns
	return o
}

// watchUplinks returns nil without a fast path. It then removes the fast path of an earlier
// speaker, which would receive no updates.
func (o Options) watchUplinks(ctx context.Context) *uplinkWatch {
	if o.FastPath {
		return newUplinkWatch(o.FastPathInterfaces, o.Log)
	}
	if err := fastpath.Cleanup(ctx, o.FastPathDir); err != nil {
		o.Log.Warn("fast path of an earlier speaker not removed", "err", err)
	}
	return nil
}

// openFastPath returns nil without a fast path.
func (o Options) openFastPath() proxy.OpenFastPath {
	if !o.FastPath {
		return nil
	}
	return func(ctx context.Context, ended func([]fastpath.Flow)) (proxy.FastPath, error) {
		return fastpath.New(ctx, fastpath.Options{Dir: o.FastPathDir, Flows: fastpath.DefaultFlows, Log: o.Log, Ended: ended})
	}
}

// stop ends the watch and waits for its end. A nil watch has not started.
func (w *uplinkWatch) stop() {
	if w != nil {
		w.netWatch.stop()
	}
}

// changes receives a value when the interfaces have changed; never from a nil watch.
func (w *uplinkWatch) changes() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.changed
}

// current returns the names of the interfaces, sorted. own are the node's addresses.
func (w *uplinkWatch) current(own []netip.Addr) []string {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	same := slices.Equal(w.own, own)
	w.own = own
	w.mu.Unlock()
	if first := w.start(); !first && !same {
		w.refresh()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known
}

// refresh reads the interfaces. It is also a change if a new interface has an old name.
func (w *uplinkWatch) refresh() {
	w.mu.Lock()
	own := w.own
	w.mu.Unlock()
	links, err := w.find(own)
	if err != nil {
		w.log.Warn("uplinks not read", "err", err)
	}
	known := w.named
	if len(known) == 0 {
		for _, name := range links {
			known = append(known, name)
		}
		slices.Sort(known)
	}
	w.mu.Lock()
	was, had := w.known, w.links
	w.known, w.links = known, make(map[int]bool)
	for index := range links {
		w.links[index] = true
	}
	same := slices.Equal(was, known) && len(had) == len(links)
	for index := range links {
		same = same && had[index]
	}
	w.mu.Unlock()
	if same {
		return
	}
	w.log.Info("uplinks of external clients", "iface", known)
	notify.Changed(w.changed)
}

// find returns interfaces by index.
func (w *uplinkWatch) find(own []netip.Addr) (links map[int]string, err error) {
	links = make(map[int]string)
	for _, name := range w.named {
		if i, err := net.InterfaceByName(name); err == nil {
			links[i.Index] = name
		}
	}
	if len(w.named) > 0 {
		return links, nil // missing ones may appear
	}
	return uplinksOf(own)
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

// knows reports whether an interface is known, or has a known name.
func (w *uplinkWatch) knows(l netlink.LinkUpdate) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.links[int(l.Index)] || l.Link != nil && slices.Contains(w.known, l.Attrs().Name)
}

// owns reports whether an address is one of the node's.
func (w *uplinkWatch) owns(a netlink.AddrUpdate) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ip, ok := netip.AddrFromSlice(a.LinkAddress.IP)
	return ok && slices.Contains(w.own, ip.Unmap())
}
