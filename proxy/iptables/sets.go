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
// entries change by netlink, without a change of rules. The order is that in which entries are
// added: ipsetSources comes before the set that makes rules consult it.
type ipsetID uint8

// The static sets.
const (
	ipsetVIPs         ipsetID = iota // the addresses that rules forward
	ipsetOwned                       // the prefixes of the pools
	ipsetClients                     // networks of clients on this node
	ipsetNever                       // networks of backends that always see the client's address
	ipsetRedirects                   // VIPs whose connections may be redirected
	ipsetSources                     // frontend and client network that may use it
	ipsetLimited                     // frontends that only some sources may use
	ipsetExternalDrop                // frontends without backends, by kind of client and treatment
	ipsetInternalDrop
	ipsetExternalReject
	ipsetInternalReject
	ipsetReplies  // backends: replies come from here
	ipsetRepliers // addresses of backends
	ipsetCount    // the number of sets
)

// A setShape is the name and the type of a set.
type setShape struct {
	name string // without the family's digit
	kind string // the set type, as in ipset(8)
}

// setShapes holds the shape of each set. A name must not change: a new version finds the sets of
// an older one by it.
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
	ipsetReplies:        {"fanfare-replies", "hash:ip,port"},
	ipsetRepliers:       {"fanfare-repliers", "hash:ip"},
}

const (
	// ipsetPrefix begins the name of each set of Fanfare. Remove deletes every set with it.
	ipsetPrefix  = "fanfare-"
	affinityKind = "hash:ip"
)

// affinityPrefix returns the prefix of the names of a family's affinity sets.
func affinityPrefix(f state.SetID) string { return ipsetPrefix + "aff" + string("46"[f]) + "-" }

// setName returns the name of a set: its shape's name and 4 or 6.
func setName(m ipsetID, f state.SetID) string { return setShapes[m].name + string("46"[f]) }

// A setEntry is an entry of one of the static sets.
type setEntry struct {
	set  ipsetID
	addr netip.Prefix // a single address in sets without networks
	port state.Port   // zero in sets without ports
	net  netip.Prefix // the client's network; invalid in sets without one
	// options are the flags of an entry, such as nomatch, which excludes a network from the
	// set. Fanfare writes none: an entry with options is another program's.
	options uint32
}

func (e setEntry) family() state.SetID { return state.Family(e.addr.Addr()) }

// compare orders by set and family first, as changeEntries requires.
func (e setEntry) compare(o setEntry) int {
	return cmp.Or(
		cmp.Compare(e.set, o.set), e.addr.Addr().Compare(o.addr.Addr()), cmp.Compare(e.addr.Bits(), o.addr.Bits()),
		cmp.Compare(e.port.Proto, o.port.Proto), cmp.Compare(e.port.Port, o.port.Port),
		e.net.Addr().Compare(o.net.Addr()), cmp.Compare(e.net.Bits(), o.net.Bits()), cmp.Compare(e.options, o.options))
}

// String returns the set's name and the entry as ipset list shows it, roughly; it is for
// messages.
func (e setEntry) String() string {
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

// sharedEntries returns the entries that do not depend on VIPs, of both families.
func sharedEntries(s state.State) []setEntry {
	var all []setEntry
	for m, prefixes := range map[ipsetID][]netip.Prefix{
		ipsetOwned: s.Owned, ipsetClients: s.Clients.CIDRs, ipsetNever: s.SNAT.Never,
	} {
		for _, p := range prefixes {
			for _, half := range halves(p) {
				all = append(all, setEntry{set: m, addr: half})
			}
		}
	}
	for i, h := range s.Redirects {
		// A vip has one redirect per interface; they are sorted by VIP.
		if i == 0 || s.Redirects[i-1].VIP != h.VIP {
			all = append(all, setEntry{set: ipsetRedirects, addr: netip.PrefixFrom(h.VIP, h.VIP.BitLen())})
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
func vipEntries(v *state.VIP) []setEntry {
	if v == nil {
		return nil
	}
	addr := netip.PrefixFrom(v.Addr, v.Addr.BitLen())
	all := []setEntry{{set: ipsetVIPs, addr: addr}}
	for i := range v.Frontends {
		fe := &v.Frontends[i]
		e := setEntry{addr: addr, port: state.Port{Proto: fe.Protocol, Port: fe.Port}}
		add := func(m ipsetID, when bool) {
			if e.set = m; when {
				all = append(all, e)
			}
		}
		add(ipsetExternalDrop, misses(&fe.External, state.Drop))
		add(ipsetExternalReject, misses(&fe.External, state.Reject))
		add(ipsetInternalDrop, misses(&fe.Internal, state.Drop))
		add(ipsetInternalReject, misses(&fe.Internal, state.Reject))
		if !fe.SourceRestricted(v.Addr) {
			continue
		}
		add(ipsetLimited, true)
		for _, e.net = range fe.Sources {
			add(ipsetSources, state.Family(e.net.Addr()) == state.Family(v.Addr))
		}
	}
	return all
}

// replyEntries returns the entries for those elements that are elements of the sets of replies of a
// family.
func replyEntries(all []state.Element, f state.SetID) (entries []setEntry) {
	sets := map[state.SetID]ipsetID{state.SetReplies + f: ipsetReplies, state.SetRepliers + f: ipsetRepliers}
	for _, e := range all {
		if m, ok := sets[e.Set]; ok {
			addr, port := e.Reply()
			entries = append(entries, setEntry{set: m, addr: netip.PrefixFrom(addr, addr.BitLen()), port: port})
		}
	}
	return entries
}

// misses reports whether a target has no backends and treats packets in this way.
func misses(t *state.Target, m state.Miss) bool { return len(t.Backends) == 0 && t.Miss == m }

// affinityForms returns the affinity sets of VIPs, one per frontend and backend; none for nil. The
// timeout of a set is the frontend's affinity timeout, which begins with the first flow of a client.
func affinityForms(vips []*state.VIP) map[string]setForm {
	all := make(map[string]setForm)
	for _, v := range vips {
		if v == nil {
			continue
		}
		for i := range v.Frontends {
			fe := &v.Frontends[i]
			if fe.Affinity == 0 {
				continue
			}
			for _, b := range slices.Concat(fe.External.Backends, fe.Internal.Backends) {
				all[AffinityName(v, fe, b)] = setForm{affinityKind, state.Family(v.Addr), fe.Affinity, maxClients, true}
			}
		}
	}
	return all
}

// A setForm holds the parameters with which a set is created. The kernel cannot change them later.
type setForm struct {
	kind    string        // the set type, as in ipset(8)
	family  state.SetID   // 0 is IPv4, 1 is IPv6
	timeout time.Duration // the default lifetime of entries, in whole seconds; zero: no expiry
	most    uint32        // how many entries it can have
	evicts  bool          // a new entry takes the place of another one if the set is full
}

// staticForm returns the form of a set that is not an affinity set.
func staticForm(m ipsetID, f state.SetID) setForm {
	return setForm{kind: setShapes[m].kind, family: f, most: maxEntries}
}

// without returns the entries of a that are not in b, sorted as changeEntries requires.
func (a entrySet) without(b entrySet) []setEntry {
	var out []setEntry
	for e := range a {
		if !b[e] {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, setEntry.compare)
	return out
}

type entrySet map[setEntry]bool

// in returns the entries of one set.
func (a entrySet) in(name string) (all []setEntry) {
	for e := range a {
		if setName(e.set, e.family()) == name {
			all = append(all, e)
		}
	}
	return all
}

// add adds entries in place.
func (a entrySet) add(all ...setEntry) {
	for _, e := range all {
		a[e] = true
	}
}
