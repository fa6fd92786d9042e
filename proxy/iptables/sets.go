package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// An ipsetID is one of the ipsets that the rules of iptables use. Each exists for both
// families. Their entries change without a change of rules.
type ipsetID uint8

const (
	IPSetVIPs ipsetID = iota
	IPSetOwned
	ipsetClients
	ipsetNever
	ipsetRedirects
	ipsetSources // before the sets that send packets to it
	IPSetLimited
	ipsetExternalDrop
	ipsetInternalDrop
	IPSetExternalReject
	ipsetInternalReject
	IPSetCount
)

// A setShape is what a set of the kernel's ipset holds.
type setShape struct {
	name string
	Kind string // in ipset's words
}

var SetShapes = [IPSetCount]setShape{
	IPSetVIPs:           {"fanfare-vips", "hash:ip"},
	IPSetOwned:          {"fanfare-owned", "hash:net"},
	ipsetClients:        {"fanfare-clients", "hash:net"},
	ipsetNever:          {"fanfare-never", "hash:net"},
	ipsetRedirects:      {"fanfare-handon", "hash:ip"},
	IPSetLimited:        {"fanfare-limited", "hash:ip,port"},
	ipsetSources:        {"fanfare-sources", "hash:ip,port,net"},
	ipsetExternalDrop:   {"fanfare-xdrop", "hash:ip,port"},
	ipsetInternalDrop:   {"fanfare-idrop", "hash:ip,port"},
	IPSetExternalReject: {"fanfare-xreject", "hash:ip,port"},
	ipsetInternalReject: {"fanfare-ireject", "hash:ip,port"},
}

const (
	SetPrefix    = "fanfare-"
	affinityKind = "hash:ip"
)

// AffinityPrefix begins the names of the sets that remember clients of a family.
func AffinityPrefix(f state.SetID) string { return SetPrefix + "aff" + string("46"[f]) + "-" }

func SetName(m ipsetID, f state.SetID) string { return SetShapes[m].name + string("46"[f]) }

// An Entry is what is in a set.
type Entry struct {
	Set  ipsetID
	Addr netip.Prefix // of one address where the set has no networks
	Port state.Port   // zero where the set has none
	net  netip.Prefix // of the client; zero where the set has none
	// options are such as nomatch, by which an entry says the contrary. Our entries
	// have none.
	options uint32
}

func (e Entry) family() state.SetID { return state.Family(e.Addr.Addr()) }

// compare orders by set and family, as changeEntries needs them.
func (e Entry) compare(o Entry) int {
	return cmp.Or(
		cmp.Compare(e.Set, o.Set), e.Addr.Addr().Compare(o.Addr.Addr()), cmp.Compare(e.Addr.Bits(), o.Addr.Bits()),
		cmp.Compare(e.Port.Proto, o.Port.Proto), cmp.Compare(e.Port.Port, o.Port.Port),
		e.net.Addr().Compare(o.net.Addr()), cmp.Compare(e.net.Bits(), o.net.Bits()), cmp.Compare(e.options, o.options))
}

func (e Entry) String() string {
	s := SetName(e.Set, e.family()) + " " + prefixText(e.Addr)
	if e.Port.Port != 0 {
		s += fmt.Sprintf(",%s:%d", e.Port.Proto, e.Port.Port)
	}
	if e.net.IsValid() {
		s += "," + e.net.String()
	}
	if e.options != 0 {
		s += fmt.Sprintf(" with options %#x", e.options)
	}
	return s
}

// sharedEntries are the entries that belong to no VIP.
func sharedEntries(s state.State) []Entry {
	var all []Entry
	for m, prefixes := range map[ipsetID][]netip.Prefix{IPSetOwned: s.Owned, ipsetClients: s.Clients.CIDRs, ipsetNever: s.SNAT.Never} {
		for _, p := range prefixes {
			for _, half := range halves(p) {
				all = append(all, Entry{Set: m, Addr: half})
			}
		}
	}
	for i, h := range s.Redirects {
		// A VIP may come by several interfaces.
		if i == 0 || s.Redirects[i-1].VIP != h.VIP {
			all = append(all, Entry{Set: ipsetRedirects, Addr: netip.PrefixFrom(h.VIP, h.VIP.BitLen())})
		}
	}
	return all
}

// halves splits the prefix of all addresses, which ipset can not hold.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() > 0 {
		return []netip.Prefix{p}
	}
	upper := p.Addr().AsSlice()
	upper[0] = 0x80
	a, _ := netip.AddrFromSlice(upper)
	return []netip.Prefix{netip.PrefixFrom(p.Addr(), 1), netip.PrefixFrom(a, 1)}
}

// vipEntries is those of one VIP, whose address all have.
func vipEntries(v *state.VIP) []Entry {
	if v == nil {
		return nil
	}
	addr := netip.PrefixFrom(v.Addr, v.Addr.BitLen())
	all := []Entry{{Set: IPSetVIPs, Addr: addr}}
	for i := range v.Frontends {
		fe := &v.Frontends[i]
		e := Entry{Addr: addr, Port: state.Port{Proto: fe.Protocol, Port: fe.Port}}
		add := func(m ipsetID, when bool) {
			if e.Set = m; when {
				all = append(all, e)
			}
		}
		add(ipsetExternalDrop, misses(&fe.External, state.Drop))
		add(IPSetExternalReject, misses(&fe.External, state.Reject))
		add(ipsetInternalDrop, misses(&fe.Internal, state.Drop))
		add(ipsetInternalReject, misses(&fe.Internal, state.Reject))
		if !fe.Fenced(v.Addr) {
			continue
		}
		add(IPSetLimited, true)
		for _, e.net = range fe.Sources {
			add(ipsetSources, state.Family(e.net.Addr()) == state.Family(v.Addr))
		}
	}
	return all
}

func misses(t *state.Target, m state.Miss) bool { return len(t.Backends) == 0 && t.Miss == m }

// affinities is the sets that the frontends of a VIP remember their clients in, and
// for how long.
func affinities(to map[string]SetForm, v *state.VIP) {
	if v == nil {
		return
	}
	for i := range v.Frontends {
		fe := &v.Frontends[i]
		if fe.Affinity == 0 {
			continue
		}
		for _, t := range []*state.Target{&fe.External, &fe.Internal} {
			for _, b := range t.Backends {
				to[AffinityName(v, fe, b)] = SetForm{affinityKind, state.Family(v.Addr), fe.Affinity}
			}
		}
	}
}

// A SetForm is what a set is made with.
type SetForm struct {
	Kind    string // in ipset's words
	Family  state.SetID
	Timeout time.Duration // how long an entry lives; zero: for ever
}

func StaticForm(m ipsetID, f state.SetID) SetForm { return SetForm{Kind: SetShapes[m].Kind, Family: f} }

// Without is the entries of a that are not in b.
func (a entrySet) Without(b entrySet) []Entry {
	var out []Entry
	for e := range a {
		if !b[e] {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, Entry.compare)
	return out
}

type entrySet map[Entry]bool

// in is the entries of one set.
func (a entrySet) in(name string) (all []Entry) {
	for e := range a {
		if SetName(e.Set, e.family()) == name {
			all = append(all, e)
		}
	}
	return all
}

func (a entrySet) Add(all ...Entry) {
	for _, e := range all {
		a[e] = true
	}
}
