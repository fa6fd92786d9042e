package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// An ipsetID is one of the sets of ipset that the rules use. Each exists once per family.
// Entries change by netlink, without a change of rules. The order is that in which entries are
// added: ipsetSources comes before the set that makes rules consult it.
type ipsetID uint8

// The static sets. The exported identifiers are for the tests of package proxy.
const (
	IPSetVIPs         ipsetID = iota // the addresses that rules forward
	IPSetOwned                       // the prefixes of the pools
	ipsetClients                     // networks of clients on this node
	ipsetNever                       // networks of backends that always see the client's address
	ipsetRedirects                   // VIPs whose connections may be redirected
	ipsetSources                     // frontend and client network that may use it
	IPSetLimited                     // frontends that only some sources may use
	ipsetExternalDrop                // frontends without backends, by kind of client and treatment
	ipsetInternalDrop
	IPSetExternalReject
	ipsetInternalReject
	IPSetCount // the number of sets
)

// A setShape is the name and the type of a set.
type setShape struct {
	name string // without the family's digit
	Kind string // the set type, as in ipset(8)
}

// SetShapes holds the shape of each set. It is exported for the tests of package proxy. A name
// must not change: a new version finds the sets of an older one by it.
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
	// SetPrefix begins the name of each set of Fanfare. Remove deletes every set with it.
	SetPrefix    = "fanfare-"
	affinityKind = "hash:ip"
)

// AffinityPrefix returns the prefix of the names of a family's affinity sets. It is exported
// for the tests of package proxy.
func AffinityPrefix(f state.SetID) string { return SetPrefix + "aff" + string("46"[f]) + "-" }

// SetName returns the name of a set: its shape's name and 4 or 6. It is exported for the tests
// of package proxy.
func SetName(m ipsetID, f state.SetID) string { return SetShapes[m].name + string("46"[f]) }

// An Entry is an entry of one of the static sets. It is exported for the tests of package
// proxy, as are its fields.
type Entry struct {
	Set  ipsetID
	Addr netip.Prefix // a single address in sets without networks
	Port state.Port   // zero in sets without ports
	net  netip.Prefix // the client's network; invalid in sets without one
	// options are the flags of an entry, such as nomatch, which excludes a network from the
	// set. Fanfare writes none: an entry with options is another program's.
	options uint32
}

func (e Entry) family() state.SetID { return state.Family(e.Addr.Addr()) }

// compare orders by set and family first, as ChangeEntries requires.
func (e Entry) compare(o Entry) int {
	return cmp.Or(
		cmp.Compare(e.Set, o.Set), e.Addr.Addr().Compare(o.Addr.Addr()), cmp.Compare(e.Addr.Bits(), o.Addr.Bits()),
		cmp.Compare(e.Port.Proto, o.Port.Proto), cmp.Compare(e.Port.Port, o.Port.Port),
		e.net.Addr().Compare(o.net.Addr()), cmp.Compare(e.net.Bits(), o.net.Bits()), cmp.Compare(e.options, o.options))
}

// String returns the set's name and the entry as ipset list shows it, roughly; it is for
// messages.
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

// sharedEntries returns the entries that do not depend on VIPs, of both families.
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
		// A VIP has one redirect per interface; they are sorted by VIP.
		if i == 0 || s.Redirects[i-1].VIP != h.VIP {
			all = append(all, Entry{Set: ipsetRedirects, Addr: netip.PrefixFrom(h.VIP, h.VIP.BitLen())})
		}
	}
	return all
}

// halves splits 0.0.0.0/0 and ::/0 in two: hash:net rejects a prefix length of 0 (ipset(8)).
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() > 0 {
		return []netip.Prefix{p}
	}
	upper := p.Addr().AsSlice()
	upper[0] = 0x80
	a, _ := netip.AddrFromSlice(upper)
	return []netip.Prefix{netip.PrefixFrom(p.Addr(), 1), netip.PrefixFrom(a, 1)}
}

// vipEntries returns the entries of one VIP; none for nil.
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

// misses reports whether a target has no backends and treats packets in this way.
func misses(t *state.Target, m state.Miss) bool { return len(t.Backends) == 0 && t.Miss == m }

// affinities adds the affinity sets of a VIP, one per frontend and backend. The timeout of a
// set is the frontend's affinity timeout, which starts again with each new flow of a client.
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

// A SetForm holds the parameters with which a set is created. The kernel cannot change them
// later. It is exported for the tests of package proxy.
type SetForm struct {
	Kind    string        // the set type, as in ipset(8)
	Family  state.SetID   // 0 is IPv4, 1 is IPv6
	Timeout time.Duration // the default lifetime of entries, in whole seconds; zero: no expiry
}

// StaticForm returns the form of a set that is not an affinity set. It is exported for the
// tests of package proxy.
func StaticForm(m ipsetID, f state.SetID) SetForm { return SetForm{Kind: SetShapes[m].Kind, Family: f} }

// Without returns the entries of a that are not in b, sorted as ChangeEntries requires.
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

// in returns the entries of one set.
func (a entrySet) in(name string) (all []Entry) {
	for e := range a {
		if SetName(e.Set, e.family()) == name {
			all = append(all, e)
		}
	}
	return all
}

// Add adds entries in place.
func (a entrySet) Add(all ...Entry) {
	for _, e := range all {
		a[e] = true
	}
}
