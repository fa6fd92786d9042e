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
// than there is, or ends cuts. It returns the Inputs and the revision with the cuts. Otherwise, as
// nearly always, it costs only an addition for each address of the revision, which has none of the
// cuts of v.
func share(v *Inputs, last *Desired, snap *cluster.Snapshot, r revision) (*Inputs, revision) {
	wanted := last.wanted.plus(r.wanted())
	if wanted.fits(v.capacity.limits) && len(v.capacity.cuts) == 0 {
		return v, r
	}
	cuts := map[netip.Addr]*reduction{}
	if !wanted.fits(v.capacity.limits) {
		cuts = cutsOf(v.capacity.limits, v.holders(last, r))
	}
	again, other := r.cutAgain(v.capacity.cuts, cuts)
	if other {
		next := *v
		next.capacity.cuts = cuts
		v = &next
	}
	return v, r.with(v.revise(last, snap, again))
}

// cutAgain returns the addresses to decide again, sorted, because the cuts of the last Desired and
// the present ones differ, or because the revision has them without their cut or has shed them. other
// reports that any cuts differ.
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
	for _, a := range r.now {
		if a != nil && a.shed && now[a.Addr] == nil {
			again = append(again, a.Addr)
		}
	}
	return inOrder(again), other
}

// holders returns all addresses after a revision.
func (in *Inputs) holders(last *Desired, r revision) (all []*holder) {
	for a := range last.Addresses.All() {
		if a.use.entries > 0 && !sortedset.Has(r.addrs, a.Addr) {
			all = append(all, in.capacity.unchangedHolder(a))
		}
	}
	for i, a := range r.now {
		if a != nil && a.use.entries > 0 {
			all = append(all, in.changedHolder(a, r.was[i]))
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
func (in *Inputs) changedHolder(a, was *Address) *holder {
	h := in.capacity.newHolder(a)
	if was == nil || len(was.VIP.Frontends) == 0 {
		return h
	}
	want := a.VIP
	if a.shed {
		want = in.withoutCuts().decide(a.Addr, a.Pool, a.addressInput).VIP
	}
	if h.former = formerly(want, was.VIP); h.former != nil {
		h.uses[formerRoom] = useOf(h.former, in.capacity.limits)
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
	u, most := h.uses[wholeRoom], shareable(limits)
	what, of := fmt.Sprintf("%d entries in the kernel", u.entries), most.entries
	remedy := "use fewer ports or endpoints in its Services; the scheduler random needs the fewest entries"
	if got := h.uses[h.room]; u.programs > got.programs && u.entries <= got.entries {
		what, of = fmt.Sprintf("%d rules for session affinity and the schedulers maglev and source hash", u.programs),
			most.programs
		remedy = "choose the scheduler random without affinity for some of its Services, or use nftables mode"
	}
	return fmt.Sprintf("its %s do not fit: in %s mode all addresses of a node can have %d together, and "+
		"namespace %s has the most: %s",
		what, limits.Mode, of, h.namespace, remedy)
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

// with returns r with more decisions, which replace its own about the same addresses.
func (r revision) with(more revision) revision {
	addrs := sortedset.Union(r.addrs, more.addrs)
	out := revision{addrs, make([]*Address, len(addrs)), make([]*Address, len(addrs))}
	for _, part := range []revision{r, more} {
		for i, a := range part.addrs {
			at, _ := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare)
			out.was[at], out.now[at] = part.was[i], part.now[i]
		}
	}
	return out
}

// Fit returns VIPs that linger: without frontends if the node has no room for them beside the
// addresses of Services, the largest first. The lists are in the order of addresses.
func (d *Desired) Fit(lingering []*proxy.VIP) []*proxy.VIP {
	if d.Inputs == nil {
		return lingering
	}
	l := d.Inputs.capacity.limits
	left, needed := l.Total-d.forwarded.entries, 0
	for _, vip := range lingering {
		needed += vip.Entries(l.Mode)
	}
	if needed <= left { // as nearly always
		return lingering
	}
	out := slices.Clone(lingering)
	slices.SortStableFunc(out, func(a, b *proxy.VIP) int { return a.Entries(l.Mode) - b.Entries(l.Mode) })
	for i, vip := range out {
		if left -= vip.Entries(l.Mode); left < 0 {
			out[i] = &proxy.VIP{Addr: vip.Addr}
		}
	}
	slices.SortFunc(out, proxy.CompareVIPs)
	return out
}
