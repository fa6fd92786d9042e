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

// A redirects is what of the addresses that this node answers for is handed on, and what that
// was found by.
type redirects struct {
	rules []proxy.Redirect
	nodes []proxy.MAC
	// owners is the node, by address.
	owners map[netip.Addr]string
	// recheck is when there may be another answer though nothing changes; zero: never.
	recheck time.Time

	view      *plan.View
	addresses []l2.Address
	revision  uint64
	linger    time.Duration
}

// next is the handing for d, whose addresses others have answered for before, as former
// knows in its state of that number. What this node answered for until now, and left says
// until when it lingers, is handed on as before: hosts still send what belongs to the node before. A
// node whose speaker was stopped forwards on for linger at least. It keeps what is the same.
func (r *redirects) next(d *plan.Desired, former func([]netip.Addr) map[netip.Addr]string, state uint64, left func(netip.Addr) time.Time, linger time.Duration, now time.Time) *redirects {
	if r.view == d.View && sortedset.Same(r.addresses, d.L2.Addresses) && r.revision == state && (r.recheck.IsZero() || now.Before(r.recheck)) {
		return r
	}
	n := &redirects{view: d.View, addresses: d.L2.Addresses, revision: state, linger: linger, owners: map[netip.Addr]string{}}
	before := former(d.Answered)
	for _, a := range d.L2.Addresses {
		if node := before[a.Addr]; node != "" {
			n.add(a, node, now)
		}
	}
	for a, node := range r.owners {
		if _, answered := slices.BinarySearchFunc(d.Answered, a, netip.Addr.Compare); answered {
			continue
		}
		if until := left(a); now.Before(until) {
			n.recheckAt(until)
			n.add(l2.Address{Addr: a}, node, now)
		}
	}
	slices.SortFunc(n.rules, func(a, b proxy.Redirect) int {
		return cmp.Or(a.VIP.Compare(b.VIP), strings.Compare(a.Interface, b.Interface))
	})
	if len(n.rules) > 0 {
		for _, mac := range d.L2.Speakers {
			n.nodes = append(n.nodes, proxy.MAC(mac))
		}
	}
	n.rules, n.nodes = sortedset.Keep(r.rules, n.rules), sortedset.Keep(r.nodes, n.nodes)
	return n
}

// add has an address handed on to a node, by each interface that this one answers on, if
// the node forwards and its address there is known.
func (r *redirects) add(a l2.Address, node string, now time.Time) {
	m, _ := r.view.Members.Find(node)
	switch {
	case m.Heard():
	case m.Left && now.Before(m.Since.Add(r.linger)):
		r.recheckAt(m.Since.Add(r.linger))
	default:
		// A dead one forwards nothing, and nobody knows of one that lives by its Lease
		// whether it can be reached: clients that are refused try again, others would wait.
		return
	}
	own := m.Addresses()
	if n := cluster.NodeOf(r.view.Nodes, node); n != nil {
		own = append(own, n.InternalIPs...)
	}
	for _, i := range r.view.Interfaces {
		if !i.Carries(a) || !proxy.PlainIfname(i.Name) {
			continue
		}
		via := slices.IndexFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Addr.Is4() && i.Has(o) })
		if via < 0 {
			continue
		}
		r.rules = append(r.rules, proxy.Redirect{VIP: a.Addr, Interface: i.Name, Via: own[via]})
		r.owners[a.Addr] = node
	}
}

// recheckAt has another answer looked for at a time.
func (r *redirects) recheckAt(at time.Time) {
	if r.recheck.IsZero() || at.Before(r.recheck) {
		r.recheck = at
	}
}
