package state

import (
	"net/netip"
	"slices"
	"strings"
)

// Chains for frontends without a backend.
const (
	chainRefuse = "refuse"
	chainIgnore = "ignore"
)

// A Side is one of the two kinds of clients that a frontend has.
type Side struct {
	Prefix                 string // of its count chains
	Svc, Eps, Slots, masqs SetID
	Sticky                 string // the chain that looks up the client's previous backend
	Sched                  SetID  // the map of the chains after that
	SourceCheck            string // the chain that checks the source first
	AfterSourceCheck       SetID  // the map of the chains after that
	RoundRobin             string // the chain that looks up the frontend's own chain
	OwnChains              SetID  // in this map
	Table, Back            SetID  // a frontend's table of clients' slots, and its backends by number
}

// Suffixes of the names of chains of both sides.
const (
	sticky       = "sticky"
	sourceRanges = "sourceranges"
	roundRobin   = "roundrobin"
)

// SplitPrefix begins the names of chains that send internal clients to their own chains, and
// otherwise do the same as the chain of external clients.
const SplitPrefix = "s"

var (
	External = Side{
		Prefix: "x", Svc: SetExtSvc, Eps: SetExtEps, Slots: setExtSlots, masqs: setExtMasq,
		RoundRobin: "x" + roundRobin, OwnChains: SetExtRoundRobin, Sticky: "x" + sticky, Sched: SetExtSched,
		SourceCheck: "x" + sourceRanges, AfterSourceCheck: SetExtInRange, Table: setExtTable, Back: setExtBack,
	}
	Internal = Side{
		Prefix: "i", Svc: SetIntSvc, Eps: SetIntEps, Slots: setIntSlots, masqs: setIntMasq,
		RoundRobin: "i" + roundRobin, OwnChains: SetIntRoundRobin, Sticky: "i" + sticky, Sched: SetIntSched,
		SourceCheck: "i" + sourceRanges, AfterSourceCheck: SetIntInRange, Table: setIntTable, Back: setIntBack,
	}
)

func (f *Frontend) Target(s Side) *Target {
	if s.Prefix == External.Prefix {
		return &f.External
	}
	return &f.Internal
}

// RenderState returns all elements of the table for s, sorted.
func RenderState(s State) []Element {
	var bySet [SetCount][]Element
	add := func(all []Element) {
		for _, e := range all {
			bySet[e.Set] = append(bySet[e.Set], e)
		}
	}
	add(renderShared(s))
	for v := range s.VIPs.All() {
		add(renderVIP(v, s.Node))
	}
	add(RepliesOf(s.VIPs).Elements())
	for i := range bySet {
		// Without slots the elements are sorted already, because the VIPs are.
		if !slices.IsSortedFunc(bySet[i], Element.Compare) {
			slices.SortFunc(bySet[i], Element.Compare)
		}
	}
	return slices.Concat(bySet[:]...)
}

// renderShared returns the elements that belong to no VIP, sorted.
func renderShared(s State) []Element {
	var all []Element
	for _, p := range s.Owned {
		all = append(all, prefixElement(SetOwned, p))
	}
	for _, p := range s.Clients.CIDRs {
		all = append(all, prefixElement(SetClients, p))
	}
	prefix, bridge := s.Clients.InterfacePrefix, s.Clients.Bridge
	if prefix != "" {
		all = append(all, ifnameElement(prefix, true))
	}
	// Intervals must not overlap: the prefix may already include the bridge.
	if bridge != "" && (prefix == "" || !strings.HasPrefix(bridge, prefix)) {
		all = append(all, ifnameElement(bridge, false))
	}
	all = append(all, renderSNAT(s.SNAT)...)
	slices.SortFunc(all, Element.Compare)
	return all
}

// renderVIP returns the elements of one address, sorted. All their keys begin with that address, so
// VIPs share none of them and never affect each other. [Replies] are the exception.
func renderVIP(v *VIP, node string) []Element {
	f := Family(v.Addr)
	all := make([]Element, 0, 2+8*len(v.Frontends)) // enough for a port with two backends
	all = append(all, Element{Set: SetVIPs + f, Key: string(Encoding(nil).Addr(v.Addr))})
	if v.affinity() || v.masquerades(node) {
		all = append(all, Element{Set: setPostrouting + f, Key: string(Encoding(nil).Addr(v.Addr))})
	}
	tables := make(clientTables)
	for i := range v.Frontends {
		fe := &v.Frontends[i]
		all = renderTarget(all, v.Addr, fe, External, &fe.External, node)
		all = renderTarget(all, v.Addr, fe, Internal, &fe.Internal, node)
		all = tables.renderFrontend(all, v.Addr, fe)
		all = renderSources(all, v.Addr, fe)
		all = renderDraining(all, v.Addr, fe)
	}
	all = tables.render(all, v.Addr)
	all = renderHairpin(all, v, node)
	slices.SortFunc(all, Element.Compare)
	return all
}

// renderTarget appends the elements for one kind of clients of a frontend.
func renderTarget(all []Element, vip netip.Addr, fe *Frontend, s Side, t *Target, node string) []Element {
	f := Family(vip)
	key := make(Encoding, 0, 48).Addr(vip).Proto(fe.Protocol).Port(fe.Port)
	svc := s.Svc
	if fe.SourceRestricted(vip) {
		all = append(all, Element{Set: svc + f, Key: string(key), Data: s.SourceCheck})
		svc = s.AfterSourceCheck
	}
	split := s.Prefix == External.Prefix && !fe.alike()
	to := func(chain string) {
		if split {
			chain = splitOf(chain)
		}
		all = append(all, Element{Set: svc + f, Key: string(key), Data: chain})
	}
	if len(t.Backends) == 0 {
		to(t.Miss.chain())
		return all
	}
	if fe.Affinity != 0 {
		to(s.Sticky)
		svc, split = s.Sched, false
	}
	c := scheduling(vip, fe, s, t)
	if c.owner != "" {
		all = append(all, Element{Set: s.OwnChains + f, Key: string(key), Data: c.Name()})
		to(s.RoundRobin)
	} else {
		to(c.Name())
	}
	for slot, b := range t.Backends {
		data := string(make(Encoding, 0, 20).AddrPort(b.Addr))
		all = append(all, Element{Set: s.Eps + f, Key: string(key.Slot(slot)), Data: data})
		if t.Masks(b, node) {
			all = append(all, Element{Set: s.masqs + f, Key: string(key) + data})
		}
	}
	if c.Schedule.Table && c.Side == s.Prefix && fe.Affinity == 0 {
		all = renderTable(all, s.Slots+f, key, t.Backends)
	}
	return all
}

// alike reports whether internal clients are treated like external ones.
func (f *Frontend) alike() bool {
	x, i := &f.External, &f.Internal
	if len(x.Backends) == 0 && len(i.Backends) == 0 {
		return x.Miss == i.Miss
	}
	return sameBackends(f)
}

// splitOf returns the chain that first checks whether the client is internal.
func splitOf(chain string) string { return SplitPrefix + strings.TrimPrefix(chain, External.Prefix) }

// renderDraining appends the draining backends. No rule uses them: they are for a later process
// that adopts the table.
func renderDraining(all []Element, vip netip.Addr, fe *Frontend) []Element {
	key := make(Encoding, 0, 48).Addr(vip).Proto(fe.Protocol).Port(fe.Port)
	for _, b := range fe.Draining {
		all = append(all, Element{Set: SetDrain + Family(vip), Key: string(key.AddrPort(b))})
	}
	return all
}

// renderTable appends the slots of a frontend's table.
func renderTable(all []Element, set SetID, frontend Encoding, backends []Backend) []Element {
	for slot, i := range MaglevSlots(backends) {
		data := string(make(Encoding, 0, 20).AddrPort(backends[i].Addr))
		all = append(all, Element{Set: set, Key: string(frontend.Slot(slot)), Data: data})
	}
	return all
}

// sameBackends reports whether internal clients have the same backends as external ones, so that
// they can share the table, which is large.
func sameBackends(fe *Frontend) bool {
	return slices.EqualFunc(fe.External.Backends, fe.Internal.Backends, func(a, b Backend) bool {
		return a.Addr == b.Addr && a.EffectiveWeight() == b.EffectiveWeight()
	})
}

// chain returns the chain for new flows that find no backend.
func (m Miss) chain() string {
	if m == Drop {
		return chainIgnore
	}
	return chainRefuse
}

// scheduling returns the chain that chooses a backend. At least one backend is needed.
func scheduling(vip netip.Addr, fe *Frontend, s Side, t *Target) CountChain {
	schedule := fe.schedule(t)
	c := CountChain{Side: s.Prefix, Schedule: schedule, Slots: schedule.slots(len(t.Backends))}
	switch {
	case schedule.Table && fe.Affinity == 0 && sameBackends(fe):
		c.Side = External.Prefix
	case schedule.stateful && c.Slots > 1:
		c.owner = ownerOf(vip, fe)
	}
	return c
}

// ChainUses counts the elements that go to each generated chain.
func ChainUses(all []Element) map[string]int {
	uses := make(map[string]int)
	CountUses(uses, all, 1)
	return uses
}

// CountUses adds by for every element that goes to a generated chain.
func CountUses(uses map[string]int, all []Element, by int) {
	for _, e := range all {
		if s := &Specs[e.Set]; (s.Verdicts() || s.Numbers()) && IsGenerated(e.Data) {
			uses[e.Data] += by
		}
	}
}

// IsGenerated reports whether a chain of this name is created before the first element that goes to
// it, and deleted after the last.
func IsGenerated(name string) bool {
	_, mark := ParseMarkChain(name)
	_, count := ParseCountChain(name)
	_, learn := ParseLearnChain(name)
	return mark || count || learn
}

// renderSources appends the sources that may use a frontend, if it is restricted.
func renderSources(all []Element, vip netip.Addr, fe *Frontend) []Element {
	if !fe.SourceRestricted(vip) {
		return all
	}
	key := make(Encoding, 0, 48).Addr(vip).Proto(fe.Protocol).Port(fe.Port)
	for _, p := range fe.Sources {
		if Family(p.Addr()) == Family(vip) {
			first := string(key.Addr(p.Addr())) // copied before key's array is used again
			all = append(all, Element{Set: SetAllowed + Family(vip), Key: first, Data: string(key.Addr(lastAddr(p)))})
		}
	}
	return all
}

// SourceRestricted reports whether some sources may not use the frontend.
func (f *Frontend) SourceRestricted(vip netip.Addr) bool {
	anySource := func(p netip.Prefix) bool { return p.Bits() == 0 && Family(p.Addr()) == Family(vip) }
	return f.Sources != nil && !slices.ContainsFunc(f.Sources, anySource)
}

// renderHairpin appends the pods that may be their own backend behind the VIP: pods that are, or
// may be, on this node. Packets of a pod on another node arrive through that node.
func renderHairpin(all []Element, v *VIP, node string) []Element {
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
		key := make(Encoding, 0, 48).Addr(v.Addr).Addr(pod).Addr(pod)
		all = append(all, Element{Set: setHairpin + Family(v.Addr), Key: string(key)})
	}
	return all
}
