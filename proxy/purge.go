package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// A purge says, by VIP, which conntrack entries a change has made wrong. NAT
// is decided once for each entry, so without this they would outlive the rules
// that they were born under for as long as packets come.
type purge map[netip.Addr]*vipPurge

type vipPurge struct {
	// born: the VIP is new. Entries to it that were not rewritten go, of
	// whatever protocol: they send the client's packets past the rules, and in
	// a loop between here and the router.
	born bool
	// left: the address is no longer a VIP. If it is still one of Owned, entries that remain in
	// conntrack would misdirect the clients of the next Service that gets it.
	left bool
	// ports are frontends that are new at a VIP that is not.
	ports map[port]bool
	// fenced are frontends that fewer sources may use than before. Their flows of
	// others go.
	fenced map[port]bool
	// filled are frontends that have a backend again. Flows of protocols that
	// have no end of their own leave what drains, where they had stayed for
	// want of a better place.
	filled map[port]bool
	// gone are backends that no longer get new flows. Entries of protocols that
	// have no end of their own would keep sending there, and so would those of TCP
	// that wait for a first answer: each SYN of that client's port, for 120 s after
	// the last one. Others of TCP go when no frontend has the backend.
	gone map[goneBackend]sides
	// orphaned are frontends of a table that was found: the process that wrote it may have
	// ended between a change and its sweep. Their flows to unknown backends go.
	orphaned map[port]bool
}

type goneBackend struct {
	port
	backend netip.AddrPort
}

func (p purge) at(vip netip.Addr) *vipPurge {
	v := p[vip]
	if v == nil {
		v = &vipPurge{ports: make(map[port]bool), fenced: make(map[port]bool), filled: make(map[port]bool), gone: make(map[goneBackend]sides), orphaned: make(map[port]bool)}
		p[vip] = v
	}
	return v
}

func (v *vipPurge) empty() bool {
	return !v.born && !v.left && len(v.ports) == 0 && len(v.fenced) == 0 && len(v.filled) == 0 && len(v.gone) == 0 && len(v.orphaned) == 0
}

// planPurge derives from a change of elements what it makes wrong.
func planPurge(c change) purge {
	p := make(purge)
	before := make(map[element]bool) // the keys that existed
	for _, e := range c.del {
		before[element{set: e.set, key: e.key}] = true
		p.removed(e)
		p.narrowed(e, base(e.set) == setAllowed)
	}
	for _, e := range c.add {
		p.kept(e)
		p.narrowed(e, e.data == external.fence || e.data == internal.fence)
		if !before[element{set: e.set, key: e.key}] {
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

// orphan notes the frontends of a table that was found.
func (p purge) orphan(had []element) {
	for _, e := range had {
		if s := base(e.set); s == setExtSvc || s == setIntSvc {
			vip, proto, n := frontendOf(e.set, e.key)
			p.at(vip).orphaned[port{proto, n}] = true
		}
	}
}

// narrowed notes, if it is so, that fewer sources may use the frontend of e.
func (p purge) narrowed(e element, is bool) {
	if is {
		vip, proto, n := frontendOf(e.set, e.key)
		p.at(vip).fenced[port{proto, n}] = true
	}
}

// appeared notes a new VIP or frontend.
func (p purge) appeared(e element) {
	switch base(e.set) {
	case setVIPs:
		vip, _ := netip.AddrFromSlice([]byte(e.key))
		p.at(vip).born = true
	case setExtSvc, setIntSvc:
		vip, proto, n := frontendOf(e.set, e.key)
		p.at(vip).ports[port{proto, n}] = true
	case setExtEps, setIntEps:
		vip, proto, n := frontendOf(e.set, e.key)
		if proto != TCP && strings.HasSuffix(e.key, firstSlot) {
			p.at(vip).filled[port{proto, n}] = true
		}
	default: // the others follow from these
	}
}

// firstSlot is the end of the key of a frontend's first slot.
var firstSlot = string(encoding(nil).slot(0))

// removed records that a backend has left a slot or stopped draining, and kept
// that it is in another slot.
func (p purge) removed(e element) {
	if base(e.set) == setVIPs {
		vip, _ := netip.AddrFromSlice([]byte(e.key))
		p.at(vip).left = true
	}
	if vip, b, s := slotOf(e); s != 0 {
		p.at(vip).gone[b] |= s
	}
}

func (p purge) kept(e element) {
	if base(e.set) == setDrain {
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
func slotOf(e element) (vip netip.Addr, b goneBackend, s sides) {
	switch base(e.set) {
	case setExtEps:
		s = sideExternal
	case setIntEps:
		s = sideInternal
	case setDrain:
		vip, proto, n := frontendOf(e.set, e.key)
		backend := e.key[fieldsSize(specs[setExtSvc+family(vip)].key):]
		return vip, goneBackend{port{proto, n}, backendOf(backend)}, sideExternal | sideInternal
	default:
		return vip, b, 0
	}
	vip, proto, n := frontendOf(e.set, e.key)
	return vip, goneBackend{port{proto, n}, backendOf(e.data)}, s
}

// splitPatient takes out of p and returns what can wait: removed backends of TCP,
// and what is new in prefixes that were swept. There only processes of the host can
// have made entries before, whose packets the rules let pass.
func (p purge) splitPatient(swept []netip.Prefix) purge {
	patient := make(purge)
	for vip, v := range p {
		for b, s := range v.gone {
			if b.proto == TCP {
				patient.at(vip).gone[b] = s
				delete(v.gone, b)
			}
		}
		if (v.born || len(v.ports) > 0) && containsAddr(swept, vip) {
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
func (p purge) merge(o purge) {
	for vip, from := range o {
		to := p.at(vip)
		to.born, to.left = to.born || from.born, to.left || from.left
		maps.Copy(to.ports, from.ports)
		maps.Copy(to.fenced, from.fenced)
		maps.Copy(to.filled, from.filled)
		maps.Copy(to.orphaned, from.orphaned)
		for k, s := range from.gone {
			to.gone[k] |= s
		}
	}
}

// wrong says whether the flow must go, now that s is what is wanted.
func (p purge) wrong(f *flow, s *State) bool {
	v := p[f.vip]
	if v == nil {
		return false
	}
	if !f.dnat {
		return v.born || v.ports[f.port]
	}
	if v.left && abandons(s, f.vip) {
		return true
	}
	if v.fenced[f.port] && forbids(s, f) || v.filled[f.port] && outlives(s, f) {
		return true
	}
	if v.orphaned[f.port] && endsFlow(s, f) {
		return true
	}
	gone := v.gone[goneBackend{f.port, f.backend}]
	switch {
	case gone == 0:
		return false
	case f.port.proto == TCP && f.replied:
		return !f.yields && endsFlow(s, f) // nothing goes by what yields, and deleteAll says what may begin in its place
	case takes(s, f), f.port.proto != TCP && strands(s, f):
		return false
	}
	// Whether other clients are this node's pods, an entry does not tell.
	if gone == sideExternal && containsAddr(s.Clients.CIDRs, f.client) {
		return false
	}
	return true
}

// takes says whether new flows go where this one does: the backend may have come
// back before its flows were looked at, or be one for other clients all along.
func takes(s *State, f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return fe != nil && slices.ContainsFunc(targetsOf(s, fe, f), func(t *Target) bool { return t.has(f.backend) })
}

// ended says whether a connection must not go on. Where the frontend is gone, it
// may.
func endsFlow(s *State, f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return fe != nil && !fe.has(f.backend)
}

// abandons says whether the first packets to an address are refused.
func abandons(s *State, a netip.Addr) bool { return s.vip(a) == nil && containsAddr(s.Owned, a) }

// spareOwn takes addresses of the node itself for what they are, whatever a careless
// pool contains. A node may have thousands, so it asks only if one has left.
func (p purge) spareOwn() error {
	left := func(v *vipPurge) bool { return v.left }
	if !slices.ContainsFunc(slices.Collect(maps.Values(p)), left) {
		return nil
	}
	own, err := ownAddrs()
	for _, a := range own {
		if v := p[a]; v != nil {
			v.left = false
		}
	}
	return err
}

// strands says whether a flow that left a backend which drains would find none.
func strands(s *State, f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return fe != nil && fe.drains(f.backend) && slices.ContainsFunc(targetsOf(s, fe, f), (*Target).empty)
}

// outlives says whether a flow of a protocol without an end stayed with a backend
// that drains, though there is another.
func outlives(s *State, f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return f.port.proto != TCP && fe != nil && fe.drains(f.backend) && !slices.ContainsFunc(targetsOf(s, fe, f), (*Target).empty)
}

// targets are where new flows of that client may go. An entry does not tell by which
// interface its client came.
func targetsOf(s *State, fe *Frontend, f *flow) []*Target {
	switch {
	case containsAddr(s.Clients.CIDRs, f.client):
		return []*Target{&fe.Internal}
	case s.Clients.InterfacePrefix != "" || s.Clients.Bridge != "":
		return []*Target{&fe.External, &fe.Internal}
	default:
		return []*Target{&fe.External}
	}
}

// asHost is s in the eyes of a process of the host that has an address: it is a
// client on this node, whatever Clients says.
func asHost(s State, client netip.Addr) *State {
	s.Clients = LocalClients{CIDRs: []netip.Prefix{netip.PrefixFrom(client, client.BitLen())}}
	return &s
}

// forbids says whether the flow is of one of our frontends and backends, and of a
// source that may not use them.
func forbids(s *State, f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return fe != nil && fe.Sources != nil && fe.has(f.backend) && !containsAddr(fe.Sources, f.client)
}
