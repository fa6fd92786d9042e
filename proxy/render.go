package proxy

import (
	"net/netip"
	"slices"
	"strings"
)

// Chains that frontends go to when there is no backend.
const (
	chainRefuse = "refuse"
	chainIgnore = "ignore"
)

// A side is one of the two kinds of clients that a frontend has.
type side struct {
	prefix                 string // of its count chains
	svc, eps, slots, masqs setID
	sticky                 string // the chain that asks for the backend a client had
	sched                  setID  // and where it goes on
	fence                  string // the chain that asks for the source first
	fenced                 setID  // and where it goes on
	turn                   string // the chain that asks for the frontend's own chain
	turns                  setID  // which is here
}

// What the names of chains of either side end in.
const (
	sticky = "sticky"
	fence  = "fence"
	turn   = "turn"
)

// splitPrefix begins the name of a chain that sends internal clients elsewhere, and
// does for the others what the chain of external clients does.
const splitPrefix = "s"

var (
	external = side{
		prefix: "x", svc: setExtSvc, eps: setExtEps, slots: setExtSlots, masqs: setExtMasq, turn: "x" + turn, turns: setExtTurn,
		sticky: "x" + sticky, sched: setExtSched, fence: "x" + fence, fenced: setExtFenced,
	}
	internal = side{
		prefix: "i", svc: setIntSvc, eps: setIntEps, slots: setIntSlots, masqs: setIntMasq, turn: "i" + turn, turns: setIntTurn,
		sticky: "i" + sticky, sched: setIntSched, fence: "i" + fence, fenced: setIntFenced,
	}
)

// renderState is all elements of the table for s, sorted.
func renderState(s State) []element {
	var bySet [setCount][]element
	add := func(all []element) {
		for _, e := range all {
			bySet[e.set] = append(bySet[e.set], e)
		}
	}
	add(renderShared(s))
	for _, v := range s.VIPs {
		add(renderVIP(v, s.Node))
	}
	for i := range bySet {
		// In order already where slots do not count: VIPs come sorted.
		if !slices.IsSortedFunc(bySet[i], element.compare) {
			slices.SortFunc(bySet[i], element.compare)
		}
	}
	return slices.Concat(bySet[:]...)
}

// renderShared is the elements that belong to no VIP, sorted.
func renderShared(s State) []element {
	var all []element
	for _, p := range s.Owned {
		all = append(all, prefixElement(setOwned, p))
	}
	for _, p := range s.Clients.CIDRs {
		all = append(all, prefixElement(setClients, p))
	}
	prefix, bridge := s.Clients.InterfacePrefix, s.Clients.Bridge
	if prefix != "" {
		all = append(all, ifnameElement(prefix, true))
	}
	// Intervals must not overlap: a bridge that the prefix matches is in.
	if bridge != "" && (prefix == "" || !strings.HasPrefix(bridge, prefix)) {
		all = append(all, ifnameElement(bridge, false))
	}
	all = append(all, renderSNAT(s.SNAT)...)
	slices.SortFunc(all, element.compare)
	return all
}

// renderVIP is the elements of one address, sorted. All of their keys begin
// with that address, so no two VIPs share an element: what becomes of one
// never depends on another.
func renderVIP(v *VIP, node string) []element {
	f := family(v.Addr)
	all := make([]element, 0, 2+8*len(v.Frontends)) // as many as a port with two backends has
	all = append(all, element{set: setVIPs + f, key: string(encoding(nil).addr(v.Addr))})
	if v.affinity() {
		all = append(all, element{set: setSticky + f, key: string(encoding(nil).addr(v.Addr))})
	}
	if v.affinity() || v.masquerades(node) {
		all = append(all, element{set: setLate + f, key: string(encoding(nil).addr(v.Addr))})
	}
	for i := range v.Frontends {
		fe := &v.Frontends[i]
		all = renderAffinity(all, v.Addr, fe)
		all = renderTarget(all, v.Addr, fe, external, &fe.External, node)
		all = renderTarget(all, v.Addr, fe, internal, &fe.Internal, node)
		all = renderSources(all, v.Addr, fe)
		all = renderDraining(all, v.Addr, fe)
	}
	all = renderHairpin(all, v, node)
	slices.SortFunc(all, element.compare)
	return all
}

// masquerades says whether any backend does not see some of its clients.
func (v *VIP) masquerades(node string) bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool {
		return f.External.masquerades(node) || f.Internal.masquerades(node)
	})
}

func (t *Target) masquerades(node string) bool {
	return slices.ContainsFunc(t.Backends, func(b Backend) bool { return t.masked(b, node) })
}

// masked says whether a backend sees an address of the node in place of its client's.
func (t *Target) masked(b Backend, node string) bool { return t.Remote == Masquerade && b.Node != node }

// renderTarget appends what one kind of clients finds at one frontend.
func renderTarget(all []element, vip netip.Addr, fe *Frontend, s side, t *Target, node string) []element {
	f := family(vip)
	key := make(encoding, 0, 48).addr(vip).proto(fe.Protocol).port(fe.Port)
	svc := s.svc
	if fe.fenced(vip) {
		all = append(all, element{set: svc + f, key: string(key), data: s.fence})
		svc = s.fenced
	}
	split := s.prefix == external.prefix && !fe.alike()
	to := func(chain string) {
		if split {
			chain = splitOf(chain)
		}
		all = append(all, element{set: svc + f, key: string(key), data: chain})
	}
	if len(t.Backends) == 0 {
		to(t.Miss.chain())
		return all
	}
	if fe.Affinity != 0 {
		to(s.sticky)
		svc, split = s.sched, false
	}
	c := scheduling(vip, fe, s, t)
	if c.owner != "" {
		all = append(all, element{set: s.turns + f, key: string(key), data: c.name()})
		to(s.turn)
	} else {
		to(c.name())
	}
	for slot, b := range t.Backends {
		data := string(make(encoding, 0, 20).addrPort(b.Addr))
		all = append(all, element{set: s.eps + f, key: string(key.slot(slot)), data: data})
		if t.masked(b, node) {
			all = append(all, element{set: s.masqs + f, key: string(key) + data})
		}
	}
	if c.schedule.table && c.side == s.prefix {
		all = renderTable(all, s.slots+f, key, t.Backends)
	}
	return all
}

// alike says whether internal clients find what external ones do.
func (f *Frontend) alike() bool {
	x, i := &f.External, &f.Internal
	if len(x.Backends) == 0 && len(i.Backends) == 0 {
		return x.Miss == i.Miss
	}
	return sameBackends(f)
}

// splitOf is the chain that asks first whether the client is an internal one.
func splitOf(chain string) string { return splitPrefix + strings.TrimPrefix(chain, external.prefix) }

// renderSources appends the sources that may use a frontend, where not all may.
func renderSources(all []element, vip netip.Addr, fe *Frontend) []element {
	if !fe.fenced(vip) {
		return all
	}
	key := make(encoding, 0, 48).addr(vip).proto(fe.Protocol).port(fe.Port)
	for _, p := range fe.Sources {
		if family(p.Addr()) == family(vip) {
			first := string(key.addr(p.Addr())) // copied before key's array is used again
			all = append(all, element{set: setAllowed + family(vip), key: first, data: string(key.addr(lastAddr(p)))})
		}
	}
	return all
}

// renderDraining appends the backends that keep the flows that they have. No rule
// asks for them: they are there for the process that finds the table.
func renderDraining(all []element, vip netip.Addr, fe *Frontend) []element {
	key := make(encoding, 0, 48).addr(vip).proto(fe.Protocol).port(fe.Port)
	for _, b := range fe.Draining {
		all = append(all, element{set: setDrain + family(vip), key: string(key.addrPort(b))})
	}
	return all
}

// fenced says whether there are sources that may not use the frontend.
func (f *Frontend) fenced(vip netip.Addr) bool {
	everybody := func(p netip.Prefix) bool { return p.Bits() == 0 && family(p.Addr()) == family(vip) }
	return f.Sources != nil && !slices.ContainsFunc(f.Sources, everybody)
}

// renderTable appends the slots of a frontend's table.
func renderTable(all []element, set setID, frontend encoding, backends []Backend) []element {
	for slot, i := range maglev(backends) {
		data := string(make(encoding, 0, 20).addrPort(backends[i].Addr))
		all = append(all, element{set: set, key: string(frontend.slot(slot)), data: data})
	}
	return all
}

// sameBackends says whether internal clients find the same backends as external
// ones, so that they can use their table, which is large.
func sameBackends(fe *Frontend) bool {
	return slices.EqualFunc(fe.External.Backends, fe.Internal.Backends, func(a, b Backend) bool {
		return a.Addr == b.Addr && a.weight() == b.weight()
	})
}

// chain is where new flows go that find no backend.
func (m Miss) chain() string {
	if m == Drop {
		return chainIgnore
	}
	return chainRefuse
}

// scheduling is the chain that chooses a backend, of which there is at least one.
func scheduling(vip netip.Addr, fe *Frontend, s side, t *Target) countChain {
	schedule := fe.Scheduler.schedule(t.Backends)
	c := countChain{side: s.prefix, schedule: schedule, slots: schedule.slots(len(t.Backends))}
	switch {
	case schedule.table && sameBackends(fe):
		c.side = external.prefix
	case schedule.stateful && c.slots > 1:
		c.owner = ownerOf(vip, fe)
	}
	return c
}

// renderHairpin appends the pods that may meet themselves behind the VIP: pods that
// are on this node, or may be. A pod on another node comes by that node.
func renderHairpin(all []element, v *VIP, node string) []element {
	var pods []netip.Addr
	for i := range v.Frontends {
		for _, t := range []*Target{&v.Frontends[i].External, &v.Frontends[i].Internal} {
			for _, b := range t.Backends {
				if b.Node == node || b.Node == "" {
					pods = append(pods, b.Addr.Addr())
				}
			}
		}
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	for _, pod := range slices.Compact(pods) {
		key := make(encoding, 0, 48).addr(v.Addr).addr(pod).addr(pod)
		all = append(all, element{set: setHairpin + family(v.Addr), key: string(key)})
	}
	return all
}

// chainUses counts, for each made chain, the elements that go to it.
func chainUses(all []element) map[string]int {
	uses := make(map[string]int)
	countUses(uses, all, 1)
	return uses
}

// countUses adds by for every element that goes to a made chain.
func countUses(uses map[string]int, all []element, by int) {
	for _, e := range all {
		if s := &specs[e.set]; (s.verdicts() || s.numbers()) && isMade(e.data) {
			uses[e.data] += by
		}
	}
}

// isMade says whether name is that of a chain that is made before the first
// element goes to it, and deleted after the last did.
func isMade(name string) bool {
	_, mark := parseMarkChain(name)
	_, count := parseCountChain(name)
	_, learn := parseLearnChain(name)
	return mark || count || learn
}
