package controller

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
)

// A writePlan has the necessary writes, in this order: release the claims of deleted Services,
// which frees addresses; then update each Service; then release the claims that Services no longer
// need.
type writePlan struct {
	gone     []release
	updates  []serviceUpdate
	leftover []release
	// waiting are Services whose status another controller changed, and which is not due to be
	// written back.
	waiting []cluster.Name
}

// A serviceUpdate is the wanted state of one Service: first its claims, then its status.
type serviceUpdate struct {
	// spec is the Service as it was read. If the API server has another version, the
	// update is void.
	spec   *cluster.Spec
	secure []claim
	// disputed are addresses of the status that another Service has. They are removed only if the
	// API server's claim also says so, because the snapshot may have an old one.
	disputed []netip.Addr
	// foreign are addresses that another controller has written into the status, or removed from it,
	// and that the Service does not get. The API server must have no claim by which it owns them.
	foreign []netip.Addr
	addrs   []netip.Addr // in the order of the Service's families
	// rewrites: the Service has all claims, and only its status differs.
	rewrites bool
	// overwritten is what another controller did to the status, empty for nothing.
	overwritten string
	waits       bool // the status is not due to be written back
	// condition is the wanted condition of the Service.
	condition cluster.AddressCondition
}

// A release removes holders from a claim: Services that do not, or should not, have the address.
type release struct {
	old  *cluster.Claim
	from []cluster.Holder // some of the claim's holders, or all
	// kept are the Services that the claim is reserved for. Deleted Services of from that are in
	// reserve are added.
	kept, reserve []cluster.Name
	// expired are namespaces that no longer exist, whose reservations end.
	expired []string
	refused []refusedReservation
	why     string // for the log and, after the Service, for the plan's text
}

// keeps reports whether the address stays reserved for a holder that releases it.
func (r release) keeps(h cluster.Holder) bool { return slices.Contains(r.reserve, h.Name) }

// plan returns the writes that make claims and statuses match the allocation. Settled Services are
// skipped, so the cost depends on the open Services and loose claims.
// A status that another controller has changed is written back when its contest allows it.
func plan(s *ipam.Allocator, assignments []cluster.Assignment, reasons []cluster.Reason, c contests,
	now time.Time) writePlan {
	p := planner{
		snap: s.Snap, assignments: assignments, contests: c, now: now,
		addrs:   make(map[cluster.Name][]cluster.Assignment, len(s.Open)),
		reasons: make(map[cluster.Name][]cluster.Reason, len(s.Open)),
	}
	for _, spec := range s.Open {
		p.addrs[spec.Name] = nil
	}
	if len(s.Open) != 0 {
		for _, a := range sortedset.Differ(s.Held, assignments, cluster.Assignment.Compare) {
			p.addrs[a.Service] = append(p.addrs[a.Service], a)
		}
	}
	for _, r := range reasons {
		p.reasons[r.Service] = append(p.reasons[r.Service], r)
	}
	var t writePlan
	p.reserved = newReservedUsage(s.Snap, s.Loose, p.kept)
	for _, c := range s.Loose {
		p.release(&t, c)
	}
	for _, spec := range s.Open {
		n, ok := p.planUpdate(spec)
		if ok {
			t.updates = append(t.updates, n)
		}
		if n.waits {
			t.waiting = append(t.waiting, spec.Name)
		}
	}
	// The oldest Service is first.
	slices.SortStableFunc(t.updates, func(a, b serviceUpdate) int {
		return cluster.CompareAge(a.spec.Created, b.spec.Created)
	})
	return t
}

// A planner compares what Services should have with their claims and statuses.
type planner struct {
	snap        *cluster.Snapshot
	assignments []cluster.Assignment
	// addrs and reasons are for Services that are not settled.
	addrs   map[cluster.Name][]cluster.Assignment
	reasons map[cluster.Name][]cluster.Reason
	// reserved counts the reserved addresses of namespaces.
	reserved *reservedUsage
	contests contests
	now      time.Time
}

// settled is the Rule by which a Service needs no write: it has the wanted addresses, and its
// condition says so.
func settled(snap *cluster.Snapshot, s *cluster.Spec) bool {
	if !ipam.Settled(snap, s) || s.StatusProxied || !s.Reported.Assigned {
		return false
	}
	code, text, pools := cluster.Assigned, []byte(nil), make([]string, len(s.Status))
	for i, a := range s.Status {
		if snap.Claim(a).Holders[0].Reserve != s.Reserve {
			return false
		}
		pools[i] = cluster.PoolOf(snap.Pools, a)
		text = appendHas(text, cluster.Assignment{Addr: a, Pool: pools[i]})
	}
	for _, p := range serviceProblems(snap, s, pools) {
		if code == cluster.Assigned {
			code = p.Code
		}
		text = append(separate(text), p.Clause()...)
	}
	return s.Reported.Code == code && s.Reported.Message == cut(string(text))
}

// serviceProblems returns what is wrong with a Service, and which of its annotations the pools of its
// addresses do not allow. A refused request is left out: it is the Reason why there is no address.
func serviceProblems(snap *cluster.Snapshot, s *cluster.Spec, pools []string) (all []cluster.Problem) {
	for _, name := range pools {
		for _, p := range cluster.PoolNamed(snap.Pools, name).RefusedAnnotations(s) {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	for _, p := range s.Problems {
		if p.Code != cluster.RequestRefused {
			all = append(all, p)
		}
	}
	return all
}

// holders returns the Services that should have an address, sorted by name: several if they share
// it.
func (p *planner) holders(a netip.Addr) (names []cluster.Name) {
	i, _ := slices.BinarySearchFunc(p.assignments, a,
		func(as cluster.Assignment, a netip.Addr) int { return as.Addr.Compare(a) })
	for ; i < len(p.assignments) && p.assignments[i].Addr == a; i++ {
		names = append(names, p.assignments[i].Service)
	}
	return names
}

// foreign reports whether another implementation assigns the Service's addresses.
func (p *planner) foreign(name cluster.Name) bool {
	return slices.ContainsFunc(p.reasons[name], func(r cluster.Reason) bool { return r.Code == cluster.NotOurs })
}

// shouldHave reports whether an address is assigned to the Service.
func (p *planner) shouldHave(name cluster.Name, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(p.assignments, cluster.Assignment{Addr: a, Service: name},
		cluster.Assignment.Compare)
	return found
}

// release plans the removal of c's holders that do not need the claim.
func (p *planner) release(t *writePlan, c *cluster.Claim) {
	var gone, leftover []cluster.Holder
	for _, h := range c.Holders {
		if p.shouldHave(h.Name, c.Addr) {
			continue
		}
		switch spec := p.snap.Service(h.Name); {
		case spec == nil:
			gone = append(gone, h)
		case p.foreign(h.Name) && slices.Contains(spec.Status, c.Addr):
			// The claim is left alone, with its address.
		default:
			leftover = append(leftover, h)
		}
	}
	r := release{old: c, kept: p.kept(c), expired: p.expired(c)}
	// A second write to a claim in the same pass would conflict with the first.
	switch {
	case len(gone) != 0:
		r.from, r.why = gone, "is gone"
		p.reserve(&r)
		t.gone = append(t.gone, r)
	case len(c.Holders) == 0 && !c.Reserved && len(r.kept) == 0:
		r.why = "no Service holds it, and it is not reserved"
		t.gone = append(t.gone, r)
	case len(leftover) != 0:
		r.from, r.why = leftover, "does not need it"
		t.leftover = append(t.leftover, r)
	case len(r.kept) != len(c.ReservedFor):
		r.why = "it is kept for a Service that has another address, or whose namespace is gone"
		t.leftover = append(t.leftover, r)
	}
}

// planUpdate plans the wanted state of the Service. ok is false if the Service has it, if another
// implementation decides, and if the Service must wait.
func (p *planner) planUpdate(spec *cluster.Spec) (n serviceUpdate, ok bool) {
	if p.foreign(spec.Name) {
		return serviceUpdate{}, false
	}
	n = serviceUpdate{spec: spec, overwritten: p.overwritten(spec.Name)}
	for _, f := range spec.IPFamilies {
		for _, a := range p.addrs[spec.Name] {
			if cluster.FamilyOf(a.Addr) == f {
				n.addrs = append(n.addrs, a.Addr)
			}
		}
	}
	n.rewrites = len(n.addrs) != 0 && n.writesAddrs()
	for _, a := range p.addrs[spec.Name] {
		n.rewrites = n.rewrites && holds(p.snap.Claim(a.Addr), spec.Name)
	}
	contest := p.contests.of(spec)
	if n.waits = n.rewrites && p.now.Before(contest.due()); n.rewrites && !n.waits {
		contest = contest.rewritten(p.now, n.overwritten)
	}
	n.condition = p.condition(spec, cmp.Or(contest.text(), n.overwritten))
	if contest.adopted(spec) && !n.writesAddrs() {
		n.condition = spec.Reported
	}
	if !p.planClaims(&n) {
		return serviceUpdate{}, false
	}
	p.planRemovals(&n)
	return n, len(n.secure) != 0 || n.writesStatus()
}

// planClaims plans the claims of n's addresses, which must name the Service before its status may
// change. It returns false if the Service must wait for another one.
func (p *planner) planClaims(n *serviceUpdate) bool {
	for _, a := range p.addrs[n.spec.Name] {
		c := claim{addr: a.Addr, from: p.snap.OriginOf(a), old: p.snap.Claim(a.Addr), holders: p.holders(a.Addr)}
		c.had = holds(c.old, n.spec.Name) && slices.Contains(n.spec.Reported.Addrs(), a.Addr)
		c.holders = append(c.holders, p.sharers(n.spec, c.old)...)
		if c.old == nil {
			c.replaced = p.replaced(n.spec, a.Addr)
		}
		switch {
		case c.taken():
			return false
		case !holds(c.old, n.spec.Name) || !n.waits && !slices.Contains(n.spec.Status, a.Addr) || c.unkept(n.spec):
			n.secure = append(n.secure, c)
		}
	}
	return true
}

// planRemovals finds the addresses of the status that n removes although no claim names the Service:
// a holder of the claim releases the address itself.
func (p *planner) planRemovals(n *serviceUpdate) {
	for _, a := range n.spec.Status {
		switch {
		case slices.Contains(n.addrs, a) || holds(p.snap.Claim(a), n.spec.Name):
		case p.others(a):
			n.disputed = append(n.disputed, a)
		case n.overwritten != "":
			n.foreign = append(n.foreign, a)
		}
	}
	for _, a := range n.spec.Reported.Addrs() {
		if !slices.Contains(n.addrs, a) && !slices.Contains(n.spec.Status, a) && !holds(p.snap.Claim(a), n.spec.Name) {
			n.foreign = append(n.foreign, a)
		}
	}
	// More than one of a family cannot be the controller's. A status may name each node.
	if len(n.foreign) > len(n.spec.IPFamilies) {
		n.foreign = nil
	}
}

// overwritten returns what another controller did to the status of a Service, empty for nothing.
func (p *planner) overwritten(name cluster.Name) string {
	for _, r := range p.reasons[name] {
		if r.Code == cluster.StatusOverwritten {
			return r.Message
		}
	}
	return ""
}

// replaced counts the Service's earlier addresses, in use by other hosts, that a replaces.
func (p *planner) replaced(spec *cluster.Spec, a netip.Addr) int32 {
	for _, old := range spec.Status {
		c := p.snap.Claim(old)
		if _, conflicts := p.snap.Conflict(old); conflicts && old.Is4() == a.Is4() && holds(c, spec.Name) {
			return c.Replaced + 1
		}
	}
	return 0
}

// others reports whether another Service has the address or its claim. The caller has
// checked that its Service is no holder.
func (p *planner) others(a netip.Addr) bool {
	return len(p.holders(a)) != 0 || p.snap.Claim(a) != nil
}

// sharers returns the holders of a claim that the Service shares with. A holder that will leave
// does not block: two Services that swap addresses would deadlock.
func (p *planner) sharers(s *cluster.Spec, c *cluster.Claim) (names []cluster.Name) {
	if s.Sharing == nil || c == nil {
		return nil
	}
	for _, h := range c.Holders {
		if o := p.snap.Service(h.Name); o != nil {
			if _, apart := ipam.Apart(s, o); !apart {
				names = append(names, h.Name)
			}
		}
	}
	return names
}

// condition returns the wanted condition of the Service; contest is its clause about another controller.
func (p *planner) condition(spec *cluster.Spec, contest string) cluster.AddressCondition {
	c := cluster.AddressCondition{Assigned: len(p.addrs[spec.Name]) != 0, Code: cluster.Assigned}
	var text []byte
	for _, a := range p.addrs[spec.Name] {
		text = appendHas(text, a)
	}
	if contest != "" {
		c.Code, text = cluster.StatusOverwritten, append(separate(text), contest...)
	}
	add := func(code cluster.Code, message string) {
		if c.Code == cluster.Assigned {
			c.Code = code
		}
		text = append(separate(text), message...)
	}
	for _, r := range p.reasons[spec.Name] {
		if r.Code != cluster.StatusOverwritten {
			add(r.Code, r.Message)
		}
	}
	for _, wrong := range serviceProblems(p.snap, spec, p.poolsOf(spec.Name)) {
		add(wrong.Code, wrong.Clause())
	}
	if len(text) == 0 {
		// Every Service without an address has a reason; it wants an address of at least one
		// family.
		c.Code, text = cluster.NoPool, []byte("has no address")
	}
	c.Message = cut(string(text))
	return c
}

// poolsOf returns the pools of a Service's addresses.
func (p *planner) poolsOf(name cluster.Name) (pools []string) {
	for _, a := range p.addrs[name] {
		pools = append(pools, p.snap.OriginOf(a).Pool)
	}
	return pools
}

// appendHas adds "has ADDRESS of pool POOL" to a message.
func appendHas(text []byte, a cluster.Assignment) []byte {
	text = a.Addr.AppendTo(append(separate(text), "has "...))
	if a.Pool != "" {
		text = append(append(text, " of pool "...), a.Pool...)
	}
	return text
}

// separate ends a clause of a message, if there is one.
func separate(text []byte) []byte {
	if len(text) == 0 {
		return text
	}
	return append(text, "; "...)
}

// maxMessage is the maximum length of a message in bytes. An Event's note may have 1 kB.
const maxMessage = 1000

// cut shortens a message to maxMessage bytes at a character boundary.
func cut(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	const rest = "…"
	return strings.ToValidUTF8(s[:maxMessage-len(rest)], "") + rest
}

// writesStatus reports whether the status differs from the wanted one.
func (u serviceUpdate) writesStatus() bool {
	return !u.waits && (u.writesAddrs() || u.condition != u.spec.Reported)
}

// writesAddrs reports whether the addresses in the status differ, or how they are served.
func (u serviceUpdate) writesAddrs() bool {
	return u.spec.StatusProxied || u.spec.StatusHost != "" || len(u.addrs) != len(u.spec.Status) ||
		slices.ContainsFunc(u.addrs, func(a netip.Addr) bool { return !slices.Contains(u.spec.Status, a) })
}
