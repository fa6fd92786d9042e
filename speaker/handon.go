package speaker

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A handing is what of the addresses that this node answers for is handed on, and what that
// was found by.
type handing struct {
	list  []proxy.Redirect
	nodes []proxy.MAC
	// to is the node, by address.
	to map[netip.Addr]string
	// until is when there may be another answer though nothing changes; zero: never.
	until time.Time

	view    *plan.View
	answers []l2.Address
	former  uint64
	linger  time.Duration
}

// next is the handing for d, whose addresses others have answered for before, as former
// knows in its state of that number. What this node answered for until now, and left says
// until when it lingers, is handed on as before: hosts still send what belongs to the node before. A
// node whose speaker was stopped forwards on for linger at least. It keeps what is the same.
func (h *handing) next(d *plan.Desired, former func([]netip.Addr) map[netip.Addr]string, state uint64, left func(netip.Addr) time.Time, linger time.Duration, now time.Time) *handing {
	if h.view == d.View && sortedset.Same(h.answers, d.L2.Addresses) && h.former == state && (h.until.IsZero() || now.Before(h.until)) {
		return h
	}
	n := &handing{view: d.View, answers: d.L2.Addresses, former: state, linger: linger, to: map[netip.Addr]string{}}
	before := former(d.Answered)
	for _, a := range d.L2.Addresses {
		if node := before[a.Addr]; node != "" {
			n.add(a, node, now)
		}
	}
	for a, node := range h.to {
		if _, answered := slices.BinarySearchFunc(d.Answered, a, netip.Addr.Compare); answered {
			continue
		}
		if until := left(a); now.Before(until) {
			n.expire(until)
			n.add(l2.Address{Addr: a}, node, now)
		}
	}
	slices.SortFunc(n.list, func(a, b proxy.Redirect) int {
		return cmp.Or(a.VIP.Compare(b.VIP), strings.Compare(a.Interface, b.Interface))
	})
	if len(n.list) > 0 {
		for _, mac := range d.L2.Speakers {
			n.nodes = append(n.nodes, proxy.MAC(mac))
		}
	}
	n.list, n.nodes = sortedset.Keep(h.list, n.list), sortedset.Keep(h.nodes, n.nodes)
	return n
}

// add has an address handed on to a node, by each interface that this one answers on, if
// the node forwards and its address there is known.
func (h *handing) add(a l2.Address, node string, now time.Time) {
	m, _ := h.view.Members.Find(node)
	switch {
	case m.Reachable():
	case m.Left && now.Before(m.Since.Add(h.linger)):
		h.expire(m.Since.Add(h.linger))
	default:
		// A dead one forwards nothing, and nobody knows of one that lives by its Lease
		// whether it can be reached: clients that are refused try again, others would wait.
		return
	}
	own := m.Addresses()
	if n := cluster.NodeOf(h.view.Nodes, node); n != nil {
		own = append(own, n.InternalIPs...)
	}
	for _, i := range h.view.Interfaces {
		if !i.Carries(a) || !proxy.PlainIfname(i.Name) {
			continue
		}
		via := slices.IndexFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Addr.Is4() && i.Has(o) })
		if via < 0 {
			continue
		}
		h.list = append(h.list, proxy.Redirect{VIP: a.Addr, Interface: i.Name, Via: own[via]})
		h.to[a.Addr] = node
	}
}

// expire has another answer looked for at a time.
func (h *handing) expire(at time.Time) {
	if h.until.IsZero() || at.Before(h.until) {
		h.until = at
	}
}
