package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// StaleEntries names, by VIP, the conntrack entries that a change has made wrong. Conntrack decides
// NAT once for each entry, so a stale entry would keep its old translation for as long as packets
// arrive.
type StaleEntries map[netip.Addr]*staleAtVIP

type staleAtVIP struct {
	// newVIP: the VIP is new. Untranslated entries to it are stale, of any protocol: their packets
	// bypass the rules and loop between this node and the router.
	newVIP bool
	// removedVIP: the address is no longer a VIP. If it is still one of Owned, remaining entries
	// would misdirect the clients of the next Service that gets the address.
	removedVIP bool
	// newPorts are new frontends of an existing VIP.
	newPorts map[state.Port]bool
	// restricted are frontends with fewer allowed sources than before. Flows from other sources are
	// stale.
	restricted map[state.Port]bool
	// recovered are frontends that have a backend again. While they had none, flows of protocols
	// without an end stayed with draining backends; now splitDraining makes them leave.
	recovered map[state.Port]bool
	// removedBackends are backends that no longer get new flows. Entries of protocols without an
	// end would keep sending there. So would TCP entries that wait for the first answer: each
	// retransmitted SYN extends them by 120 s. Other TCP entries are stale once no frontend has the
	// backend.
	removedBackends map[removedBackend]state.Sides
	// adopted are frontends of a table that an earlier process wrote. That process may have ended
	// between a change and its cleanup, so flows to unknown backends are stale.
	adopted map[state.Port]bool
}

type removedBackend struct {
	state.Port
	Backend netip.AddrPort
}

func (stale StaleEntries) at(vip netip.Addr) *staleAtVIP {
	v := stale[vip]
	if v == nil {
		v = &staleAtVIP{
			newPorts: make(map[state.Port]bool), restricted: make(map[state.Port]bool),
			recovered: make(map[state.Port]bool), removedBackends: make(map[removedBackend]state.Sides),
			adopted: make(map[state.Port]bool),
		}
		stale[vip] = v
	}
	return v
}

func (v *staleAtVIP) empty() bool {
	return !v.newVIP && !v.removedVIP && len(v.newPorts) == 0 && len(v.restricted) == 0 && len(v.recovered) == 0 &&
		len(v.removedBackends) == 0 && len(v.adopted) == 0
}

// StaleAfter returns the entries that a change of elements makes stale.
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

// AddAdopted adds the frontends of a table that an earlier process wrote.
func (stale StaleEntries) AddAdopted(had []state.Element) {
	for _, e := range had {
		if s := state.Base(e.Set); s == state.SetExtSvc || s == state.SetIntSvc {
			vip, proto, n := state.FrontendOf(e.Set, e.Key)
			stale.at(vip).adopted[state.Port{Proto: proto, Port: n}] = true
		}
	}
}

// recordRestricted records, if is, that fewer sources may use the frontend of e.
func (stale StaleEntries) recordRestricted(e state.Element, is bool) {
	if is {
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		stale.at(vip).restricted[state.Port{Proto: proto, Port: n}] = true
	}
}

// recordAdded records a new VIP or frontend.
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
		return // it gets no new flows; includes decides about existing ones
	}
	vip, b, s := slotOf(e)
	// Most additions replace nothing. s is 0 if e is not a slot.
	if v := stale[vip]; v != nil && v.removedBackends[b]&s != 0 {
		v.removedBackends[b] &^= s
	}
}

// slotOf returns the backend in a slot or a draining backend, its VIP, and the clients that it is
// for. s is 0 if e is neither.
func slotOf(e state.Element) (vip netip.Addr, b removedBackend, s state.Sides) {
	switch state.Base(e.Set) {
	case state.SetExtEps:
		s = state.SideExternal
	case state.SetIntEps:
		s = state.SideInternal
	case state.SetDrain:
		vip, proto, n := state.FrontendOf(e.Set, e.Key)
		backend := e.Key[state.FieldsSize(state.Specs[state.SetExtSvc+state.Family(vip)].Key):]
		return vip, removedBackend{state.Port{Proto: proto, Port: n}, state.BackendOf(backend)},
			state.SideExternal | state.SideInternal
	default:
		return vip, b, 0
	}
	vip, proto, n := state.FrontendOf(e.Set, e.Key)
	return vip, removedBackend{state.Port{Proto: proto, Port: n}, state.BackendOf(e.Data)}, s
}

// splitDeferrable moves the entries that can wait from stale to the results: those of removed TCP
// backends and VIPs, and, as local, those of new VIPs and ports in prefixes whose untranslated flows
// were deleted. In these prefixes, only processes of the host can have made entries, because the rules
// let their packets pass.
func (stale StaleEntries) splitDeferrable(swept []netip.Prefix) (deferrable, local StaleEntries) {
	deferrable, local = make(StaleEntries), make(StaleEntries)
	for vip, v := range stale {
		for b, s := range v.removedBackends {
			if b.Proto == state.TCP {
				deferrable.at(vip).removedBackends[b] = s
				delete(v.removedBackends, b)
			}
		}
		if (v.newVIP || len(v.newPorts) > 0) && sortedset.ContainsAddr(swept, vip) {
			to := local.at(vip)
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
	return deferrable, local
}

// merge adds the entries of o.
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

// includes reports whether the flow is stale, given the wanted State s.
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
		return !f.yields && endsFlow(s, f) // a SYN replaces an entry that yields; see changeAll
	case takes(s, f), f.Port.Proto != state.TCP && leavesNoBackend(s, f):
		return false
	}
	// A conntrack entry does not show whether other clients are this node's pods.
	if sides == state.SideExternal && sortedset.ContainsAddr(s.Clients.CIDRs, f.Client) {
		return false
	}
	return true
}

// takes reports whether the flow's backend gets new flows of its client: the backend may have
// returned before the cleanup, or serve this kind of clients all along.
func takes(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && slices.ContainsFunc(targetsOf(s, fe, f), func(t *state.Target) bool { return t.Has(f.Backend) })
}

// endsFlow reports whether a connection must end. It may continue if its frontend no longer exists.
func endsFlow(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && !fe.Has(f.Backend)
}

// abandons reports whether the rules reject new flows to an address: it is owned, but not a VIP.
func abandons(s *state.State, a netip.Addr) bool {
	return s.VIP(a) == nil && sortedset.ContainsAddr(s.Owned, a)
}

// excludeOwnAddresses excludes addresses of the node itself, which a pool may contain by mistake. A
// node may have thousands, so they are listed only if a VIP was removed.
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

// backendDrains reports whether a flow's backend is draining.
func backendDrains(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && fe.Drains(f.Backend)
}

// leavesNoBackend reports whether a flow would find no backend if it left its draining one.
func leavesNoBackend(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return backendDrains(s, f) && slices.ContainsFunc(targetsOf(s, fe, f), (*state.Target).Empty)
}

// targetsOf returns the targets that new flows of this client may have. A conntrack entry does not
// show the client's interface.
func targetsOf(s *state.State, fe *state.Frontend, f *Flow) []*state.Target {
	switch {
	case sortedset.ContainsAddr(s.Clients.CIDRs, f.Client):
		return []*state.Target{&fe.Internal}
	case s.Clients.InterfacePrefix != "" || s.Clients.Bridge != "":
		return []*state.Target{&fe.External, &fe.Internal}
	default:
		return []*state.Target{&fe.External}
	}
}

// asHost returns s as it applies to a process of the host with this address: such a process is a
// client on this node, regardless of Clients.
func asHost(s state.State, client netip.Addr) *state.State {
	s.Clients = state.LocalClients{CIDRs: []netip.Prefix{netip.PrefixFrom(client, client.BitLen())}}
	return &s
}

// forbids reports whether the flow belongs to a frontend and backend of s, and its source is not
// allowed.
func forbids(s *state.State, f *Flow) bool {
	fe := s.Frontend(f.VIP, f.Port)
	return fe != nil && fe.Sources != nil && fe.Has(f.Backend) && !sortedset.ContainsAddr(fe.Sources, f.Client)
}
