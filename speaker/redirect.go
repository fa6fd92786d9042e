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

// redirects sends connections that this node does not know to the former owners of its
// addresses, where they were established.
type redirects struct {
	rules    []proxy.Redirect
	speakers [][6]byte
	// formerOwner is the former owner of each redirected address.
	formerOwner map[netip.Addr]string
	// recheck is when the redirects may change without another event; zero: never.
	recheck time.Time

	view      *plan.View
	addresses []l2.Address
	revision  uint64
	linger    time.Duration
}

// next returns the redirects for d; r itself if its inputs are the same. former returns
// previous owners, and state is their revision. An address that this node has given up is
// still redirected until left says: hosts still send what belongs to the former owner. A
// node whose speaker was stopped forwards for at least the linger time.
func (r *redirects) next(d *plan.Desired, former func([]netip.Addr) map[netip.Addr]string, state uint64, left func(netip.Addr) time.Time, linger time.Duration, now time.Time) *redirects {
	if r.view == d.View && sortedset.Same(r.addresses, d.L2.Addresses) && r.revision == state && (r.recheck.IsZero() || now.Before(r.recheck)) {
		return r
	}
	n := &redirects{view: d.View, addresses: d.L2.Addresses, revision: state, linger: linger, formerOwner: map[netip.Addr]string{}}
	before := former(d.Answered)
	for _, a := range d.L2.Addresses {
		if node := before[a.Addr]; node != "" {
			n.add(a, node, now)
		}
	}
	for a, node := range r.formerOwner {
		if sortedset.Has(d.Answered, a) {
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
			n.speakers = append(n.speakers, mac)
		}
	}
	n.rules, n.speakers = sortedset.Keep(r.rules, n.rules), sortedset.Keep(r.speakers, n.speakers)
	return n
}

// add redirects an address to a node by each interface on which this node answers, if the
// node forwards and its address on that link is known.
func (r *redirects) add(a l2.Address, node string, now time.Time) {
	m, _ := r.view.Members.Find(node)
	switch {
	case m.Reachable():
	case m.Left && now.Before(m.Since.Add(r.linger)):
		r.recheckAt(m.Since.Add(r.linger))
	default:
		// A dead node forwards nothing, and one that lives only by its Lease may be
		// unreachable. Rejected clients retry at once; redirected ones would wait.
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
		r.formerOwner[a.Addr] = node
	}
}

// recheckAt bounds the validity of the redirects.
func (r *redirects) recheckAt(at time.Time) {
	if r.recheck.IsZero() || at.Before(r.recheck) {
		r.recheck = at
	}
}
