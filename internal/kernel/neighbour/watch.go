package neighbour

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
)

const (
	// interval is the time between two requests to a host. A kernel answers in a millisecond.
	interval = 100 * time.Millisecond
	// maxMissed requests in a row without an answer make a host silent. Requests count, not
	// time: while this process does not run it sends none.
	maxMissed = 5
)

// A Host is a host on a link.
type Host struct {
	Interface string // of this node
	Addr      netip.Addr
	// MAC is the only hardware address from which an answer counts: another host may answer
	// for the address of one that is gone. It must be unicast.
	MAC hwaddr.MAC
}

// A Watch tests hosts. Its methods may be called from several goroutines.
type Watch struct {
	log     *slog.Logger
	changed chan struct{} // has room for one
	begun   chan struct{} // has room for one: there are new hosts

	mu sync.Mutex
	// missed is the number of requests in a row that each host has not answered. From
	// maxMissed on, a host is no longer tested.
	missed map[Host]int
}

// New returns a Watch without hosts.
func New(log *slog.Logger) *Watch {
	return &Watch{log: log, changed: make(chan struct{}, 1), begun: make(chan struct{}, 1), missed: map[Host]int{}}
}

// Changed has a value when a host has become silent.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Set sets which hosts are tested. A host that was silent remains so until a call without it.
func (w *Watch) Set(hosts []Host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.missed, func(h Host, _ int) bool { return !slices.Contains(hosts, h) })
	for _, h := range hosts {
		if _, known := w.missed[h]; !known {
			w.missed[h] = 0
			notify.Changed(w.begun)
		}
	}
}

// Answers reports whether a host answers. A host counts as answering until it has missed
// maxMissed requests, which takes half a second.
func (w *Watch) Answers(h Host) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.missed[h] < maxMissed
}

// Run tests the hosts until ctx ends. It opens nothing while there are none.
func (w *Watch) Run(ctx context.Context) {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		next := ticks.C
		if len(w.tested()) == 0 {
			next = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-w.begun:
			w.round(request)
		case <-next:
			w.round(test)
		}
	}
}

// tested returns the hosts that are not silent.
func (w *Watch) tested() (hosts []Host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for h, missed := range w.missed {
		if missed < maxMissed {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// round calls one for each host, and counts what it returns.
func (w *Watch) round(one func(Host) (answered bool)) {
	for _, h := range w.tested() {
		w.count(h, one(h))
	}
}

func (w *Watch) count(h Host, answered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	missed, known := w.missed[h]
	switch {
	case !known:
	case answered:
		w.missed[h] = 0
	default:
		if w.missed[h] = missed + 1; missed+1 == maxMissed {
			w.log.Info("the kernel of a node without a speaker does not answer", "addr", h.Addr, "iface", h.Interface)
			notify.Changed(w.changed)
		}
	}
}

// test reports whether a host has answered the last request, and sends the next one.
func test(h Host) (answered bool) {
	link, err := netlink.LinkByName(h.Interface)
	if err != nil {
		return false
	}
	entries, err := netlink.NeighList(link.Attrs().Index, h.family())
	if err != nil {
		return false
	}
	answered = slices.ContainsFunc(entries, h.confirmedBy)
	return request(h) && answered
}

// confirmedBy reports whether an entry of the neighbour table shows that a host has answered.
func (h Host) confirmedBy(e netlink.Neigh) bool {
	addr, _ := netip.AddrFromSlice(e.IP)
	mac, _ := hwaddr.Of(e.HardwareAddr)
	return addr.Unmap() == h.Addr && mac == h.MAC && e.State&unix.NUD_REACHABLE != 0
}

// request has the kernel send a request to a host, even if one is under way.
func request(h Host) (sent bool) {
	link, err := netlink.LinkByName(h.Interface)
	if err != nil {
		return false
	}
	entry := netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: h.family(), IP: h.Addr.AsSlice(), HardwareAddr: h.MAC[:],
		State: unix.NUD_STALE,
	}
	if err := netlink.NeighSet(&entry); err != nil {
		return false
	}
	entry.State = unix.NUD_PROBE
	return netlink.NeighSet(&entry) == nil
}

func (h Host) family() int {
	if h.Addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
