package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A use is what an address needs of what all addresses of a node share: entries in the kernel and,
// in iptables mode, rules with programs.
type use struct{ entries, programs int }

func useOf(vip *proxy.VIP, l proxy.Limits) use {
	u := use{entries: vip.Entries(l.Mode)}
	if vip != nil && l.Mode == proxy.ModeIPTables {
		u.programs = vip.Programs()
	}
	return u
}

func (u use) plus(o use) use  { return use{u.entries + o.entries, u.programs + o.programs} }
func (u use) minus(o use) use { return use{u.entries - o.entries, u.programs - o.programs} }

// shareable is the use that Services may have together. An eighth of the entries remains for
// addresses that are withdrawn and still forwarded.
func shareable(l proxy.Limits) use { return use{l.Total - l.Total/8, l.TotalPrograms} }

func (u use) fits(l proxy.Limits) bool {
	most := shareable(l)
	return u.entries <= most.entries && u.programs <= most.programs
}

// A reduction is how an address is forwarded whose use does not fit beside that of others.
type reduction struct {
	vip *proxy.VIP // with ports and endpoints that it had; nil: the address is not forwarded
	why string
	use use // of all that the address wants
}

func (r *reduction) equal(o *reduction) bool {
	return r == o || r != nil && o != nil && r.why == o.why && r.use == o.use && (r.vip == nil) == (o.vip == nil) &&
		(r.vip == nil || r.vip.Equal(o.vip))
}

// A room is how much of its use an address gets.
type room int

const (
	wholeRoom  room = iota
	formerRoom      // as much as it had
	noRoom
)

// A holder is an address that needs room.
type holder struct {
	addr      netip.Addr
	namespace string
	service   *cluster.Spec // the first one, for its age
	former    *proxy.VIP    // see formerly
	uses      [noRoom + 1]use
	room      room
}

// shareOut decides which addresses get less than they want, until all fit. The namespace with the
// largest use yields first: what its addresses have grown by, the largest of them first; and then
// the whole of its largest address. So no namespace loses anything, and each may grow, while
// another one has more. It depends only on its arguments, so nodes with the same history agree.
func shareOut(l proxy.Limits, holders []*holder) {
	most := shareable(l)
	yield(most.entries, holders, func(u use) int { return u.entries })
	yield(most.programs, holders, func(u use) int { return u.programs })
}

// A tenant is the addresses of a namespace.
type tenant struct {
	name  string
	used  int
	steps []yielding
}

// A yielding reduces the room of an address.
type yielding struct {
	*holder
	to room
}

// yield reduces rooms until one resource suffices.
func yield(most int, holders []*holder, of func(use) int) {
	total, tenants := 0, map[string]*tenant{}
	for _, h := range holders {
		t := tenants[h.namespace]
		if t == nil {
			t = &tenant{name: h.namespace}
			tenants[h.namespace] = t
		}
		n := of(h.uses[h.room])
		t.used, total = t.used+n, total+n
		t.steps = append(t.steps, h.yieldings(of)...)
	}
	for _, t := range tenants {
		if total > most {
			t.sort(of)
		}
	}
	for total > most {
		t := largest(tenants)
		if t == nil {
			return // even without any frontend there are too many addresses
		}
		s := t.steps[0]
		freed := of(s.uses[s.room]) - of(s.uses[s.to])
		t.steps, t.used, total, s.room = t.steps[1:], t.used-freed, total-freed, s.to
	}
}

// yieldings returns the steps by which an address uses less.
func (h *holder) yieldings(of func(use) int) (steps []yielding) {
	for to := h.room + 1; to <= noRoom; to++ {
		if of(h.uses[to]) < of(h.uses[to-1]) {
			steps = append(steps, yielding{h, to})
		}
	}
	return steps
}

// sort sorts growth before the rest, then the larger use first, then the younger Service.
func (t *tenant) sort(of func(use) int) {
	grown := func(s yielding) int {
		if s.to == formerRoom || of(s.uses[formerRoom]) == of(s.uses[noRoom]) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(t.steps, func(a, b yielding) int {
		return cmp.Or(cmp.Compare(grown(a), grown(b)), cmp.Compare(of(b.uses[b.to-1]), of(a.uses[a.to-1])),
			cluster.CompareAge(b.service.Created, a.service.Created), a.addr.Compare(b.addr))
	})
}

// largest returns the namespace with the largest use that can yield, nil if none can.
func largest(tenants map[string]*tenant) (most *tenant) {
	for _, t := range tenants {
		if len(t.steps) > 0 && (most == nil || t.used > most.used || t.used == most.used && t.name < most.name) {
			most = t
		}
	}
	return most
}

// formerly returns want with the ports of had, and for each of these not more endpoints than had
// has: the same ones, and others in the place of endpoints that are gone. So it needs no more room than
// had, and rolling updates go on. It is nil if a port of had would lose all its endpoints.
func formerly(want, had *proxy.VIP) *proxy.VIP {
	vip := &proxy.VIP{Addr: want.Addr}
	for i := range want.Frontends {
		w := &want.Frontends[i]
		at, found := slices.BinarySearchFunc(had.Frontends, w, func(f proxy.Frontend, w *proxy.Frontend) int {
			return cmp.Or(cmp.Compare(f.Protocol, w.Protocol), cmp.Compare(f.Port, w.Port))
		})
		if !found {
			continue
		}
		f := formerFrontend(w, &had.Frontends[at])
		if len(f.External.Backends) == 0 && len(w.External.Backends) > 0 {
			return nil
		}
		vip.Frontends = append(vip.Frontends, f)
	}
	if len(vip.Frontends) == 0 {
		return nil
	}
	return vip
}

func formerFrontend(want, had *proxy.Frontend) proxy.Frontend {
	f := *want
	f.Scheduler, f.Affinity = had.Scheduler, had.Affinity
	f.Draining = slices.DeleteFunc(slices.Clone(want.Draining), func(a netip.AddrPort) bool { return !had.Has(a) })
	// What drains keeps its place until it is gone.
	draining := max(0, len(f.Draining)-len(had.Draining))
	f.External.Backends = formerBackends(want.External.Backends, had.External, draining)
	f.Internal.Backends = formerBackends(want.Internal.Backends, had.Internal, draining)
	return f
}

// formerBackends returns the backends of want that are in had, and others while all together are
// fewer than had has, less the places of endpoints that drain. All lists are sorted.
func formerBackends(want []proxy.Backend, had proxy.Target, draining int) (list []proxy.Backend) {
	if len(want)+draining <= len(had.Backends) {
		return want
	}
	for _, b := range want {
		if had.Has(b.Addr) {
			list = append(list, b)
		}
	}
	for _, b := range want {
		if len(list)+draining < len(had.Backends) && !had.Has(b.Addr) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b proxy.Backend) int { return a.Addr.Compare(b.Addr) })
	return list
}

// apply applies the reduction of an address to its decision; nil is none.
func (r *reduction) apply(d decision) {
	if r == nil {
		return
	}
	d.VIP, d.partly = r.vip, true
	for i := range d.shares {
		if s := &d.shares[i]; s.good() {
			s.verdict.partly, s.verdict.message = true, "only the ports and endpoints that it had are forwarded: "+r.why
		}
	}
}
