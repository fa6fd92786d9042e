package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Allocate says which Service holds which address, sorted by address, and why
// one holds none, or fewer than it asked for, or a doubtful one, sorted by
// Service. It reads the Services, Namespaces, Pools, Claims and Assignments of snap:
//
//  1. What snap.Claims and snap.Assignments say is kept, as long as the Service
//     exists and wants an address of that family. Where two claim one address, a
//     holder of its Claim goes before all others; then one whose status says so
//     before one that this process remembers, then the older, then the first by
//     name.
//  2. Services that name addresses get them, the oldest first, if a pool has them
//     and nobody holds them, or shares them. If not, they get none by chance, and
//     keep what they held.
//  3. The others get an address of each family that they have none of, the oldest
//     first: from a pool that they name, or from the Automatic pool of the
//     highest priority that has one left. They get none of a pool whose fence they
//     do not pass, of which their namespace has its quota, or that the cluster
//     itself has. Those that share get one that others have of whom that can be
//     said, if there is any.
//
// An address whose Claim another Service holds is given to nobody, even if that
// Service has it no more, or is gone: the address is free when the Claim is. One
// that is reserved is given only to a Service that names it.
func Allocate(snap *cluster.Snapshot) ([]cluster.Assignment, []cluster.Reason) {
	return NewSurvey(snap, Settled).Allocate()
}

// Allocate is that of the snapshot, for who has surveyed it.
func (s *Survey) Allocate() ([]cluster.Assignment, []cluster.Reason) {
	p := newPlan(s)
	for _, a := range s.Snap.Assignments {
		written := slices.Contains(p.status(a.Service), a.Addr)
		p.claim(a, written, !written || a.Pool != "" || p.claimed(a.Addr, a.Service))
	}
	p.run()
	return p.assignments(), p.sortedReasons()
}

// Settled says whether a Service of snap has one address of each of its families,
// each out of a pool that would give it to it and by a Claim of its own, and does
// not ask for others.
// Whatever else is in snap, Allocate leaves it these and gives no reason.
func Settled(snap *cluster.Snapshot, s *cluster.Spec) bool {
	if len(s.Status) == 0 || len(s.Status) != len(s.IPFamilies) || s.BadRequest != "" || s.Contradiction != "" || s.StatusHost != "" {
		return false
	}
	for i, a := range s.Status {
		if !slices.Contains(s.IPFamilies, cluster.FamilyOf(a)) || i > 0 && s.Status[i-1].Is4() == a.Is4() {
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

// A claim is an address that a Service is said to hold.
type claim struct {
	addr netip.Addr
	pool *pool // nil when none has it
	// origin is the pool that it was of before, empty when nobody knows.
	origin string
	// from is how that pool announced it; see [cluster.Assignment].
	from cluster.Origin
	// written: the Service's status says so.
	written bool
	// ours: a pool has it, or had it when it was given out. If not, another
	// implementation wrote the status.
	ours bool
	// fits: it is what the Service asks for, if it asks for anything. A status
	// that is not must not come before what was given in its place.
	fits bool
}

// A plan is an allocation in the making.
type plan struct {
	*Survey
	holders []*holder // that are not settled, oldest first
	byName  map[cluster.Name]*holder
	pools   []*pool                  // by priority
	taken   map[netip.Addr][]*holder // more than one where they share
	byKey   map[string][]*cluster.Spec
	usage   usage
	reasons []cluster.Reason
}

// A holder is a Service and the addresses that it holds.
type holder struct {
	*cluster.Spec
	claims []claim
	addrs  []netip.Addr
	// settled are families that get no address by chance: the Service asked for
	// one that it cannot have, or its status names one that it cannot have.
	settled []corev1.IPFamily
	// foreign: another implementation gave it an address, and it is left alone.
	foreign bool
}

// A pool is a Pool with its addresses laid out.
type pool struct {
	*cluster.Pool
	v4, v6 space
	// full are families of which no address is left, as long as none is freed.
	full map[corev1.IPFamily]bool
}

func (p *pool) space(f corev1.IPFamily) space {
	if f == corev1.IPv4Protocol {
		return p.v4
	}
	return p.v6
}

// newPlan leaves alone what is settled.
func newPlan(s *Survey) *plan {
	p := &plan{Survey: s, byName: map[cluster.Name]*holder{}, taken: map[netip.Addr][]*holder{}}
	for _, spec := range s.Open {
		h := &holder{Spec: spec}
		p.holders = append(p.holders, h)
		p.byName[spec.Name] = h
	}
	slices.SortStableFunc(p.holders, compareAge) // They are sorted by name.
	for _, c := range s.Snap.Pools {
		p.pools = append(p.pools, &pool{c, newSpace(c, true), newSpace(c, false), map[corev1.IPFamily]bool{}})
	}
	slices.SortFunc(p.pools, byPriority)
	p.newUsage()
	p.readClaims()
	return p
}

// A fence is a Claim: the address is taken, whatever status says.
type fence struct {
	holders []cluster.Name // those that exist
	// gone is a holder that exists no more. The Claim has yet to be released.
	gone     *cluster.Name
	reserved bool
	kept     []cluster.Name // see Claim.ReservedFor
}

// fence is that of an address, with nobody behind it if there is none.
func (p *plan) fence(a netip.Addr) (f fence) {
	c := p.Snap.Claim(a)
	if c == nil {
		return f
	}
	f.reserved, f.kept = c.Reserved || len(c.ReservedFor) != 0, c.ReservedFor
	for i, h := range c.Holders {
		if p.Snap.Service(h.Name) == nil {
			f.gone = &c.Holders[i].Name
			continue
		}
		f.holders = append(f.holders, h.Name)
	}
	return f
}

// readClaims makes holders of those that Claims name.
func (p *plan) readClaims() {
	for _, c := range p.Loose {
		for _, by := range c.Holders {
			h := p.byName[by.Name]
			if h != nil && !slices.Contains(h.Status, c.Addr) && (h.is(by) || p.inherits(h, c.Addr)) { // else it is in Assignments
				p.claim(cluster.Assignment{Addr: c.Addr, Service: h.Name}, false, true)
			}
		}
		for _, name := range c.ReservedFor {
			if h := p.byName[name]; h != nil && !holding(c, name) && !slices.Contains(h.Status, c.Addr) && p.inherits(h, c.Addr) {
				p.claim(cluster.Assignment{Addr: c.Addr, Service: name}, false, true)
			}
		}
	}
}

// claimed says whether name is a holder of the Claim of a.
func (p *plan) claimed(a netip.Addr, name cluster.Name) bool {
	return slices.Contains(p.fence(a).holders, name)
}

// free says whether h may get address a by chance.
func (p *plan) free(a netip.Addr, h *holder) bool {
	f := p.fence(a)
	return p.owner(a, h) == nil && f.gone == nil && (!f.reserved || len(f.holders) != 0)
}

func compareAge(a, b *holder) int { return cluster.CompareAge(a.Created, b.Created) }

func (p *plan) status(name cluster.Name) []netip.Addr {
	if h := p.byName[name]; h != nil {
		return h.Status
	}
	return nil
}

// claim adds what is said of an address. Services that are gone claim nothing.
func (p *plan) claim(a cluster.Assignment, written, ours bool) {
	h := p.byName[a.Service]
	if h == nil {
		return
	}
	pool := p.poolOf(a.Addr)
	fits := p.suits(h, pool) && (asked(p.Snap.Pools, h.Spec, a.Addr) || !h.asks(cluster.FamilyOf(a.Addr)))
	h.claims = append(h.claims, claim{a.Addr, pool, a.Pool, a.From, written, ours, fits})
}

func (p *plan) run() {
	p.keep()
	p.leaveForeign()
	for _, h := range p.holders {
		p.grant(h)
	}
	// What those leave who go to another pool is for the others, so they go first.
	var others []*holder
	for _, h := range p.holders {
		if p.moves(h) {
			p.place(h)
		} else {
			others = append(others, h)
		}
	}
	for _, h := range others {
		p.place(h)
	}
	p.warnShared()
	p.reportKept()
}

// moves says whether h holds an address and asks for one of another pool.
func (p *plan) moves(h *holder) bool {
	return len(h.RequestedPools) != 0 && slices.ContainsFunc(h.IPFamilies, func(f corev1.IPFamily) bool { return h.has(f) && p.elsewhere(h, f) })
}

// keep leaves Services what they hold. Where claims contradict, better ones win,
// and among equals those of the older Service.
func (p *plan) keep() {
	for _, h := range p.holders {
		slices.SortFunc(h.claims, func(a, b claim) int { return a.addr.Compare(b.addr) })
		if h.StatusHost != "" {
			h.foreign = true
			p.refuse(h, cluster.NotOurs, "the status says %s, which is a host name, so it is left to whoever gave it: to have an address from here, remove the status", h.StatusHost)
		}
	}
	for _, better := range []struct{ fits, written bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		for _, h := range p.holders {
			for _, c := range h.claims {
				if c.fits == better.fits && c.written == better.written {
					p.keepOne(h, c)
				}
			}
		}
	}
}

// letGo leaves alone the Services that have addresses of another implementation:
// one Service cannot have two that write its status.
func (p *plan) leaveForeign() {
	for _, h := range p.holders {
		if h.foreign {
			for _, a := range slices.Clone(h.addrs) {
				p.release(h, a)
			}
		}
	}
	p.holders = slices.DeleteFunc(p.holders, func(h *holder) bool { return h.foreign })
}

func (p *plan) keepOne(h *holder, c claim) {
	family := cluster.FamilyOf(c.addr)
	other := p.owner(c.addr, h)
	switch {
	case !slices.Contains(h.IPFamilies, family):
		// It does not want one any more.
	case slices.Contains(h.addrs, c.addr):
		// Claimed twice, by status and by memory.
	case c.pool == nil && !c.ours:
		h.foreign = true
		p.refuse(h, cluster.NotOurs, "the status says %s, which is in no pool, so it is left to whoever gave it: to have an address from here, remove the status, or add %s to a pool; %s",
			c.addr, c.addr, p.describePools())
	case other != nil && c.written && p.claimed(c.addr, other.Name):
		// Who is wrong is clear, so h gets another one.
		p.refuse(h, cluster.AddressConflict, "the status said %s, which %s has claimed", c.addr, other.Name)
	case other != nil && c.written:
		h.settle(family)
		p.refuse(h, cluster.AddressConflict, "the status says %s, which %s holds: remove it from one of the two", c.addr, other.Name)
	case other != nil || h.has(family) && !(c.written && c.fits):
		// Its status says otherwise, or another one's does.
	default:
		p.take(h, c.addr)
	}
}

// refusal says why h cannot have address a, empty when it can.
func (p *plan) refusal(h *holder, a netip.Addr) (cluster.Code, string) {
	pool := p.poolOf(a)
	switch other := p.owner(a, h); {
	case !slices.Contains(h.IPFamilies, cluster.FamilyOf(a)):
		return cluster.RequestRefused, fmt.Sprintf("which is no address of its ipFamilies (%s)", join(h.IPFamilies))
	case pool != nil && p.bars(h, pool) != "":
		return cluster.RequestRefused, fmt.Sprintf("which is in pool %s, which %s", pool.Name, p.bars(h, pool))
	case other != nil:
		return cluster.AddressConflict, "which " + other.String()
	case !p.fence(a).admits(h.Name):
		return cluster.AddressConflict, fmt.Sprintf("which is reserved for %s", p.fence(a).beneficiaries())
	case p.fence(a).gone != nil:
		return cluster.AddressConflict, fmt.Sprintf("which %s, a Service that is gone, still holds", p.fence(a).gone)
	case pool == nil:
		return cluster.RequestRefused, "which is in no pool; " + p.describePools()
	case !p.suits(h, pool):
		return cluster.RequestRefused, fmt.Sprintf("which is in pool %s, and for pool %s; remove one of the two", pool.Name, join(h.RequestedPools))
	case pool.Allocation == cluster.Drained:
		return cluster.RequestRefused, fmt.Sprintf("which is in pool %s, which is Drained and gives out no more", pool.Name)
	case pool.AvoidBuggyIPs && a.Is4() && buggy(a):
		return cluster.RequestRefused, fmt.Sprintf("which pool %s does not give out, because of avoidBuggyIPs", pool.Name)
	case pool.OccupiedBy(a) != "":
		return cluster.AddressConflict, fmt.Sprintf("which belongs to %s", pool.OccupiedBy(a))
	}
	if limit := p.exceeds(h, pool, a); limit != "" {
		return cluster.QuotaExceeded, fmt.Sprintf("which is in pool %s, %s", pool.Name, limit)
	}
	return "", ""
}

// place gives h an address of each family that it has none of.
func (p *plan) place(h *holder) {
	var found []netip.Addr
	missing := false
	for _, family := range h.IPFamilies {
		if slices.Contains(h.settled, family) || h.has(family) && !p.elsewhere(h, family) {
			missing = missing || !h.has(family)
			continue
		}
		a, code, why := p.find(h, family)
		if why != "" {
			p.refuse(h, code, "%s", why)
			missing = missing || !h.has(family)
			continue
		}
		found = append(found, a)
	}
	if missing && len(found) != 0 && h.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack {
		p.refuse(h, cluster.RequestRefused, "needs addresses of both families (RequireDualStack), and gets no other until both can be had")
		return
	}
	for _, a := range found {
		p.replace(h, a)
	}
}

// elsewhere says whether h names another pool than the one that its address of
// family is of.
func (p *plan) elsewhere(h *holder, family corev1.IPFamily) bool {
	return len(h.RequestedPools) != 0 && !slices.ContainsFunc(h.addrs, func(a netip.Addr) bool {
		return cluster.FamilyOf(a) == family && p.cameFrom(h, a)
	})
}

// find looks for an address of family that h could have.
func (p *plan) find(h *holder, family corev1.IPFamily) (a netip.Addr, code cluster.Code, why string) {
	pools, why := p.candidates(h, family)
	if why != "" {
		return netip.Addr{}, cluster.RequestRefused, why
	}
	if len(pools) == 0 {
		return netip.Addr{}, cluster.NoPool, fmt.Sprintf("no Automatic pool has %s addresses; %s", family, p.describePools())
	}
	open, barred := p.admit(h, pools)
	if len(open) == 0 {
		return netip.Addr{}, cluster.NoPool, fmt.Sprintf("no Automatic pool with %s addresses is for this Service: %s", family, barred)
	}
	if a := p.joined(h, family, open); a.IsValid() && p.exceeds(h, p.poolOf(a), a) == "" {
		return a, "", ""
	}
	return p.findIn(open, h, family)
}

// candidates are the pools of which h could get an address, in the order in which
// they are tried; of fences only those of pools that h names are asked. If these are
// only pools that it cannot have, why says so.
func (p *plan) candidates(h *holder, family corev1.IPFamily) (pools []*pool, why string) {
	if len(h.RequestedPools) == 0 {
		for _, pool := range p.pools {
			if pool.Allocation == cluster.Automatic && len(pool.space(family).ranges) != 0 {
				pools = append(pools, pool)
			}
		}
		return pools, ""
	}
	var whys []string
	unknown := ""
	for _, name := range h.RequestedPools {
		i := slices.IndexFunc(p.pools, func(q *pool) bool { return q.Name == name })
		switch {
		case i < 0:
			whys = append(whys, fmt.Sprintf("pool %s, which does not exist", name))
			unknown = "; " + p.describePools()
		case p.pools[i].Allocation == cluster.Drained:
			whys = append(whys, fmt.Sprintf("pool %s, which is Drained and gives out no more", name))
		case p.bars(h, p.pools[i]) != "":
			whys = append(whys, fmt.Sprintf("pool %s, which %s", name, p.bars(h, p.pools[i])))
		case len(p.pools[i].space(family).ranges) == 0:
			whys = append(whys, fmt.Sprintf("pool %s, which has no %s addresses", name, family))
		default:
			pools = append(pools, p.pools[i])
		}
	}
	if len(pools) != 0 {
		return pools, ""
	}
	return nil, "asks for " + strings.Join(whys, ", and for ") + unknown
}

func (p *plan) poolOf(a netip.Addr) *pool {
	for _, pool := range p.pools {
		if pool.Contains(a) {
			return pool
		}
	}
	return nil
}

func (p *plan) take(h *holder, a netip.Addr) {
	p.taken[a] = append(p.taken[a], h)
	h.addrs = append(h.addrs, a)
	p.count(h.Name, a, 1)
}

func (p *plan) release(h *holder, a netip.Addr) {
	if p.taken[a] = slices.DeleteFunc(p.taken[a], func(o *holder) bool { return o == h }); len(p.taken[a]) == 0 {
		delete(p.taken, a)
	}
	p.count(h.Name, a, -1)
	h.addrs = slices.DeleteFunc(h.addrs, func(b netip.Addr) bool { return a == b })
	for _, pool := range p.pools {
		clear(pool.full)
	}
}

// replace gives h address a in the place of any other of its family.
func (p *plan) replace(h *holder, a netip.Addr) {
	for _, old := range slices.Clone(h.addrs) {
		if cluster.FamilyOf(old) == cluster.FamilyOf(a) {
			p.release(h, old)
		}
	}
	p.take(h, a)
}

func (h *holder) has(f corev1.IPFamily) bool {
	return slices.ContainsFunc(h.addrs, func(a netip.Addr) bool { return cluster.FamilyOf(a) == f })
}

func (h *holder) settle(families ...corev1.IPFamily) { h.settled = append(h.settled, families...) }

// refuse says why h does not get what it asks for.
func (p *plan) refuse(h *holder, code cluster.Code, format string, args ...any) {
	p.say(h, netip.Addr{}, code, format, args...)
}

func (p *plan) say(h *holder, a netip.Addr, code cluster.Code, format string, args ...any) {
	p.reasons = append(p.reasons, cluster.Reason{
		VIP: a, Service: h.Name, Protocol: "ipam", Code: code, Message: fmt.Sprintf(format, args...),
	})
}

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

// merge returns what is in two sorted lists, sorted.
func merge(long, short []cluster.Assignment) []cluster.Assignment {
	out := make([]cluster.Assignment, 0, len(long)+len(short))
	for _, a := range short {
		i, _ := slices.BinarySearchFunc(long, a, cluster.Assignment.Compare)
		out = append(append(out, long[:i]...), a)
		long = long[i:]
	}
	return append(out, long...)
}

func (p *plan) sortedReasons() []cluster.Reason {
	slices.SortFunc(p.reasons, func(a, b cluster.Reason) int {
		return cmp.Or(a.Service.Compare(b.Service), a.VIP.Compare(b.VIP), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message))
	})
	return p.reasons
}

// describePools says in a few words which pools there are.
func (p *plan) describePools() string {
	if len(p.pools) == 0 {
		return "there is no pool: add an AddressPool"
	}
	var s []string
	for _, pool := range p.pools {
		const most = 3
		ranges := pool.Ranges[:min(most, len(pool.Ranges))]
		more := ""
		if len(pool.Ranges) > most {
			more = ", …"
		}
		s = append(s, fmt.Sprintf("%s (%s, %s%s)", pool.Name, pool.Allocation, join(ranges), more))
	}
	return "pools are " + strings.Join(s, "; ")
}

func names(pools []*pool) string {
	var s []string
	for _, p := range pools {
		s = append(s, p.Name)
	}
	return "pool " + strings.Join(s, ", ")
}

func join[T any](list []T) string {
	var s []string
	for _, v := range list {
		s = append(s, fmt.Sprint(v))
	}
	return strings.Join(s, ", ")
}
