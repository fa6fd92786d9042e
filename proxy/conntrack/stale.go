package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A StaleEntries says, by VIP, which conntrack entries a change has made wrong. NAT
// is decided once for each entry, so without this they would outlive the rules
// that they were born under for as long as packets come.
type StaleEntries map[netip.Addr]*staleAtVIP

type staleAtVIP struct {
	// newVIP: the VIP is new. Entries to it that were not rewritten go, of
	// whatever protocol: they send the client's packets past the rules, and in
	// a loop between here and the router.
	newVIP bool
	// removedVIP: the address is no longer a VIP. If it is still one of Owned, entries that remain in
	// conntrack would misdirect the clients of the next Service that gets it.
	removedVIP bool
	// newPorts are frontends that are new at a VIP that is not.
	newPorts map[state.Port]bool
	// restricted are frontends that fewer sources may use than before. Their flows of
	// others go.
	restricted map[state.Port]bool
	// recovered are frontends that have a backend again: splitDraining takes them. Flows of protocols that
	// have no end of their own leave what drains, where they had stayed for
	// want of a better place.
	recovered map[state.Port]bool
	// removedBackends are backends that no longer get new flows. Entries of protocols that
	// have no end of their own would keep sending there, and so would those of TCP
	// that wait for a first answer: each SYN of that client's port, for 120 s after
	// the last one. Others of TCP go when no frontend has the backend.
	removedBackends map[removedBackend]state.Sides
	// adopted are frontends of a table that was found: the process that wrote it may have
	// ended between a change and its sweep. Their flows to unknown backends go.
	adopted map[state.Port]bool
}

type removedBackend struct {
	state.Port
	Backend netip.AddrPort
}

func (stale StaleEntries) at(vip netip.Addr) *staleAtVIP {
	v := stale[vip]
	if v == nil {
		v = &staleAtVIP{newPorts: make(map[state.Port]bool), restricted: make(map[state.Port]bool), recovered: make(map[state.Port]bool), removedBackends: make(map[removedBackend]state.Sides), adopted: make(map[state.Port]bool)}
		stale[vip] = v
	}
	return v
}

func (v *staleAtVIP) empty() bool {
	return !v.newVIP && !v.removedVIP && len(v.newPorts) == 0 && len(v.restricted) == 0 && len(v.recovered) == 0 && len(v.removedBackends) == 0 && len(v.adopted) == 0
}

// StaleAfter derives from a change of elements what it makes wrong.
func StaleAfter(c state.Change) StaleEntries {
	stale := make(StaleEntries)
	before := make(map[state.Element]bool) // the keys that existed
	for _, e := range c.Del {
		before[state.Element{Set: e.Set, Key: e.Key}] = true
		stale.recordRemoved(e)
		stale.recordRestricted(e, state.Base(e.Set) == state.SetAllowed)
	}
	for _, e := range c.Add {
		stale.recordKept(e)
		stale.recordRestricted(e, e.Data == state.External.SourceCheck || e.Data == state.Internal.SourceCheck)
		if !before[state.Element{Set: e.Set, Key: e.Key}] {
			stale.recordAdded(e)
		}
	}
	for vip, v := range stale {
		for b, s := range v.removedBackends {
			if s == 0 {
				delete(v.removedBackends, b)
			}
		}
		if v.empty() {
			delete(stale, vip)
		}
	}
	return stale
}

// AddAdopted notes the frontends of a table that was found.
func (stale StaleEntries) AddAdopted(had []state.Element) {
	for _, e := range had {
		if s := state.Base(e.Set); s == state.SetExtSvc || s == state.SetIntSvc {
			vip, proto, n := state.FrontendOf(e.Set, e.Key)
			stale.at(vip).adopted[state.Port{Proto: proto, Port: n}] = true
		}
	}
}

// recordRestricted notes, if it is so, that fewer sources may use the frontend of e.
func (stale StaleEntries) recordRestricted(e state.Element, is bool) {
	if is {
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		stale.at(vip).restricted[state.Port{Proto: proto, Port: n}] = true
	}
}

// recordAdded notes a new VIP or frontend.
func (stale StaleEntries) recordAdded(e state.Element) {
	switch state.Base(e.Set) {
	case state.SetVIPs:
		vip, _ := netip.AddrFromSlice([]byte(e.Key))
		stale.at(vip).newVIP = true
	case state.SetExtSvc, state.SetIntSvc:
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		stale.at(vip).newPorts[state.Port{Proto: proto, Port: n}] = true
	case state.SetExtEps, state.SetIntEps:
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		if proto != state.TCP && strings.HasSuffix(e.Key, firstSlot) {
			stale.at(vip).recovered[state.Port{Proto: proto, Port: n}] = true
		}
	default: // the others follow from these
	}
}

// firstSlot is the end of the key of a frontend's first slot.
var firstSlot = string(state.Encoding(nil).Slot(0))

// recordRemoved records that a backend has left a slot or stopped draining, and recordKept
// that it is in another slot.
func (stale StaleEntries) recordRemoved(e state.Element) {
	if state.Base(e.Set) == state.SetVIPs {
		vip, _ := netip.AddrFromSlice([]byte(e.Key))
		stale.at(vip).removedVIP = true
	}
	if vip, b, s := slotOf(e); s != 0 {
		stale.at(vip).removedBackends[b] |= s
	}
}

func (stale StaleEntries) recordKept(e state.Element) {
	if state.Base(e.Set) == state.SetDrain {
		return // it gets no new flows, and what it keeps is for wrong to say
	}
	vip, b, s := slotOf(e)
	// Most additions replace nothing. s is 0 for what is no slot.
	if v := stale[vip]; v != nil && v.removedBackends[b]&s != 0 {
		v.removedBackends[b] &^= s
	}
}

// slotOf is the backend in a slot, or one that drains, the VIP it is for, and for
// which clients; no sides if e is neither.
func slotOf(e state.Element) (vip netip.Addr, b removedBackend, s state.Sides) {
	switch state.Base(e.Set) {
	case state.SetExtEps:
		s = state.SideExternal
	case state.SetIntEps:
		s = state.SideInternal
	case state.SetDrain:
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		backend := e.Key[state.FieldsSize(state.Specs[state.SetExtSvc+state.Family(vip)].Key):]
		return vip, removedBackend{state.Port{Proto: proto, Port: n}, state.BackendOf(backend)}, state.SideExternal | state.SideInternal
	default:
		return vip, b, 0
	}
	vip, proto, n := state.FrontendOf(e.Set, e.Key)
	return vip, removedBackend{state.Port{Proto: proto, Port: n}, state.BackendOf(e.Data)}, s
}

// splitDeferrable takes out of stale and returns what can wait: removed backends of TCP,
// and what is new in prefixes that were swept. There only processes of the host can
// have made entries before, whose packets the rules let pass.
func (stale StaleEntries) splitDeferrable(swept []netip.Prefix) StaleEntries {
	deferrable := make(StaleEntries)
	for vip, v := range stale {
		for b, s := range v.removedBackends {
			if b.Proto == state.TCP {
				deferrable.at(vip).removedBackends[b] = s
				delete(v.removedBackends, b)
			}
		}
		if (v.newVIP || len(v.newPorts) > 0) && state.ContainsAddr(swept, vip) {
			to := deferrable.at(vip)
			to.newVIP, v.newVIP = v.newVIP, false
			to.newPorts, v.newPorts = v.newPorts, to.newPorts
		}
		if v.removedVIP {
			deferrable.at(vip).removedVIP, v.removedVIP = true, false
		}
		if v.empty() {
			delete(stale, vip)
		}
	}
	return deferrable
}

// merge adds what o asks for.
func (stale StaleEntries) merge(o StaleEntries) {
	for vip, from := range o {
		to := stale.at(vip)
		to.newVIP, to.removedVIP = to.newVIP || from.newVIP, to.removedVIP || from.removedVIP
		maps.Copy(to.newPorts, from.newPorts)
		maps.Copy(to.restricted, from.restricted)
		maps.Copy(to.adopted, from.adopted)
		for k, s := range from.removedBackends {
			to.removedBackends[k] |= s
		}
	}
}

// includes reports whether the flow must go, now that s is what is wanted.
func (stale StaleEntries) includes(f *Flow, s *state.State) bool {
	v := stale[f.VIP]
	if v == nil {
		return false
	}
	if !f.DNAT {
		return v.newVIP || v.newPorts[f.Port]
	}
	if v.removedVIP && abandons(s, f.VIP) {
		return true
	}
	if v.restricted[f.Port] && forbids(s, f) {
		return true
	}
	if v.adopted[f.Port] && endsFlow(s, f) {
		return true
	}
	sides := v.removedBackends[removedBackend{f.Port, f.Backend}]
	switch {
	case sides == 0:
		return false
	case f.Port.Proto == state.TCP && f.replied:
		return !f.yields && endsFlow(s, f) // nothing goes by what yields, and changeAll says what may begin in its place
	case takes(s, f), f.Port.Proto != state.TCP && leavesNoBackend(s, f):
		return false
	}
	// Whether other clients are this node's pods, an entry does not tell.
	if sides == state.SideExternal && state.ContainsAddr(s.Clients.CIDRs, f.Client) {
		return false
	}
	return true
}

// takes reports whether new flows go where this one does: the backend may have come
// back before its flows were looked at, or be one for other clients all along.
func takes(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && slices.ContainsFunc(targetsOf(s, fe, f), func(t *state.Target) bool { return t.Has(f.Backend) })
}

// endsFlow reports whether a connection must not go on. Where the frontend is gone, it
// may.
func endsFlow(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && !fe.Has(f.Backend)
}

// abandons reports whether the first packets to an address are refused.
func abandons(s *state.State, a netip.Addr) bool {
	return s.Vip(a) == nil && state.ContainsAddr(s.Owned, a)
}

// excludeOwnAddresses takes addresses of the node itself for what they are, whatever a careless
// pool contains. A node may have thousands, so it asks only if one has left.
func (stale StaleEntries) excludeOwnAddresses() error {
	left := func(v *staleAtVIP) bool { return v.removedVIP }
	if !slices.ContainsFunc(slices.Collect(maps.Values(stale)), left) {
		return nil
	}
	own, err := OwnAddrs()
	for _, a := range own {
		if v := stale[a]; v != nil {
			v.removedVIP = false
		}
	}
	return err
}

// backendDrains reports whether a flow's backend drains.
func backendDrains(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && fe.Drains(f.Backend)
}

// leavesNoBackend reports whether a flow that left a backend which drains would find none.
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

// forbids reports whether the flow is of one of our frontends and backends, and of a
// source that may not use them.
func forbids(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && fe.Sources != nil && fe.Has(f.Backend) && !state.ContainsAddr(fe.Sources, f.Client)
}
