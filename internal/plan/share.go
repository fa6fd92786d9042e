package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// share cuts addresses if a revision of the last Desired makes the node's addresses need more room
// than there is, or ends cuts. It returns the View and the revision with the cuts. Otherwise, as
// nearly always, it costs only an addition for each address of the revision, which has none of the
// cuts of v.
func share(v *View, last *Desired, snap *cluster.Snapshot, r revision) (*View, revision) {
	wanted := last.wanted.plus(r.wanted())
	if wanted.fits(v.capacity.limits) && len(v.capacity.cuts) == 0 {
		return v, r.settled()
	}
	cuts := map[netip.Addr]*reduction{}
	if !wanted.fits(v.capacity.limits) {
		cuts = cutsOf(v.capacity.limits, v.holders(last, r))
	}
	again, other := r.cutAgain(v.capacity.cuts, cuts)
	again = sortedset.Union(again, r.shed(cuts))
	if other {
		next := *v
		next.capacity.cuts = cuts
		v = &next
	}
	return v, r.without(again).with(v.revise(last, snap, again)).inOrder().settled()
}

// settled returns the revision without what its addresses want: where that does not fit, it may be
// much larger than what does.
func (r revision) settled() revision {
	for _, a := range r.now {
		if a != nil {
			a.want = nil
		}
	}
	return r
}

// cutAgain returns the addresses to decide again, sorted, because the cuts of the last Desired and
// the present ones differ, or because the revision has them without their cut. other reports that
// any differ.
func (r revision) cutAgain(was, now map[netip.Addr]*reduction) (again []netip.Addr, other bool) {
	for a, c := range now {
		if same := c.equal(was[a]); !same || sortedset.Has(r.addrs, a) {
			again, other = append(again, a), other || !same
		}
	}
	for a := range was {
		if now[a] == nil {
			again, other = append(again, a), true
		}
	}
	slices.SortFunc(again, netip.Addr.Compare)
	return again, other
}

// shed returns the addresses, sorted, whose decisions were shed although they are not cut.
func (r revision) shed(cuts map[netip.Addr]*reduction) (addrs []netip.Addr) {
	for i, a := range r.now {
		if a != nil && a.shed && cuts[r.addrs[i]] == nil {
			addrs = append(addrs, r.addrs[i])
		}
	}
	return addrs
}

// holders returns all addresses after a revision.
func (v *View) holders(last *Desired, r revision) (all []*holder) {
	for a := range last.Addresses.All() {
		if a.use.entries > 0 && !sortedset.Has(r.addrs, a.Addr) {
			all = append(all, v.capacity.unchangedHolder(a))
		}
	}
	for i, a := range r.now {
		if a != nil && a.use.entries > 0 {
			all = append(all, v.changedHolder(a, r.was[i]))
		}
	}
	return all
}

// newHolder returns an address without its former use.
func (c *capacity) newHolder(a *Address) *holder {
	none := useOf(&proxy.VIP{Addr: a.Addr}, c.limits)
	return &holder{
		addr: a.Addr, namespace: a.services[0].Name.Namespace, service: a.services[0].Spec,
		uses: [...]use{a.use, none, none},
	}
}

// unchangedHolder returns an address that the revision does not have.
func (c *capacity) unchangedHolder(a *Address) *holder {
	h := c.newHolder(a)
	switch cut := c.cuts[a.Addr]; {
	case cut == nil:
		h.former, h.uses[formerRoom] = a.VIP, a.use
	case cut.vip != nil:
		h.former, h.uses[formerRoom] = cut.vip, useOf(cut.vip, c.limits)
	}
	return h
}

// changedHolder returns an address that was another one; nil: it is new.
func (v *View) changedHolder(a, was *Address) *holder {
	h := v.capacity.newHolder(a)
	if was == nil || len(was.VIP.Frontends) == 0 {
		return h
	}
	want := a.want
	if want == nil { // shed
		want = v.withoutCuts().decide(a.Addr, a.Pool, a.addressInput).want
	}
	if h.former = formerly(want, was.VIP); h.former != nil {
		h.uses[formerRoom] = useOf(h.former, v.capacity.limits)
	}
	return h
}

// cutsOf returns what addresses get that do not get all that they want.
func cutsOf(limits proxy.Limits, all []*holder) map[netip.Addr]*reduction {
	shareOut(limits, all)
	cuts := map[netip.Addr]*reduction{}
	for _, h := range all {
		if h.room == wholeRoom {
			continue
		}
		c := &reduction{why: h.cutText(limits), use: h.uses[wholeRoom]}
		if h.room == formerRoom {
			c.vip = h.former
		}
		cuts[h.addr] = c
	}
	return cuts
}

func (h *holder) cutText(limits proxy.Limits) string {
	most := shareable(limits)
	if u := h.uses[wholeRoom]; u.programs > h.uses[h.room].programs && u.entries <= h.uses[h.room].entries {
		return fmt.Sprintf("its %d rules for session affinity and the schedulers maglev and source hash do not fit: "+
			"in %s mode all addresses of a node can have %d together, and namespace %s has the most: "+
			"choose the scheduler random without affinity for some of its Services, or use nftables mode", u.programs,
			limits.Mode, most.programs, h.namespace)
	}
	return fmt.Sprintf("its %d entries in the kernel do not fit: in %s mode all addresses of a node can have %d "+
		"together, and namespace %s has the most: "+
		"use fewer ports or endpoints in its Services; the scheduler random needs the fewest entries",
		h.uses[wholeRoom].entries, limits.Mode, most.entries, h.namespace)
}

// wanted is by how much a revision changes the use that all addresses want.
func (r revision) wanted() use { return r.sum(func(a *Address) use { return a.use }) }

// forwarded is by how much a revision changes the use of all addresses.
func (r revision) forwarded(l proxy.Limits) use {
	return r.sum(func(a *Address) use {
		if a.Refusal == "" && !a.partly {
			return a.use
		}
		return useOf(a.VIP, l)
	})
}

func (r revision) sum(of func(*Address) use) (u use) {
	for i := range r.addrs {
		if a := r.now[i]; a != nil {
			u = u.plus(of(a))
		}
		if a := r.was[i]; a != nil {
			u = u.minus(of(a))
		}
	}
	return u
}

// without returns a revision without some of its addresses, which are sorted.
func (r revision) without(addrs []netip.Addr) (rest revision) {
	for i, a := range r.addrs {
		if !sortedset.Has(addrs, a) {
			rest = rest.with(revision{[]netip.Addr{a}, r.was[i : i+1], r.now[i : i+1]})
		}
	}
	return rest
}

// Fit returns VIPs that linger: without frontends if the node has no room for them beside the
// addresses of Services, the largest first. The list has its order.
func (d *Desired) Fit(lingering []*proxy.VIP) []*proxy.VIP {
	if d.View == nil || len(lingering) == 0 {
		return lingering
	}
	l := d.View.capacity.limits
	left := l.Total - d.forwarded.entries
	bySize := make([]int, len(lingering))
	for i := range bySize {
		bySize[i] = i
	}
	slices.SortStableFunc(bySize, func(a, b int) int {
		return lingering[a].Entries(l.Mode) - lingering[b].Entries(l.Mode)
	})
	out := slices.Clone(lingering)
	for _, i := range bySize {
		if left -= out[i].Entries(l.Mode); left < 0 {
			out[i] = &proxy.VIP{Addr: out[i].Addr}
		}
	}
	return out
}
