package proxy

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
	ipsetVIPs ipsetID = iota
	ipsetOwned
	ipsetClients
	ipsetNever
	ipsetRedirects
	ipsetSources // before the sets that send packets to it
	ipsetLimited
	ipsetExternalDrop
	ipsetInternalDrop
	ipsetExternalReject
	ipsetInternalReject
	ipsetCount
)

// A setShape is what a set of the kernel's ipset holds.
type setShape struct {
	name string
	kind string // in ipset's words
}

var setShapes = [ipsetCount]setShape{
	ipsetVIPs:           {"fanfare-vips", "hash:ip"},
	ipsetOwned:          {"fanfare-owned", "hash:net"},
	ipsetClients:        {"fanfare-clients", "hash:net"},
	ipsetNever:          {"fanfare-never", "hash:net"},
	ipsetRedirects:      {"fanfare-handon", "hash:ip"},
	ipsetLimited:        {"fanfare-limited", "hash:ip,port"},
	ipsetSources:        {"fanfare-sources", "hash:ip,port,net"},
	ipsetExternalDrop:   {"fanfare-xdrop", "hash:ip,port"},
	ipsetInternalDrop:   {"fanfare-idrop", "hash:ip,port"},
	ipsetExternalReject: {"fanfare-xreject", "hash:ip,port"},
	ipsetInternalReject: {"fanfare-ireject", "hash:ip,port"},
}

const (
	setPrefix    = "fanfare-"
	affinityKind = "hash:ip"
)

// affinityPrefix begins the names of the sets that remember clients of a family.
func affinityPrefix(f state.SetID) string { return setPrefix + "aff" + string("46"[f]) + "-" }

func setName(m ipsetID, f state.SetID) string { return setShapes[m].name + string("46"[f]) }

// An entry is what is in a set.
type entry struct {
	set  ipsetID
	addr netip.Prefix // of one address where the set has no networks
	port state.Port   // zero where the set has none
	net  netip.Prefix // of the client; zero where the set has none
	// options are such as nomatch, by which an entry says the contrary. Our entries
	// have none.
	options uint32
}

func (e entry) family() state.SetID { return state.Family(e.addr.Addr()) }

// compare orders by set and family, as changeEntries needs them.
func (e entry) compare(o entry) int {
	return cmp.Or(
		cmp.Compare(e.set, o.set), e.addr.Addr().Compare(o.addr.Addr()), cmp.Compare(e.addr.Bits(), o.addr.Bits()),
		cmp.Compare(e.port.Proto, o.port.Proto), cmp.Compare(e.port.Port, o.port.Port),
		e.net.Addr().Compare(o.net.Addr()), cmp.Compare(e.net.Bits(), o.net.Bits()), cmp.Compare(e.options, o.options))
}

func (e entry) String() string {
	s := setName(e.set, e.family()) + " " + prefixText(e.addr)
	if e.port.Port != 0 {
		s += fmt.Sprintf(",%s:%d", e.port.Proto, e.port.Port)
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
func sharedEntries(s State) []entry {
	var all []entry
	for m, prefixes := range map[ipsetID][]netip.Prefix{ipsetOwned: s.Owned, ipsetClients: s.Clients.CIDRs, ipsetNever: s.SNAT.Never} {
		for _, p := range prefixes {
			for _, half := range halves(p) {
				all = append(all, entry{set: m, addr: half})
			}
		}
	}
	for i, h := range s.Redirects {
		// A VIP may come by several interfaces.
		if i == 0 || s.Redirects[i-1].VIP != h.VIP {
			all = append(all, entry{set: ipsetRedirects, addr: netip.PrefixFrom(h.VIP, h.VIP.BitLen())})
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
func vipEntries(v *VIP) []entry {
	if v == nil {
		return nil
	}
	addr := netip.PrefixFrom(v.Addr, v.Addr.BitLen())
	all := []entry{{set: ipsetVIPs, addr: addr}}
	for i := range v.Frontends {
		fe := &v.Frontends[i]
		e := entry{addr: addr, port: state.Port{Proto: fe.Protocol, Port: fe.Port}}
		add := func(m ipsetID, when bool) {
			if e.set = m; when {
				all = append(all, e)
			}
		}
		add(ipsetExternalDrop, misses(&fe.External, Drop))
		add(ipsetExternalReject, misses(&fe.External, Reject))
		add(ipsetInternalDrop, misses(&fe.Internal, Drop))
		add(ipsetInternalReject, misses(&fe.Internal, Reject))
		if !fe.Fenced(v.Addr) {
			continue
		}
		add(ipsetLimited, true)
		for _, e.net = range fe.Sources {
			add(ipsetSources, state.Family(e.net.Addr()) == state.Family(v.Addr))
		}
	}
	return all
}

func misses(t *Target, m Miss) bool { return len(t.Backends) == 0 && t.Miss == m }

// affinities is the sets that the frontends of a VIP remember their clients in, and
// for how long.
func affinities(to map[string]setForm, v *VIP) {
	if v == nil {
		return
	}
	for i := range v.Frontends {
		fe := &v.Frontends[i]
		if fe.Affinity == 0 {
			continue
		}
		for _, t := range []*Target{&fe.External, &fe.Internal} {
			for _, b := range t.Backends {
				to[affinityName(v, fe, b)] = setForm{affinityKind, state.Family(v.Addr), fe.Affinity}
			}
		}
	}
}

// A setForm is what a set is made with.
type setForm struct {
	kind    string // in ipset's words
	family  state.SetID
	timeout time.Duration // how long an entry lives; zero: for ever
}

func staticForm(m ipsetID, f state.SetID) setForm { return setForm{kind: setShapes[m].kind, family: f} }

// without is the entries of a that are not in b.
func (a entrySet) without(b entrySet) []entry {
	var out []entry
	for e := range a {
		if !b[e] {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, entry.compare)
	return out
}

type entrySet map[entry]bool

// in is the entries of one set.
func (a entrySet) in(name string) (all []entry) {
	for e := range a {
		if setName(e.set, e.family()) == name {
			all = append(all, e)
		}
	}
	return all
}

func (a entrySet) add(all ...entry) {
	for _, e := range all {
		a[e] = true
	}
}
