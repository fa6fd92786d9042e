package controller

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
)

// A todo is what there is to write, in this order: what Services that are gone
// leave behind makes room, then each Service gets what it shall have, then
// claims go that it needs no more.
type todo struct {
	gone     []release
	settle   []settlement
	leftover []release
}

// A settlement is what one Service shall have: first its claims, then its status.
type settlement struct {
	// spec is what was read of the Service. If the API server has it otherwise,
	// nothing of this holds.
	spec   *cluster.Spec
	secure []claim
	// disputed are addresses that the status says and that another Service has.
	// They are taken away only if the claim says so at the API server, too: the
	// snapshot may have an old one.
	disputed []netip.Addr
	addrs    []netip.Addr // in the order of the Service's families
	told     cluster.Told
}

// A claim is one that a Service needs before its status may say the address.
type claim struct {
	addr netip.Addr
	pool cluster.Origin
	// old is the claim as it was read, nil when there was none.
	old *cluster.Claim
	// holders are all Services that shall have the address, and those that may have
	// it beside them.
	holders []cluster.Name
}

// A release ends what Services that do not have an address, or shall not, hold
// of its claim.
type release struct {
	old  *cluster.Claim
	from []cluster.Holder // a part of the claim's; all when there are none left
	// kept are those for whom the claim is kept, besides those of from that asked
	// for it and are gone.
	kept []cluster.Name
	gone bool
	why  string
}

// keeps says whether the address is kept for a holder that it is released from.
func (r release) keeps(h cluster.Holder) bool { return r.gone && h.Reserve }

// plan says what to write, so that claims and status become what was decided.
// For a Service that is as it should be that is nothing.
func plan(s *ipam.Survey, assignments []cluster.Assignment, reasons []cluster.Reason) todo {
	p := planner{
		snap: s.Snap, assignments: assignments,
		addrs:   make(map[cluster.Name][]cluster.Assignment, len(s.Open)),
		reasons: make(map[cluster.Name][]cluster.Reason, len(s.Open)),
	}
	for _, spec := range s.Open {
		p.addrs[spec.Name] = nil
	}
	if len(s.Open) != 0 {
		for _, a := range assignments {
			if list, open := p.addrs[a.Service]; open {
				p.addrs[a.Service] = append(list, a)
			}
		}
	}
	for _, r := range reasons {
		p.reasons[r.Service] = append(p.reasons[r.Service], r)
	}
	var t todo
	for _, c := range s.Loose {
		p.release(&t, c)
	}
	for _, spec := range s.Open {
		if n, ok := p.settle(spec); ok {
			t.settle = append(t.settle, n)
		}
	}
	// Who waits longest is served first.
	slices.SortStableFunc(t.settle, func(a, b settlement) int { return cluster.CompareAge(a.spec.Created, b.spec.Created) })
	return t
}

type planner struct {
	snap        *cluster.Snapshot
	assignments []cluster.Assignment
	// addrs and reasons are those of the Services that are not settled.
	addrs   map[cluster.Name][]cluster.Assignment
	reasons map[cluster.Name][]cluster.Reason
}

// settled is the Rule by which there is nothing to write for a Service: it has what
// it shall have, and has been told so.
func settled(snap *cluster.Snapshot, s *cluster.Spec) bool {
	if !ipam.Settled(snap, s) || s.StatusProxied || !s.Told.Assigned || s.Told.Code != cluster.Assigned {
		return false
	}
	var text []byte
	for _, a := range s.Status {
		if snap.Claim(a).Holders[0].Reserve != s.Reserve {
			return false
		}
		text = appendHas(text, cluster.Assignment{Addr: a, Pool: cluster.PoolOf(snap.Pools, a)})
	}
	return string(text) == s.Told.Message
}

// holders are the Services that shall have an address.
func (p *planner) holders(a netip.Addr) (names []cluster.Name) {
	i, _ := slices.BinarySearchFunc(p.assignments, a, func(as cluster.Assignment, a netip.Addr) int { return as.Addr.Compare(a) })
	for ; i < len(p.assignments) && p.assignments[i].Addr == a; i++ {
		names = append(names, p.assignments[i].Service)
	}
	return names
}

// foreign says whether somebody else gives the Service its addresses.
func (p *planner) foreign(name cluster.Name) bool {
	return slices.ContainsFunc(p.reasons[name], func(r cluster.Reason) bool { return r.Code == cluster.NotOurs })
}

// shallHave says whether an address is assigned to the Service.
func (p *planner) shallHave(name cluster.Name, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(p.assignments, cluster.Assignment{Addr: a, Service: name}, cluster.Assignment.Compare)
	return found
}

// release plans the end of what c's holders hold without need.
func (p *planner) release(t *todo, c *cluster.Claim) {
	var gone, leftover []cluster.Holder
	for _, h := range c.Holders {
		if p.shallHave(h.Name, c.Addr) {
			continue
		}
		switch spec := p.snap.Service(h.Name); {
		case spec == nil:
			gone = append(gone, h)
		case p.foreign(h.Name) && slices.Contains(spec.Status, c.Addr):
			// It is left alone, with its address.
		default:
			leftover = append(leftover, h)
		}
	}
	kept := p.kept(c)
	// Two writes to one claim in one pass would meet as a conflict.
	switch {
	case len(gone) != 0:
		t.gone = append(t.gone, release{old: c, from: gone, kept: kept, gone: true, why: "is gone"})
	case len(c.Holders) == 0 && !c.Reserved && len(kept) == 0:
		t.gone = append(t.gone, release{old: c, why: "nobody holds it, and it is not reserved"})
	case len(leftover) != 0:
		t.leftover = append(t.leftover, release{old: c, from: leftover, kept: kept, why: "does not need it"})
	case len(kept) != len(c.ReservedFor):
		t.leftover = append(t.leftover, release{old: c, kept: kept, why: "it is kept for a Service that has another"})
	}
}

// kept are those for whom a claim is to be kept still: not for a Service that is
// back and does not take it. What a person keeps is kept.
func (p *planner) kept(c *cluster.Claim) []cluster.Name {
	if c.Reserved {
		return c.ReservedFor
	}
	return slices.DeleteFunc(slices.Clone(c.ReservedFor), func(name cluster.Name) bool {
		return p.snap.Service(name) != nil && !p.foreign(name) && !p.shallHave(name, c.Addr)
	})
}

// settle plans what the Service shall have. ok is false when it has it, when it
// is not ours to say, and when it has to wait.
func (p *planner) settle(spec *cluster.Spec) (n settlement, ok bool) {
	if p.foreign(spec.Name) {
		return settlement{}, false
	}
	n = settlement{spec: spec, told: p.tell(spec)}
	for _, f := range spec.IPFamilies {
		for _, a := range p.addrs[spec.Name] {
			if cluster.FamilyOf(a.Addr) == f {
				n.addrs = append(n.addrs, a.Addr)
			}
		}
	}
	for _, a := range p.addrs[spec.Name] {
		c := claim{a.Addr, p.snap.OriginOf(a), p.snap.Claim(a.Addr), p.holders(a.Addr)}
		c.holders = append(c.holders, p.sharers(spec, c.old)...)
		switch {
		case c.taken():
			return settlement{}, false
		case !holds(c.old, spec.Name) || !slices.Contains(spec.Status, a.Addr) || c.unkept(spec):
			n.secure = append(n.secure, c)
		}
	}
	for _, a := range spec.Status {
		// A holder of the claim leaves the address by its own will.
		if !slices.Contains(n.addrs, a) && !holds(p.snap.Claim(a), spec.Name) && p.others(a) {
			n.disputed = append(n.disputed, a)
		}
	}
	return n, len(n.secure) != 0 || n.writesStatus()
}

// others says whether another Service has the address or its claim, of which the
// one that asks is no holder.
func (p *planner) others(a netip.Addr) bool {
	return len(p.holders(a)) != 0 || p.snap.Claim(a) != nil
}

// sharers are the holders of a claim with which a Service shares. One that is
// about to leave is not in its way: two that change places would wait for ever.
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

// tell is what the Service's condition shall say.
func (p *planner) tell(spec *cluster.Spec) cluster.Told {
	told := cluster.Told{Assigned: len(p.addrs[spec.Name]) != 0, Code: cluster.Assigned}
	var text []byte
	for _, a := range p.addrs[spec.Name] {
		text = appendHas(text, a)
	}
	for _, r := range p.reasons[spec.Name] {
		if told.Code == cluster.Assigned {
			told.Code = r.Code
		}
		text = append(separate(text), r.Message...)
	}
	if len(text) == 0 {
		// Every Service without an address has a reason; that it wants none of
		// either family cannot be.
		told.Code, text = cluster.NoPool, []byte("has no address")
	}
	told.Message = cut(string(text))
	return told
}

// appendHas adds to a message that the Service has an address.
func appendHas(text []byte, a cluster.Assignment) []byte {
	text = a.Addr.AppendTo(append(separate(text), "has "...))
	if a.Pool != "" {
		text = append(append(text, " of pool "...), a.Pool...)
	}
	return text
}

func separate(text []byte) []byte {
	if len(text) == 0 {
		return text
	}
	return append(text, "; "...)
}

// maxMessage is how long a message may be, in bytes. An Event's note has 1 kB.
const maxMessage = 1000

func cut(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	const rest = "…"
	return strings.ToValidUTF8(s[:maxMessage-len(rest)], "") + rest
}

// writesStatus says whether the status differs from what it shall be.
func (n settlement) writesStatus() bool { return n.writesAddrs() || n.told != n.spec.Told }

// writesAddrs says whether the addresses in it do, or how they are served.
func (n settlement) writesAddrs() bool {
	return n.spec.StatusProxied || len(n.addrs) != len(n.spec.Status) ||
		slices.ContainsFunc(n.addrs, func(a netip.Addr) bool { return !slices.Contains(n.spec.Status, a) })
}

// holds says whether name is a holder of c, which may be nil.
func holds(c *cluster.Claim, name cluster.Name) bool {
	return c != nil && slices.ContainsFunc(c.Holders, func(h cluster.Holder) bool { return h.Name == name })
}

// unkept says whether the claim is to be kept for the Service, or not any more, and
// does not say so.
func (c claim) unkept(s *cluster.Spec) bool {
	return slices.ContainsFunc(c.old.Holders, func(h cluster.Holder) bool { return h.Name == s.Name && h.Reserve != s.Reserve }) ||
		!c.old.Reserved && slices.Contains(c.old.ReservedFor, s.Name)
}

// taken says whether the claim has a holder that shall not have the address.
func (c claim) taken() bool {
	return c.old != nil && slices.ContainsFunc(c.old.Holders, func(h cluster.Holder) bool { return !slices.Contains(c.holders, h.Name) })
}

// The plan as text: a line for each write.

func (t todo) String() string {
	var b strings.Builder
	for _, r := range t.gone {
		b.WriteString(r.String())
	}
	for _, n := range t.settle {
		b.WriteString(n.String())
	}
	for _, r := range t.leftover {
		b.WriteString(r.String())
	}
	return b.String()
}

func (r release) String() string {
	var b strings.Builder
	kept := r.kept
	for _, h := range r.from {
		fmt.Fprintf(&b, "release %s: %s %s\n", r.old.Addr, h.Name, r.why)
		if r.keeps(h) {
			kept = keep(kept, h.Name)
		}
	}
	switch keeps := len(r.old.Holders) > len(r.from); {
	case len(kept) != 0:
		fmt.Fprintf(&b, "keep claim %s for %s\n", r.old.Addr, strings.Trim(fmt.Sprint(kept), "[]"))
	case len(r.from) == 0 && len(r.old.Holders) != 0:
		fmt.Fprintf(&b, "keep claim %s for nobody any more: %s\n", r.old.Addr, r.why)
	case len(r.from) == 0:
		fmt.Fprintf(&b, "delete claim %s: %s\n", r.old.Addr, r.why)
	case !keeps && r.old.Reserved:
		fmt.Fprintf(&b, "keep claim %s: it is reserved\n", r.old.Addr)
	case !keeps:
		fmt.Fprintf(&b, "delete claim %s\n", r.old.Addr)
	}
	return b.String()
}

func (n settlement) String() string {
	var b strings.Builder
	for _, a := range n.disputed {
		fmt.Fprintf(&b, "unless claim %s names %s:\n", a, n.spec.Name)
	}
	for _, c := range n.secure {
		switch {
		case c.old == nil:
			fmt.Fprintf(&b, "create claim %s of pool %s for %s\n", c.addr, cmp.Or(c.pool.Pool, "-"), n.spec.Name)
		default:
			fmt.Fprintf(&b, "bind claim %s to %s\n", c.addr, n.spec.Name)
		}
	}
	if n.writesAddrs() {
		fmt.Fprintf(&b, "status of %s: %s\n", n.spec.Name, cmp.Or(strings.Trim(fmt.Sprint(n.addrs), "[]"), "-"))
	}
	if n.told != n.spec.Told {
		fmt.Fprintf(&b, "condition of %s: %s\n", n.spec.Name, verdict(n.told))
	}
	return b.String()
}

func verdict(t cluster.Told) string {
	return fmt.Sprintf("%t %s: %s", t.Assigned, t.Code, t.Message)
}
