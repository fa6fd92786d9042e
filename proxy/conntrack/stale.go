package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Purge says, by VIP, which conntrack entries a change has made wrong. NAT
// is decided once for each entry, so without this they would outlive the rules
// that they were born under for as long as packets come.
type Purge map[netip.Addr]*vipPurge

type vipPurge struct {
	// Born: the VIP is new. Entries to it that were not rewritten go, of
	// whatever protocol: they send the client's packets past the rules, and in
	// a loop between here and the router.
	born bool
	// Left: the address is no longer a VIP. If it is still one of Owned, entries that remain in
	// conntrack would misdirect the clients of the next Service that gets it.
	left bool
	// ports are frontends that are new at a VIP that is not.
	ports map[state.Port]bool
	// restricted are frontends that fewer sources may use than before. Their flows of
	// others go.
	restricted map[state.Port]bool
	// filled are frontends that have a backend again: splitDraining takes them. Flows of protocols that
	// have no end of their own leave what drains, where they had stayed for
	// want of a better place.
	filled map[state.Port]bool
	// gone are backends that no longer get new flows. Entries of protocols that
	// have no end of their own would keep sending there, and so would those of TCP
	// that wait for a first answer: each SYN of that client's port, for 120 s after
	// the last one. Others of TCP go when no frontend has the backend.
	gone map[goneBackend]state.Sides
	// found are frontends of a table that was found: the process that wrote it may have
	// ended between a change and its sweep. Their flows to unknown backends go.
	found map[state.Port]bool
}

type goneBackend struct {
	state.Port
	Backend netip.AddrPort
}

func (p Purge) at(vip netip.Addr) *vipPurge {
	v := p[vip]
	if v == nil {
		v = &vipPurge{ports: make(map[state.Port]bool), restricted: make(map[state.Port]bool), filled: make(map[state.Port]bool), gone: make(map[goneBackend]state.Sides), found: make(map[state.Port]bool)}
		p[vip] = v
	}
	return v
}

func (v *vipPurge) empty() bool {
	return !v.born && !v.left && len(v.ports) == 0 && len(v.restricted) == 0 && len(v.filled) == 0 && len(v.gone) == 0 && len(v.found) == 0
}

// PlanPurge derives from a change of elements what it makes wrong.
func PlanPurge(c state.Change) Purge {
	p := make(Purge)
	before := make(map[state.Element]bool) // the keys that existed
	for _, e := range c.Del {
		before[state.Element{Set: e.Set, Key: e.Key}] = true
		p.removed(e)
		p.narrowed(e, state.Base(e.Set) == state.SetAllowed)
	}
	for _, e := range c.Add {
		p.kept(e)
		p.narrowed(e, e.Data == state.External.SourceCheck || e.Data == state.Internal.SourceCheck)
		if !before[state.Element{Set: e.Set, Key: e.Key}] {
			p.appeared(e)
		}
	}
	for vip, v := range p {
		for b, s := range v.gone {
			if s == 0 {
				delete(v.gone, b)
			}
		}
		if v.empty() {
			delete(p, vip)
		}
	}
	return p
}

// AddFound notes the frontends of a table that was found.
func (p Purge) AddFound(had []state.Element) {
	for _, e := range had {
		if s := state.Base(e.Set); s == state.SetExtSvc || s == state.SetIntSvc {
			vip, proto, n := state.FrontendOf(e.Set, e.Key)
			p.at(vip).found[state.Port{Proto: proto, Port: n}] = true
		}
	}
}

// narrowed notes, if it is so, that fewer sources may use the frontend of e.
func (p Purge) narrowed(e state.Element, is bool) {
	if is {
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		p.at(vip).restricted[state.Port{Proto: proto, Port: n}] = true
	}
}

// appeared notes a new VIP or frontend.
func (p Purge) appeared(e state.Element) {
	switch state.Base(e.Set) {
	case state.SetVIPs:
		vip, _ := netip.AddrFromSlice([]byte(e.Key))
		p.at(vip).born = true
	case state.SetExtSvc, state.SetIntSvc:
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		p.at(vip).ports[state.Port{Proto: proto, Port: n}] = true
	case state.SetExtEps, state.SetIntEps:
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		if proto != state.TCP && strings.HasSuffix(e.Key, firstSlot) {
			p.at(vip).filled[state.Port{Proto: proto, Port: n}] = true
		}
	default: // the others follow from these
	}
}

// firstSlot is the end of the key of a frontend's first slot.
var firstSlot = string(state.Encoding(nil).Slot(0))

// removed records that a backend has left a slot or stopped draining, and kept
// that it is in another slot.
func (p Purge) removed(e state.Element) {
	if state.Base(e.Set) == state.SetVIPs {
		vip, _ := netip.AddrFromSlice([]byte(e.Key))
		p.at(vip).left = true
	}
	if vip, b, s := slotOf(e); s != 0 {
		p.at(vip).gone[b] |= s
	}
}

func (p Purge) kept(e state.Element) {
	if state.Base(e.Set) == state.SetDrain {
		return // it gets no new flows, and what it keeps is for wrong to say
	}
	vip, b, s := slotOf(e)
	// Most additions replace nothing. s is 0 for what is no slot.
	if v := p[vip]; v != nil && v.gone[b]&s != 0 {
		v.gone[b] &^= s
	}
}

// slotOf is the backend in a slot, or one that drains, the VIP it is for, and for
// which clients; no sides if e is neither.
func slotOf(e state.Element) (vip netip.Addr, b goneBackend, s state.Sides) {
	switch state.Base(e.Set) {
	case state.SetExtEps:
		s = state.SideExternal
	case state.SetIntEps:
		s = state.SideInternal
	case state.SetDrain:
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		backend := e.Key[state.FieldsSize(state.Specs[state.SetExtSvc+state.Family(vip)].Key):]
		return vip, goneBackend{state.Port{Proto: proto, Port: n}, state.BackendOf(backend)}, state.SideExternal | state.SideInternal
	default:
		return vip, b, 0
	}
	vip, proto, n := state.FrontendOf(e.Set, e.Key)
	return vip, goneBackend{state.Port{Proto: proto, Port: n}, state.BackendOf(e.Data)}, s
}

// splitPatient takes out of p and returns what can wait: removed backends of TCP,
// and what is new in prefixes that were swept. There only processes of the host can
// have made entries before, whose packets the rules let pass.
func (p Purge) splitPatient(swept []netip.Prefix) Purge {
	patient := make(Purge)
	for vip, v := range p {
		for b, s := range v.gone {
			if b.Proto == state.TCP {
				patient.at(vip).gone[b] = s
				delete(v.gone, b)
			}
		}
		if (v.born || len(v.ports) > 0) && state.ContainsAddr(swept, vip) {
			to := patient.at(vip)
			to.born, v.born = v.born, false
			to.ports, v.ports = v.ports, to.ports
		}
		if v.left {
			patient.at(vip).left, v.left = true, false
		}
		if v.empty() {
			delete(p, vip)
		}
	}
	return patient
}

// merge adds what o asks for.
func (p Purge) merge(o Purge) {
	for vip, from := range o {
		to := p.at(vip)
		to.born, to.left = to.born || from.born, to.left || from.left
		maps.Copy(to.ports, from.ports)
		maps.Copy(to.restricted, from.restricted)
		maps.Copy(to.found, from.found)
		for k, s := range from.gone {
			to.gone[k] |= s
		}
	}
}

// wrong says whether the flow must go, now that s is what is wanted.
func (p Purge) wrong(f *Flow, s *state.State) bool {
	v := p[f.VIP]
	if v == nil {
		return false
	}
	if !f.DNAT {
		return v.born || v.ports[f.Port]
	}
	if v.left && abandons(s, f.VIP) {
		return true
	}
	if v.restricted[f.Port] && forbids(s, f) {
		return true
	}
	if v.found[f.Port] && endsFlow(s, f) {
		return true
	}
	gone := v.gone[goneBackend{f.Port, f.Backend}]
	switch {
	case gone == 0:
		return false
	case f.Port.Proto == state.TCP && f.replied:
		return !f.yields && endsFlow(s, f) // nothing goes by what yields, and changeAll says what may begin in its place
	case takes(s, f), f.Port.Proto != state.TCP && leavesNoBackend(s, f):
		return false
	}
	// Whether other clients are this node's pods, an entry does not tell.
	if gone == state.SideExternal && state.ContainsAddr(s.Clients.CIDRs, f.Client) {
		return false
	}
	return true
}

// takes says whether new flows go where this one does: the backend may have come
// back before its flows were looked at, or be one for other clients all along.
func takes(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && slices.ContainsFunc(targetsOf(s, fe, f), func(t *state.Target) bool { return t.Has(f.Backend) })
}

// endsFlow says whether a connection must not go on. Where the frontend is gone, it
// may.
func endsFlow(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && !fe.Has(f.Backend)
}

// abandons says whether the first packets to an address are refused.
func abandons(s *state.State, a netip.Addr) bool {
	return s.Vip(a) == nil && state.ContainsAddr(s.Owned, a)
}

// spareOwn takes addresses of the node itself for what they are, whatever a careless
// pool contains. A node may have thousands, so it asks only if one has left.
func (p Purge) spareOwn() error {
	left := func(v *vipPurge) bool { return v.left }
	if !slices.ContainsFunc(slices.Collect(maps.Values(p)), left) {
		return nil
	}
	own, err := OwnAddrs()
	for _, a := range own {
		if v := p[a]; v != nil {
			v.left = false
		}
	}
	return err
}

// backendDrains says whether a flow's backend drains.
func backendDrains(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && fe.Drains(f.Backend)
}

// leavesNoBackend says whether a flow that left a backend which drains would find none.
func leavesNoBackend(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return backendDrains(s, f) && slices.ContainsFunc(targetsOf(s, fe, f), (*state.Target).Empty)
}

// targetsOf are where new flows of that client may go. An entry does not tell by which
// interface its client came.
func targetsOf(s *state.State, fe *state.Frontend, f *Flow) []*state.Target {
	switch {
	case state.ContainsAddr(s.Clients.CIDRs, f.Client):
		return []*state.Target{&fe.Internal}
	case s.Clients.InterfacePrefix != "" || s.Clients.Bridge != "":
		return []*state.Target{&fe.External, &fe.Internal}
	default:
		return []*state.Target{&fe.External}
	}
}

// asHost is s in the eyes of a process of the host that has an address: it is a
// client on this node, whatever Clients says.
func asHost(s state.State, client netip.Addr) *state.State {
	s.Clients = state.LocalClients{CIDRs: []netip.Prefix{netip.PrefixFrom(client, client.BitLen())}}
	return &s
}

// forbids says whether the flow is of one of our frontends and backends, and of a
// source that may not use them.
func forbids(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && fe.Sources != nil && fe.Has(f.Backend) && !state.ContainsAddr(fe.Sources, f.Client)
}
