package iptables

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

// ErrRefused is why an update is tried again from what the kernel has.
var ErrRefused = errors.New("iptables-restore refused an update")

// A Renderer is the renderer that writes chains of iptables, and sets that
// they ask.
type Renderer struct {
	renderer.Host

	// Programs are those of IPv4 and IPv6; nil where there is none that works, for
	// the reason in missing.
	Programs [2]*Program
	missing  [2]error
	// teeErr is why a family cannot redirect; nil: it can.
	teeErr [2]error
	// loose: a program shows rules in other words than they were written in.
	// Then only their number is compared.
	loose bool
}

// An xtPlan is what to do to one family.
type xtPlan struct {
	Write   map[string]ChainSet // by table; chains that exist are replaced
	Drop    map[string][]string
	flush   map[string][]string // only emptied
	frees   map[string]int      // how many programs of the packet filter go with a chain of drop
	Jumps   map[string][]string // lines for chains of others
	Add     []Entry
	Del     []Entry
	Create  map[string]SetForm
	Destroy []string
}

func (x *Renderer) VIPs() ([]netip.Addr, error) {
	var all []netip.Addr
	for f := range state.SetID(2) {
		entries, err := setEntries(x.Sock, IPSetVIPs, f)
		if errors.Is(err, unix.EINVAL) {
			return nil, nil // this kernel has no sets
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, e.Addr.Addr())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, nil
}

func (x *Renderer) Update(ctx context.Context, u renderer.Step) error {
	u.Have, u.Want = x.able(u.Have), x.able(u.Want)
	for f := range state.SetID(2) {
		plan := PlanStep(u, f)
		if x.Programs[f] == nil {
			continue // of this family there are no addresses: lacks
		}
		if err := x.apply(ctx, f, plan); err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	x.Unsupported(Unsupported(u.Want))
	return nil
}

// Lacks is part of renderer.
func (x *Renderer) Lacks(f state.SetID) error {
	if x.Programs[f] != nil {
		return nil
	}
	return fmt.Errorf("no iptables for its family: %w", x.missing[f])
}

// Probe makes a chain that no packet meets, and deletes it.
func (x *Renderer) Probe(ctx context.Context) error {
	for _, i := range x.Programs {
		if i == nil {
			continue
		}
		harmless := xtFeature{"filter", "-j DROP", "the target DROP"}
		run := func() error { return i.tryOne(ctx, harmless) }
		if i.Legacy() {
			if err := run(); err != nil {
				return err
			}
		} else if err := x.IgnoringOwn(x.Sock, 2, run); err != nil {
			return err
		}
	}
	return nil
}

// PlanStep compares two States by what changed between them.
func PlanStep(u renderer.Step, f state.SetID) xtPlan {
	have, want := u.Have, u.Want
	if flagOf(have.SNAT) != flagOf(want.SNAT) || have.Node != want.Node {
		return PlanTables(Chains(have, f), Chains(want, f)).Entries(AllEntries(have, f), AllEntries(want, f)).Remember(have.VIPs, want.VIPs, f)
	}
	before, after := make(ChainSet), make(ChainSet)
	haveEntries, wantEntries := make(entrySet), make(entrySet)
	var had, has []*state.VIP
	leaves, strays := false, !state.SameShared(have, want) || !state.SameRedirects(have, want)
	for _, c := range u.VIPs {
		if c.Family() != f {
			continue
		}
		renderChange(c, have, before, c.Have)
		renderChange(c, want, after, c.Want)
		haveEntries.Add(vipEntries(c.Have)...)
		wantEntries.Add(vipEntries(c.Want)...)
		had, has = append(had, c.Have), append(has, c.Want)
		leaves = leaves || turnsTree(c)
		strays = strays || StraysFrom(c, want.Owned)
	}
	if leaves {
		for _, s := range []state.Side{state.External, state.Internal} {
			xtTree(s).Add(before, OfFamily(have.VIPs, f))
			xtTree(s).Add(after, OfFamily(want.VIPs, f))
		}
	}
	a, b := map[string]ChainSet{"nat": before}, map[string]ChainSet{"nat": after}
	if strays {
		haveEntries.Add(ofEntries(sharedEntries(have), f)...)
		wantEntries.Add(ofEntries(sharedEntries(want), f)...)
		merge(a, xtShared(have, f))
		merge(b, xtShared(want, f))
	}
	return PlanTables(a, b).Entries(haveEntries, wantEntries).Remember(had, has, f)
}

func renderChange(c state.VipChange, s state.State, to ChainSet, v *state.VIP) {
	if v != nil {
		Render{Node: s.Node, Mark: flagOf(s.SNAT)}.VIP(to, v)
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

func merge(to, from map[string]ChainSet) {
	for table, chains := range from {
		if to[table] == nil {
			to[table] = make(ChainSet)
		}
		maps.Copy(to[table], chains)
	}
}

func ofEntries(all []Entry, f state.SetID) []Entry {
	return slices.DeleteFunc(all, func(e Entry) bool { return e.family() != f })
}

func AllEntries(s state.State, f state.SetID) entrySet {
	all := make(entrySet)
	all.Add(ofEntries(sharedEntries(s), f)...)
	for _, v := range OfFamily(s.VIPs, f) {
		all.Add(vipEntries(v)...)
	}
	return all
}

// PlanTables compares chains.
func PlanTables(have, want map[string]ChainSet) xtPlan {
	p := xtPlan{Write: make(map[string]ChainSet), Drop: make(map[string][]string), frees: make(map[string]int)}
	for _, table := range xtTables {
		for name, rules := range want[table] {
			if old, ok := have[table][name]; !ok || !slices.Equal(old, rules) {
				if p.Write[table] == nil {
					p.Write[table] = make(ChainSet)
				}
				p.Write[table][name] = rules
			}
		}
		for name, rules := range have[table] {
			if _, ok := want[table][name]; !ok {
				p.Drop[table] = append(p.Drop[table], name)
				p.frees[name] = freedBy(rules)
			}
		}
	}
	return p
}

func (p xtPlan) Entries(have, want entrySet) xtPlan {
	p.Add = want.Without(have)
	for _, e := range have.Without(want) {
		plain := e
		plain.options = 0
		// To add an entry takes the options off one that is there.
		if !want[plain] {
			p.Del = append(p.Del, e)
		}
	}
	return p
}

// Remember compares the sets that clients are remembered in.
func (p xtPlan) Remember(have, want []*state.VIP, f state.SetID) xtPlan {
	before, after := make(map[string]SetForm), make(map[string]SetForm)
	for _, v := range have {
		affinities(before, v)
	}
	for _, v := range want {
		affinities(after, v)
	}
	p.Create = make(map[string]SetForm)
	for name, set := range after {
		if _, ok := before[name]; !ok && set.Family == f {
			p.Create[name] = set
		}
	}
	for name, set := range before {
		if _, ok := after[name]; !ok && set.Family == f {
			p.Destroy = append(p.Destroy, name)
		}
	}
	return p
}

// Script is the input for iptables-restore, and how many tables it changes.
func (p xtPlan) Script() (text string, tables int) {
	var b strings.Builder
	for _, table := range xtTables {
		write, drop, flush, jumps := p.Write[table], p.Drop[table], p.flush[table], p.Jumps[table]
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

// MaxFreed is how many programs of the packet filter go in one transaction: see maxPrograms.
const MaxFreed = 256

// freedBy counts the rules of a chain that have one.
func freedBy(rules []string) (n int) {
	for _, r := range rules {
		if strings.Contains(r, "-m bpf ") {
			n++
		}
	}
	return n
}

// Parts splits a plan so that no part frees more than so many programs, unless one chain has
// more. Chains that go are emptied in parts and deleted in the last: until then one may lead
// to another.
func (p xtPlan) Parts(most int) []xtPlan {
	total := 0
	for _, n := range p.frees {
		total += n
	}
	if total <= most {
		return []xtPlan{p}
	}
	var all []xtPlan
	part, freed := p, 0
	part.Drop, part.flush = nil, make(map[string][]string)
	for _, table := range xtTables {
		for _, name := range slices.Sorted(slices.Values(p.Drop[table])) {
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
	return append(all, part, xtPlan{Drop: p.Drop})
}

// runParts has a program of iptables do what the parts of a plan say.
func (p xtPlan) runParts(run func(script string, tables int) error) error {
	for i, part := range p.Parts(MaxFreed) {
		if i > 0 {
			nfnl.AwaitPackets() // the kernel frees what a transaction deleted after a grace period
		}
		if script, tables := part.Script(); script != "" {
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
func (x *Renderer) apply(ctx context.Context, f state.SetID, p xtPlan) error {
	start := time.Now()
	script, _ := p.Script()
	if script == "" && len(p.Add) == 0 && len(p.Del) == 0 && len(p.Create) == 0 && len(p.Destroy) == 0 {
		return nil
	}
	first, last := splitEntries(p.Add)
	if err := x.createSets(p.Create); err != nil {
		return err
	}
	if err := ChangeEntries(x.Sock, CommandAdd, first); err != nil {
		return err
	}
	if err := p.runParts(func(script string, tables int) error { return x.load(ctx, f, script, tables) }); err != nil {
		return err
	}
	if err := ChangeEntries(x.Sock, CommandAdd, last); err != nil {
		return err
	}
	// Backwards: prefixes go before their VIPs do.
	slices.Reverse(p.Del)
	if err := ChangeEntries(x.Sock, CommandDel, p.Del); err != nil {
		return err
	}
	for _, name := range p.Destroy {
		if err := DestroySet(x.Sock, name); err != nil {
			return err
		}
	}
	x.Changed(time.Since(start))
	return nil
}

// splitEntries separates entries that rules may match at once from entries that lead
// packets to rules.
func splitEntries(all []Entry) (first, last []Entry) {
	for _, e := range all {
		if e.Set == IPSetVIPs || e.Set == IPSetOwned {
			last = append(last, e)
		} else {
			first = append(first, e)
		}
	}
	return first, last
}

func (x *Renderer) createSets(all map[string]SetForm) error {
	for name, form := range all {
		if err := CreateSet(x.Sock, name, form); err != nil {
			return err
		}
	}
	return nil
}

// load runs iptables-restore without receiving its own notifications.
func (x *Renderer) load(ctx context.Context, f state.SetID, script string, tables int) error {
	i := x.Programs[f]
	run := func() error { return i.Load(ctx, script) }
	if i.Legacy() {
		return run() // it sends no notifications
	}
	return x.IgnoringOwn(x.Sock, uint32(tables), run)
}
