package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// errRefused is why an update is tried again from what the kernel has.
var errRefused = errors.New("iptables-restore refused an update")

// An xtRenderer is the renderer that writes chains of iptables, and sets that
// they ask.
type xtRenderer struct {
	renderer.Host

	// programs are those of IPv4 and IPv6; nil where there is none that works, for
	// the reason in missing.
	programs [2]*iptables
	missing  [2]error
	// teeErr is why a family cannot redirect; nil: it can.
	teeErr [2]error
	// loose: a program shows rules in other words than they were written in.
	// Then only their number is compared.
	loose bool
}

// An xtPlan is what to do to one family.
type xtPlan struct {
	write   map[string]chainSet // by table; chains that exist are replaced
	drop    map[string][]string
	flush   map[string][]string // only emptied
	frees   map[string]int      // how many programs of the packet filter go with a chain of drop
	jumps   map[string][]string // lines for chains of others
	add     []entry
	del     []entry
	create  map[string]setForm
	destroy []string
}

func (x *xtRenderer) VIPs() ([]netip.Addr, error) {
	var all []netip.Addr
	for f := range state.SetID(2) {
		entries, err := setEntries(x.Sock, ipsetVIPs, f)
		if errors.Is(err, unix.EINVAL) {
			return nil, nil // this kernel has no sets
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, e.addr.Addr())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, nil
}

func (x *xtRenderer) Update(ctx context.Context, u renderer.Step) error {
	u.Have, u.Want = x.able(u.Have), x.able(u.Want)
	for f := range state.SetID(2) {
		plan := planStep(u, f)
		if x.programs[f] == nil {
			continue // of this family there are no addresses: lacks
		}
		if err := x.apply(ctx, f, plan); err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	x.Unsupported(unsupported(u.Want))
	return nil
}

// lacks is part of renderer.
func (x *xtRenderer) Lacks(f state.SetID) error {
	if x.programs[f] != nil {
		return nil
	}
	return fmt.Errorf("no iptables for its family: %w", x.missing[f])
}

// probe makes a chain that no packet meets, and deletes it.
func (x *xtRenderer) Probe(ctx context.Context) error {
	for _, i := range x.programs {
		if i == nil {
			continue
		}
		harmless := xtFeature{"filter", "-j DROP", "the target DROP"}
		run := func() error { return i.tryOne(ctx, harmless) }
		if i.legacy() {
			if err := run(); err != nil {
				return err
			}
		} else if err := x.IgnoringOwn(x.Sock, 2, run); err != nil {
			return err
		}
	}
	return nil
}

// planStep compares two States by what changed between them.
func planStep(u renderer.Step, f state.SetID) xtPlan {
	have, want := u.Have, u.Want
	if flagOf(have.SNAT) != flagOf(want.SNAT) || have.Node != want.Node {
		return planTables(xtState(have, f), xtState(want, f)).entries(allEntries(have, f), allEntries(want, f)).remember(have.VIPs, want.VIPs, f)
	}
	before, after := make(chainSet), make(chainSet)
	haveEntries, wantEntries := make(entrySet), make(entrySet)
	var had, has []*VIP
	leaves, strays := false, !state.SameShared(have, want) || !state.SameRedirects(have, want)
	for _, c := range u.VIPs {
		if c.Family() != f {
			continue
		}
		renderChange(c, have, before, c.Have)
		renderChange(c, want, after, c.Want)
		haveEntries.add(vipEntries(c.Have)...)
		wantEntries.add(vipEntries(c.Want)...)
		had, has = append(had, c.Have), append(has, c.Want)
		leaves = leaves || turnsTree(c)
		strays = strays || straysFrom(c, want.Owned)
	}
	if leaves {
		for _, s := range []state.Side{state.External, state.Internal} {
			xtTree(s).add(before, ofFamily(have.VIPs, f))
			xtTree(s).add(after, ofFamily(want.VIPs, f))
		}
	}
	a, b := map[string]chainSet{"nat": before}, map[string]chainSet{"nat": after}
	if strays {
		haveEntries.add(ofEntries(sharedEntries(have), f)...)
		wantEntries.add(ofEntries(sharedEntries(want), f)...)
		merge(a, xtShared(have, f))
		merge(b, xtShared(want, f))
	}
	return planTables(a, b).entries(haveEntries, wantEntries).remember(had, has, f)
}

func renderChange(c state.VipChange, s State, to chainSet, v *VIP) {
	if v != nil {
		xtRender{node: s.Node, mark: flagOf(s.SNAT)}.vip(to, v)
	}
}

// turns says whether the tree leads elsewhere after the change.
func turnsTree(c state.VipChange) bool {
	if c.Have == nil || c.Want == nil {
		return true
	}
	return slices.ContainsFunc([]state.Side{state.External, state.Internal}, func(s state.Side) bool {
		return !slices.Equal(xtLeaf(s, c.Have), xtLeaf(s, c.Want))
	})
}

func merge(to, from map[string]chainSet) {
	for table, chains := range from {
		if to[table] == nil {
			to[table] = make(chainSet)
		}
		maps.Copy(to[table], chains)
	}
}

func ofEntries(all []entry, f state.SetID) []entry {
	return slices.DeleteFunc(all, func(e entry) bool { return e.family() != f })
}

func allEntries(s State, f state.SetID) entrySet {
	all := make(entrySet)
	all.add(ofEntries(sharedEntries(s), f)...)
	for _, v := range ofFamily(s.VIPs, f) {
		all.add(vipEntries(v)...)
	}
	return all
}

// planTables compares chains.
func planTables(have, want map[string]chainSet) xtPlan {
	p := xtPlan{write: make(map[string]chainSet), drop: make(map[string][]string), frees: make(map[string]int)}
	for _, table := range xtTables {
		for name, rules := range want[table] {
			if old, ok := have[table][name]; !ok || !slices.Equal(old, rules) {
				if p.write[table] == nil {
					p.write[table] = make(chainSet)
				}
				p.write[table][name] = rules
			}
		}
		for name, rules := range have[table] {
			if _, ok := want[table][name]; !ok {
				p.drop[table] = append(p.drop[table], name)
				p.frees[name] = freedBy(rules)
			}
		}
	}
	return p
}

func (p xtPlan) entries(have, want entrySet) xtPlan {
	p.add = want.without(have)
	for _, e := range have.without(want) {
		plain := e
		plain.options = 0
		// To add an entry takes the options off one that is there.
		if !want[plain] {
			p.del = append(p.del, e)
		}
	}
	return p
}

// remember compares the sets that clients are remembered in.
func (p xtPlan) remember(have, want []*VIP, f state.SetID) xtPlan {
	before, after := make(map[string]setForm), make(map[string]setForm)
	for _, v := range have {
		affinities(before, v)
	}
	for _, v := range want {
		affinities(after, v)
	}
	p.create = make(map[string]setForm)
	for name, set := range after {
		if _, ok := before[name]; !ok && set.family == f {
			p.create[name] = set
		}
	}
	for name, set := range before {
		if _, ok := after[name]; !ok && set.family == f {
			p.destroy = append(p.destroy, name)
		}
	}
	return p
}

// script is the input for iptables-restore, and how many tables it changes.
func (p xtPlan) script() (text string, tables int) {
	var b strings.Builder
	for _, table := range xtTables {
		write, drop, flush, jumps := p.write[table], p.drop[table], p.flush[table], p.jumps[table]
		if len(write) == 0 && len(drop) == 0 && len(flush) == 0 && len(jumps) == 0 {
			continue
		}
		tables++
		names := slices.Sorted(maps.Keys(write))
		fmt.Fprintf(&b, "*%s\n", table)
		for _, name := range names {
			// This empties a chain that exists.
			fmt.Fprintf(&b, ":%s - [0:0]\n", name)
		}
		for _, name := range names {
			for _, rule := range write[name] {
				fmt.Fprintf(&b, "-A %s %s\n", name, rule)
			}
		}
		for _, line := range jumps {
			fmt.Fprintln(&b, line)
		}
		slices.Sort(drop)
		for _, name := range slices.Concat(flush, drop) {
			fmt.Fprintf(&b, "-F %s\n", name)
		}
		for _, name := range drop {
			fmt.Fprintf(&b, "-X %s\n", name)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String(), tables
}

// maxFreed is how many programs of the packet filter go in one transaction: see maxPrograms.
const maxFreed = 256

// freedBy counts the rules of a chain that have one.
func freedBy(rules []string) (n int) {
	for _, r := range rules {
		if strings.Contains(r, "-m bpf ") {
			n++
		}
	}
	return n
}

// parts splits a plan so that no part frees more than so many programs, unless one chain has
// more. Chains that go are emptied in parts and deleted in the last: until then one may lead
// to another.
func (p xtPlan) parts(most int) []xtPlan {
	total := 0
	for _, n := range p.frees {
		total += n
	}
	if total <= most {
		return []xtPlan{p}
	}
	var all []xtPlan
	part, freed := p, 0
	part.drop, part.flush = nil, make(map[string][]string)
	for _, table := range xtTables {
		for _, name := range slices.Sorted(slices.Values(p.drop[table])) {
			n := p.frees[name]
			if n == 0 {
				continue
			}
			if freed > 0 && freed+n > most {
				all = append(all, part)
				part, freed = xtPlan{flush: make(map[string][]string)}, 0
			}
			part.flush[table] = append(part.flush[table], name)
			freed += n
		}
	}
	return append(all, part, xtPlan{drop: p.drop})
}

// runParts has a program of iptables do what the parts of a plan say.
func (p xtPlan) runParts(run func(script string, tables int) error) error {
	for i, part := range p.parts(maxFreed) {
		if i > 0 {
			nfnl.AwaitPackets() // the kernel frees what a transaction deleted after a grace period
		}
		if script, tables := part.script(); script != "" {
			if err := run(script, tables); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply does what a plan says, in an order in which no VIP that is forwarded before
// and after goes without: a rule finds the sets that it asks, an address is in
// fanfare-vips when all rules for it are there, and a prefix is in fanfare-owned
// when its VIPs are known.
func (x *xtRenderer) apply(ctx context.Context, f state.SetID, p xtPlan) error {
	start := time.Now()
	script, _ := p.script()
	if script == "" && len(p.add) == 0 && len(p.del) == 0 && len(p.create) == 0 && len(p.destroy) == 0 {
		return nil
	}
	first, last := splitEntries(p.add)
	if err := x.createSets(p.create); err != nil {
		return err
	}
	if err := changeEntries(x.Sock, ipsetAdd, first); err != nil {
		return err
	}
	if err := p.runParts(func(script string, tables int) error { return x.load(ctx, f, script, tables) }); err != nil {
		return err
	}
	if err := changeEntries(x.Sock, ipsetAdd, last); err != nil {
		return err
	}
	// Backwards: prefixes go before their VIPs do.
	slices.Reverse(p.del)
	if err := changeEntries(x.Sock, ipsetDel, p.del); err != nil {
		return err
	}
	for _, name := range p.destroy {
		if err := destroySet(x.Sock, name); err != nil {
			return err
		}
	}
	x.Changed(time.Since(start))
	return nil
}

// splitEntries separates entries that rules may match at once from entries that lead
// packets to rules.
func splitEntries(all []entry) (first, last []entry) {
	for _, e := range all {
		if e.set == ipsetVIPs || e.set == ipsetOwned {
			last = append(last, e)
		} else {
			first = append(first, e)
		}
	}
	return first, last
}

func (x *xtRenderer) createSets(all map[string]setForm) error {
	for name, form := range all {
		if err := createSet(x.Sock, name, form); err != nil {
			return err
		}
	}
	return nil
}

// load runs iptables-restore without receiving its own notifications.
func (x *xtRenderer) load(ctx context.Context, f state.SetID, script string, tables int) error {
	i := x.programs[f]
	run := func() error { return i.load(ctx, script) }
	if i.legacy() {
		return run() // it sends no notifications
	}
	return x.IgnoringOwn(x.Sock, uint32(tables), run)
}
