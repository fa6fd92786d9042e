package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Allocate decides which Service holds which address. It returns the assignments, sorted by
// address, and the reasons, sorted by Service, why a Service holds no address, fewer than
// it requests, or one that may not last. It reads the Services, Namespaces, Pools, Claims
// and Assignments of the Allocator's snapshot:
//
//  1. Addresses in its Claims and Assignments are kept while the Service exists and wants an address of
//     that family. If a Service has a Claim, other addresses in its status count only if it requests them:
//     another controller wrote them. If two Services claim one address, a holder of its Claim comes first; then
//     the Service whose status has it, before one that only this process remembers; then the older, then the
//     first by name.
//  2. Services that request addresses get them, the oldest first, if a pool has them and they are free or shared.
//     If not, such a Service gets no other address, and keeps what it holds.
//  3. The other Services get an address for each family without one, the oldest first: from a pool that they
//     name, or from the Automatic pool of the highest priority with a free one. Pools that exclude the Service,
//     pools whose quota its namespace has used up, and addresses of the cluster itself are left out. A Service
//     that shares addresses joins one that it may share, if there is any. An address that another host is
//     reported to use is the last choice. A Service that is being deleted gets no address that it does not hold.
//
// An address whose Claim another Service holds is not allocated, even if that Service has
// lost it or is gone: the address is free when the Claim is. A reserved address goes only
// to a Service that requests it.
//
// It also replaces new addresses that other hosts use (conflict.go). At the zero time it replaces none.
func (s *Allocator) Allocate(now time.Time) ([]cluster.Assignment, []cluster.Reason) {
	p := newPlan(s)
	p.now = now
	for a := range s.Snap.Assignments.All() {
		written := slices.Contains(p.status(a.Service), a.Addr)
		p.claim(a, written, !written || a.Pool != "" || p.claimed(a.Addr, a.Service))
	}
	p.run()
	return p.assignments(), p.sortedReasons()
}

// Settled reports whether a Service of snap has one address of each of its families, each
// from a pool that admits it and by its own Claim, and requests no others. Whatever else is
// in snap, Allocate leaves these addresses and gives no reason.
func Settled(snap *cluster.Snapshot, s *cluster.Spec) bool {
	if len(s.Status) == 0 || len(s.Status) != len(s.IPFamilies) || s.StatusHost != "" {
		return false
	}
	if slices.ContainsFunc(s.Problems, func(p cluster.Problem) bool { return p.Code == cluster.RequestRefused }) {
		return false
	}
	for i, a := range s.Status {
		if !slices.Contains(s.IPFamilies, cluster.FamilyOf(a)) || i > 0 && s.Status[i-1].Is4() == a.Is4() {
			return false
		}
		if _, reported := snap.Conflict(a); reported {
			return false
		}
		if c := snap.Claim(a); c == nil || len(c.Holders) != 1 || c.Holders[0].Name != s.Name || !due(snap, s, a) {
			return false
		}
	}
	if len(unknown(snap.Pools, s)) != 0 {
		return false
	}
	for _, want := range s.Requested {
		if !slices.ContainsFunc(s.Status, func(a netip.Addr) bool { return answers(snap.Pools, want, a) }) {
			return false
		}
	}
	return true
}

// A claim is the claim of a Service that it holds an address.
type claim struct {
	addr netip.Addr
	pool *pool // nil if no pool contains it
	// origin is the pool that the address was allocated from, empty if unknown.
	origin string
	// from is how that pool announced it; see [cluster.Assignment].
	from cluster.Origin
	// written: the Service's status has the address, or had it when the controller wrote it.
	written bool
	// ours: a pool contains the address, or did when it was allocated. If not, another
	// implementation wrote the status.
	ours bool
	// proven: the address's Claim names the Service, or is reserved for it.
	proven bool
	// fits: the Service requests the address, or requests none. A status that does not fit must not
	// precede the address that was allocated instead.
	fits bool
}

// A plan is an allocation in progress.
type plan struct {
	*holdings
	now      time.Time  // zero: no Claim is new
	services []*service // that are not settled, oldest first
	reasons  []cluster.Reason
}

// A service is a Service to allocate for, and the addresses that it holds.
type service struct {
	*cluster.Spec
	claims []claim
	addrs  []netip.Addr
	// excluded are families that get no other address, because the Service requested, or has in its
	// status, an address that it cannot have.
	excluded []corev1.IPFamily
}

// A pool is a Pool with its addresses as spaces.
type pool struct {
	*cluster.Pool
	v4, v6 space
	// full are families without a free address. A release ends that.
	full map[corev1.IPFamily]bool
	// whyFull explains that, for messages.
	whyFull map[corev1.IPFamily]string
}

// space returns the addresses of family f. It has no ranges if the pool has none of f.
func (p *pool) space(f corev1.IPFamily) space {
	if f == corev1.IPv4Protocol {
		return p.v4
	}
	return p.v6
}

// newPlan skips settled Services.
func newPlan(s *Allocator) *plan {
	p := &plan{holdings: &holdings{
		Allocator: s, byName: map[cluster.Name]*service{}, taken: map[netip.Addr][]*service{},
	}}
	for _, spec := range s.Open {
		h := &service{Spec: spec}
		p.services = append(p.services, h)
		p.byName[spec.Name] = h
	}
	slices.SortStableFunc(p.services, compareAge) // They are sorted by name.
	for _, c := range s.Snap.Pools {
		p.pools = append(p.pools, &pool{c, newSpace(c, true), newSpace(c, false), map[corev1.IPFamily]bool{},
			map[corev1.IPFamily]string{}})
	}
	slices.SortFunc(p.pools, byPriority)
	p.newUsage()
	p.readClaims()
	return p
}

// readClaims makes the Services that Claims name holders.
func (p *plan) readClaims() {
	for _, c := range p.Loose {
		for _, by := range c.Holders {
			h := p.byName[by.Name]
			// else it is in Assignments
			if h != nil && !slices.Contains(h.Status, c.Addr) && (h.is(by) || p.inherits(h, c.Addr)) {
				p.claim(cluster.Assignment{Addr: c.Addr, Service: h.Name}, false, true)
			}
		}
		for _, name := range c.ReservedFor {
			if h := p.byName[name]; h != nil && !isHolder(c, name) && !slices.Contains(h.Status, c.Addr) &&
				p.inherits(h, c.Addr) {
				p.claim(cluster.Assignment{Addr: c.Addr, Service: name}, false, true)
			}
		}
	}
}

// compareAge sorts the older Service first. Services without a creationTimestamp are last.
func compareAge(a, b *service) int { return cluster.CompareAge(a.Created, b.Created) }

// status returns the addresses in the status of an open Service; none for other Services.
func (p *plan) status(name cluster.Name) []netip.Addr {
	if h := p.byName[name]; h != nil {
		return h.Status
	}
	return nil
}

// claim adds a claim. Deleted Services claim nothing.
func (p *plan) claim(a cluster.Assignment, written, ours bool) {
	h := p.byName[a.Service]
	if h == nil {
		return
	}
	pool := p.poolOf(a.Addr)
	fits := h.suits(pool) && (asked(p.Snap.Pools, h.Spec, a.Addr) || !h.asks(cluster.FamilyOf(a.Addr)))
	if !written && p.claimed(a.Addr, h.Name) {
		// Another controller may have removed it, but not what the condition says.
		written = slices.Contains(h.Reported.Addrs(), a.Addr)
	}
	proven := p.claimed(a.Addr, h.Name) || !written && p.Snap.Claim(a.Addr) != nil
	h.claims = append(h.claims, claim{a.Addr, pool, a.Pool, a.From, written, ours, proven, fits})
}

// run allocates in the order that Allocate documents: held addresses, then requested addresses,
// then any address. It fills in taken and reasons.
func (p *plan) run() {
	p.leaveForeign()
	p.keep()
	for _, h := range p.services {
		p.grant(h)
	}
	// Services that move to another pool release their addresses, so they go first.
	var others []*service
	for _, h := range p.services {
		if p.moves(h) {
			p.place(h)
		} else {
			others = append(others, h)
		}
	}
	for _, h := range others {
		p.place(h)
	}
	for _, h := range p.services {
		p.replaceConflicting(h)
	}
	p.warnShared()
	p.reportKept()
}

// moves reports whether h holds an address and requests one of another pool.
func (p *plan) moves(h *service) bool {
	return len(h.RequestedPools) != 0 && slices.ContainsFunc(h.IPFamilies,
		func(f corev1.IPFamily) bool { return h.has(f) && p.elsewhere(h, f) })
}

// has reports whether h has an address of family f.
func (s *service) has(f corev1.IPFamily) bool {
	return slices.ContainsFunc(s.addrs, func(a netip.Addr) bool { return cluster.FamilyOf(a) == f })
}

// exclude excludes families from further allocation to h.
func (s *service) exclude(families ...corev1.IPFamily) { s.excluded = append(s.excluded, families...) }

// refuse records why h does not get what it requests.
func (p *plan) refuse(h *service, code cluster.Code, format string, args ...any) {
	p.addReason(h, netip.Addr{}, code, format, args...)
}

// addReason adds a Reason about address a of h; a is invalid if h does not hold the address.
func (p *plan) addReason(h *service, a netip.Addr, code cluster.Code, format string, args ...any) {
	p.reasons = append(p.reasons, cluster.Reason{
		VIP: a, Service: h.Name, Protocol: "ipam", Code: code, Message: fmt.Sprintf(format, args...),
	})
}

// assignments returns what settled and open Services hold, sorted by address and Service.
func (p *plan) assignments() []cluster.Assignment {
	var placed []cluster.Assignment
	for a, by := range p.taken {
		as := cluster.Assignment{Addr: a}
		if pool := p.poolOf(a); pool != nil {
			as.Pool = pool.Name
		}
		for _, h := range by {
			as.Service = h.Name
			if as.Pool == "" {
				as.From = p.from(h, a)
			}
			placed = append(placed, as)
		}
	}
	slices.SortFunc(placed, cluster.Assignment.Compare)
	return merge(p.Held, placed)
}

// merge merges two sorted lists: long itself if the other is empty, as nearly always.
func merge(long, short []cluster.Assignment) []cluster.Assignment {
	if len(short) == 0 {
		return long
	}
	out := make([]cluster.Assignment, 0, len(long)+len(short))
	for _, a := range short {
		i, _ := slices.BinarySearchFunc(long, a, cluster.Assignment.Compare)
		out = append(append(out, long[:i]...), a)
		long = long[i:]
	}
	return append(out, long...)
}

// sortedReasons returns the reasons in an order that does not depend on the allocation's.
func (p *plan) sortedReasons() []cluster.Reason {
	slices.SortFunc(p.reasons, func(a, b cluster.Reason) int {
		return cmp.Or(a.Service.Compare(b.Service), a.VIP.Compare(b.VIP), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Message, b.Message))
	})
	return p.reasons
}

// names lists pools for a message. There must be at least one.
func names(pools []*pool) string {
	var s []string
	for _, p := range pools {
		s = append(s, p.Name)
	}
	return "pool " + strings.Join(s, ", ")
}
