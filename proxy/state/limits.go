package state

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// Limits are the limits for one address. They bound the memory and time that one Service can cost a
// node, and keep each change within one kernel transaction. Only the address that exceeds them is
// refused: see [Refused].
type Limits struct {
	// Mode is the mode that the limits are for, for messages.
	Mode Mode
	// Ports is the number of frontends.
	Ports int
	// Backends is the number of endpoints of one port. Tabled is the number for a port whose
	// scheduler has a table.
	Backends, Tabled int
	// Sources is the number of networks that may use one port. The list must fit into one
	// transaction, or clients would be refused for a moment.
	Sources int
	// RoundRobin is the number of ports with the scheduler [RoundRobin]. Each has its own chains, and
	// the kernel visits all chains whenever one is added.
	RoundRobin int
	// Entries is the number of elements of sets and maps, or of iptables rules, for all ports
	// together.
	Entries int
	// Total is the number of entries for all addresses of a node together.
	Total int
	// Programs is the number of iptables rules with a BPF program: those of affinity, [Maglev]
	// and most of [SourceHash]. TotalPrograms is the number for all addresses of a node together.
	Programs, TotalPrograms int
}

// DefaultLimits returns the limits of a mode. ModeAuto has those of nftables.
func DefaultLimits(m Mode) Limits {
	if m == ModeIPTables {
		// Packets pass rule after rule, and every change rewrites all rules of a port.
		return Limits{
			Mode: ModeIPTables, Ports: 4096, Backends: 4096, Tabled: 4096, Sources: 16384, RoundRobin: 4096,
			Entries: 32768, Total: 1 << 18, Programs: 450, TotalPrograms: maxPrograms,
		}
	}
	return Limits{
		Mode: ModeNFTables, Ports: 16384,
		Backends: maxBackends,
		Tabled:   tableSizes[len(tableSizes)-1], // each needs at least one slot
		Sources:  16384, RoundRobin: 4096,
		Entries:  1 << 20, // some 150 MB in the kernel, and five seconds
		Total:    1 << 22, // some 600 MB, and less time than a pass may take
		Programs: maxPrograms, TotalPrograms: maxPrograms,
	}
}

// Check returns which limits an address exceeds, by how much, and what to do.
func (l Limits) Check(v *VIP) error {
	var errs []error
	over := func(what string, n, most int, remedy string) {
		if err := l.check(what, n, most, remedy); err != nil {
			errs = append(errs, err)
		}
	}
	if err := l.CheckPorts(len(v.Frontends)); err != nil {
		errs = append(errs, err)
	}
	turns, programs := 0, 0
	for i := range v.Frontends {
		f := &v.Frontends[i]
		if f.Scheduler == RoundRobin {
			turns++
		}
		programs += f.programs(v.Addr)
		// An address may have thousands of ports: only faults are formatted.
		ofPort := func(what string, n, most int, remedy string) {
			if n > most {
				over(fmt.Sprintf(what, fmt.Sprintf("%s/%d", f.Protocol, f.Port)), n, most, remedy)
			}
		}
		for _, t := range f.targets() {
			ofPort("endpoints of port %s", len(t.Backends), l.Backends,
				"use several Services, each with a part of the endpoints")
			if f.Affinity != 0 {
				ofPort("endpoints of port %s with session affinity", len(t.Backends), l.Tabled,
					"use several Services, each with a part of the endpoints")
			} else if f.schedule(t).Table {
				ofPort("endpoints of port %s with the scheduler "+f.Scheduler.String(), len(t.Backends), l.Tabled,
					"choose another scheduler, or use several Services")
			}
		}
		ofPort("draining endpoints of port %s", len(f.Draining), l.Backends,
			"use several Services, each with a part of the endpoints")
		ofPort("source ranges of port %s", len(f.Sources), l.Sources, "join ranges, or leave the list to a firewall")
		if len(errs) > maxFaults {
			break
		}
	}
	over("ports with the scheduler round robin", turns, l.RoundRobin,
		"choose another scheduler, or use several Services")
	over("ports, endpoints and source ranges together, as entries in the kernel", v.Entries(l.Mode), l.Entries,
		"use several Services; the scheduler random needs the fewest entries")
	if l.Mode == ModeIPTables {
		over("rules for session affinity and the schedulers maglev and source hash", programs, l.Programs,
			"choose the scheduler random without affinity for some ports, or use nftables mode")
	}
	return errors.Join(errs[:min(len(errs), maxFaults)]...)
}

// CheckPorts is the part of Check that needs only the number of frontends.
func (l Limits) CheckPorts(n int) error {
	return l.check("ports", n, l.Ports, "give some of them to another Service with an address of its own")
}

func (l Limits) check(what string, n, most int, remedy string) error {
	if n <= most {
		return nil
	}
	return fmt.Errorf("%s: %d; in %s mode an address can have %d: %s", what, n, l.Mode, most, remedy)
}

// maxFaults is how many faults of one address an error lists.
const maxFaults = 4

// targets returns the targets of both kinds of clients, or one if both have the same backends.
func (f *Frontend) targets() []*Target {
	if slices.Equal(f.External.Backends, f.Internal.Backends) {
		return []*Target{&f.External}
	}
	return []*Target{&f.External, &f.Internal}
}

// Entries is an upper bound of the entries that an address needs in the kernel.
func (v *VIP) Entries(m Mode) int {
	if v == nil {
		return 0
	}
	n := 2 // vips, postrouting
	var tabled *Target
	for i := range v.Frontends {
		f := &v.Frontends[i]
		n += f.entries(m)
		if f.Affinity == 0 || m == ModeIPTables {
			continue
		}
		for _, t := range f.targets() {
			if len(t.Backends) > 0 && !sameHosts(tabled, t) {
				tabled = t
				n += tableSize(len(t.Backends))
			}
		}
	}
	return n
}

// entries is an upper bound of the entries that a frontend needs in the kernel. Pods behind several
// ports share their hairpin entries.
func (f *Frontend) entries(m Mode) int {
	n := len(f.Sources)
	if m == ModeIPTables {
		return n + f.rules()
	}
	n += 3*len(f.Draining) + 1 // drain, replies, repliers; learn
	for _, t := range f.targets() {
		n += 2 * len(t.Backends) // replies, repliers
	}
	for i, t := range []*Target{&f.External, &f.Internal} {
		n += 4                   // svc, inrange, sched, roundrobin
		n += 3 * len(t.Backends) // eps, masq, hair
		if f.Affinity != 0 {
			n += 1 + len(t.Backends) // table, back
		}
		if s := f.schedule(t); f.Affinity == 0 && s.Table && len(t.Backends) > 0 && (i == 0 || !sameBackends(f)) {
			n += s.slots(len(t.Backends))
		}
	}
	return n
}

// rules is an upper bound of the iptables rules that a frontend needs.
func (f *Frontend) rules() int {
	n := 0
	for _, t := range []*Target{&f.External, &f.Internal} {
		n += 4 + len(t.Backends)
		if f.Affinity != 0 {
			n += 4 * len(t.Backends) // a rule, a chain of three, and a set
		}
	}
	return n
}

// Refused is an error of [Proxy.Set]: everything in the State is set except these addresses. An
// address that was forwarded before still is, unchanged; a new one is not.
type Refused struct {
	Refusals []Refusal // sorted by address
}

// A Refusal is why one address is not forwarded as the State says.
type Refusal struct {
	VIP *VIP
	Err error
}

func (r *Refused) Error() string {
	lines := make([]string, len(r.Refusals))
	for i, one := range r.Refusals {
		lines[i] = fmt.Sprintf("vip %s is refused: %v", one.VIP.Addr, one.Err)
	}
	return strings.Join(lines, "\n")
}

// Refusals has the addresses that are refused while a State is set.
type Refusals map[netip.Addr]Refusal

func (r Refusals) Add(v *VIP, err error) { r[v.Addr] = Refusal{v, err} }

// Err is nil if nothing was refused.
func (r Refusals) Err() error {
	if len(r) == 0 {
		return nil
	}
	all := make([]Refusal, 0, len(r))
	for _, one := range r {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Refusal) int { return a.VIP.Addr.Compare(b.VIP.Addr) })
	return &Refused{all}
}

// Without returns s with the refused addresses as they are in have.
func (s State) Without(have State, refused Refusals) State {
	if len(refused) == 0 {
		return s
	}
	addrs := slices.SortedFunc(maps.Keys(refused), netip.Addr.Compare)
	s.VIPs = sortedset.PatchSet(s.VIPs, addrs, (*VIP).CompareAddr, sortedset.Equal, func(i int) (*VIP, bool) {
		if s.VIP(addrs[i]) == nil {
			return nil, false // no address of s
		}
		old := have.VIP(addrs[i])
		return old, old != nil
	})
	return s
}

// Refuse returns the changed addresses that cannot be forwarded, regardless of the kernel's state:
// invalid addresses, and addresses beyond the limits.
func (l Limits) Refuse(changes []VIPChange) Refusals {
	refused := make(Refusals)
	for _, c := range changes {
		if c.Want == nil {
			continue
		}
		if err := errors.Join(c.Want.validate(), l.Check(c.Want)); err != nil {
			refused.Add(c.Want, err)
		}
	}
	return refused
}

// RefuseTotal refuses changed addresses, the largest first, until all addresses together have at
// most Total entries. It is the last resort: package plan divides the room among namespaces before.
// have is the number of the present entries. An address without frontends is not refused, because it
// is what remains of a refused one: its few entries reject connections.
func (l Limits) RefuseTotal(have int, changes []VIPChange, refused Refusals) {
	entries := func(v *VIP) int { return v.Entries(l.Mode) }
	refuseLargest(have, l.Total, changes, refused, entries, func(n int) error {
		return fmt.Errorf("its %d entries in the kernel are more than are left: in %s mode all addresses of a node "+
			"can have %d together: use fewer ports or endpoints; the scheduler random needs the fewest entries", n,
			l.Mode, l.Total)
	})
}

// RefusePrograms refuses changed addresses, the largest first, until all addresses together have at
// most as many rules with programs as allowed. have are the addresses before the changes.
func (l Limits) RefusePrograms(have VIPs, changes []VIPChange, refused Refusals) {
	if l.Mode != ModeIPTables {
		return
	}
	total := 0
	for v := range have.All() {
		total += v.Programs()
	}
	refuseLargest(total, l.TotalPrograms, changes, refused, (*VIP).Programs, func(n int) error {
		return fmt.Errorf("rules for session affinity and the schedulers maglev and source hash: %d "+
			"more than all addresses "+
			"of a node can have in iptables mode, which is %d: choose the scheduler random without "+
			"affinity for some Services, "+
			"or use nftables mode", n, l.TotalPrograms)
	})
}

// refuseLargest refuses those of the changed addresses that need more than before, the largest first,
// until all together need at most as much. An address that was refused before keeps what it has.
func refuseLargest(have, most int, changes []VIPChange, refused Refusals, needs func(*VIP) int, why func(n int) error) {
	total := have
	var grown []VIPChange
	for _, c := range changes {
		if c.Want != nil {
			if _, is := refused[c.Want.Addr]; is {
				continue
			}
		}
		grows := needs(c.Want) - needs(c.Have)
		if total += grows; grows > 0 && len(c.Want.Frontends) > 0 {
			grown = append(grown, c)
		}
	}
	if total <= most {
		return
	}
	slices.Reverse(grown) // of several alike, the first addresses stay
	slices.SortStableFunc(grown, func(a, b VIPChange) int { return needs(b.Want) - needs(a.Want) })
	for _, c := range grown {
		if total <= most {
			return
		}
		n := needs(c.Want)
		total -= n - needs(c.Have)
		refused.Add(c.Want, why(n))
	}
}
