package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// ErrRefused wraps an error of Update. Part of the update may be in the kernel, so the proxy reads
// the rules and converges from what it finds.
var ErrRefused = errors.New("iptables-restore refused an update")

// A Renderer implements [renderer.Renderer] with chains of iptables and sets of ipset. Find must be
// called before it can write rules.
type Renderer struct {
	renderer.Host

	// Programs are the chosen programs of IPv4 and IPv6; nil where none works, for the reason
	// in missing.
	Programs [2]*Program
	missing  [2]error
	// teeErr is why a family cannot redirect; nil if it can.
	teeErr [2]error
	// loose says that a program shows rules differently than they were written. Then only the
	// number of rules of each chain is compared.
	loose bool
}

// An xtPlan is the changes to one family. Maps of chains are by table.
type xtPlan struct {
	write   map[string]chainSet // chains to write; existing ones are replaced
	drop    map[string][]string // chains to delete
	flush   map[string][]string // chains to empty only
	frees   map[string]int      // how many BPF programs are deleted with a chain of Drop
	jumps   map[string][]string // lines of input that change the kernel's built-in chains
	repairs bool                // table nat did not lead to the chains
	add     []setEntry
	del     []setEntry
	create  map[string]setForm // affinity sets to create, by name
	destroy []string           // affinity sets to delete
}

// VIPs reads the addresses from the sets of VIPs. On a kernel without ipset there are none.
func (x *Renderer) VIPs() ([]netip.Addr, error) {
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

// Update writes the difference of the step, IPv4 first. Each table is a transaction, but the
// whole update is not one: see apply for the order. Redirects that the kernel cannot do are left
// out.
func (x *Renderer) Update(ctx context.Context, u renderer.Step) error {
	u.Have, u.Want = x.able(u.Have), x.able(u.Want)
	for f := range state.SetID(2) {
		plan := planStep(u, f)
		if x.Programs[f] == nil {
			continue // Lacks keeps addresses of this family out of the State
		}
		if err := x.apply(ctx, f, plan); err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	x.Unsupported(unsupportedBy(u.Want))
	return nil
}

// Lacks returns why no program of the family works, nil if one does.
func (x *Renderer) Lacks(f state.SetID) error {
	if x.Programs[f] != nil {
		return nil
	}
	return fmt.Errorf("no iptables for its family: %w", x.missing[f])
}

// Probe loads a chain that no packet reaches, and deletes it, with each program in use.
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

// planStep returns the changes of a step for one family, from the VIPs that changed and without
// comparing the others. A change of the mark or of the node's name affects the chains of all VIPs,
// so then it compares everything.
func planStep(u renderer.Step, f state.SetID) xtPlan {
	have, want := u.Have, u.Want
	if flagOf(have.SNAT) != flagOf(want.SNAT) || have.Node != want.Node {
		return planTables(chainsOf(have, f), chainsOf(want, f)).entries(allEntries(have, f), allEntries(want, f)).
			remember(affinityForms(ofFamily(have.VIPs, f)), affinityForms(ofFamily(want.VIPs, f)))
	}
	before, after := make(chainSet), make(chainSet)
	haveEntries, wantEntries := make(entrySet), make(entrySet)
	var had, has []*state.VIP
	leaves, outside := false, !state.SameShared(have, want) || !slices.Equal(have.Redirects, want.Redirects)
	for _, c := range u.VIPs {
		if c.Family() != f {
			continue
		}
		renderChange(have, before, c.Have)
		renderChange(want, after, c.Want)
		haveEntries.add(vipEntries(c.Have)...)
		wantEntries.add(vipEntries(c.Want)...)
		had, has = append(had, c.Have), append(has, c.Want)
		leaves = leaves || affectsTree(c)
		outside = outside || OutsidePrefixes(c, want.Owned)
	}
	haveEntries.add(replyEntries(u.Elements.Del, f)...)
	wantEntries.add(replyEntries(u.Elements.Add, f)...)
	if leaves {
		allHad, allHas := ofFamily(have.VIPs, f), ofFamily(want.VIPs, f)
		for _, s := range []state.Side{state.External, state.Internal} {
			xtTree(s).add(before, allHad)
			xtTree(s).add(after, allHas)
		}
	}
	a, b := map[string]chainSet{"nat": before}, map[string]chainSet{"nat": after}
	if outside {
		haveEntries.add(ofEntries(sharedEntries(have), f)...)
		wantEntries.add(ofEntries(sharedEntries(want), f)...)
		merge(a, xtShared(have, f))
		merge(b, xtShared(want, f))
	}
	return planTables(a, b).entries(haveEntries, wantEntries).remember(affinityForms(had), affinityForms(has))
}

// renderChange adds the chains of one side of a change; none for nil.
func renderChange(s state.State, to chainSet, v *state.VIP) {
	if v != nil {
		render{node: s.Node, mark: flagOf(s.SNAT)}.vip(to, v)
	}
}

// affectsTree reports whether the change affects a rule of the trees. Then they are compared whole:
// a VIP that comes or goes can move the branches of its neighbours.
func affectsTree(c state.VIPChange) bool {
	if c.Have == nil || c.Want == nil {
		return true
	}
	return slices.ContainsFunc([]state.Side{state.External, state.Internal}, func(s state.Side) bool {
		return !slices.Equal(xtLeaf(s, c.Have), xtLeaf(s, c.Want))
	})
}

// merge copies chains into to, by table.
func merge(to, from map[string]chainSet) {
	for table, chains := range from {
		if to[table] == nil {
			to[table] = make(chainSet)
		}
		maps.Copy(to[table], chains)
	}
}

// ofEntries returns the entries of one family. It reuses the memory of all.
func ofEntries(all []setEntry, f state.SetID) []setEntry {
	return slices.DeleteFunc(all, func(e setEntry) bool { return e.family() != f })
}

// allEntries returns the entries of all static sets of a family for a State.
func allEntries(s state.State, f state.SetID) entrySet {
	all := make(entrySet)
	all.add(ofEntries(sharedEntries(s), f)...)
	for _, v := range ofFamily(s.VIPs, f) {
		all.add(vipEntries(v)...)
	}
	all.add(replyEntries(state.RepliesOf(s.VIPs).Elements(), f)...)
	return all
}

// planTables returns the changes from the chains have to want, by table. Unknown chains in have
// are deleted; jumps to them must go in the same input, or the kernel rejects it.
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

// entries returns p with the changes of entries from have to want.
func (p xtPlan) entries(have, want entrySet) xtPlan {
	p.add = want.without(have)
	for _, e := range have.without(want) {
		plain := e
		plain.options = 0
		// Adding an entry replaces one with options, so that one needs no deletion, which would
		// take the wanted entry with it.
		if !want[plain] {
			p.del = append(p.del, e)
		}
	}
	return p
}

// remember returns p with the changes of affinity sets from have to want. Entries are the kernel's:
// rules add them, and they expire.
func (p xtPlan) remember(have, want map[string]setForm) xtPlan {
	p.create = maps.Clone(want)
	for name := range have {
		if _, ok := want[name]; !ok {
			p.destroy = append(p.destroy, name)
		}
		delete(p.create, name)
	}
	return p
}

// clean reports whether the plan changes nothing.
func (p xtPlan) clean() bool {
	script, _ := p.script()
	return script == "" && len(p.add) == 0 && len(p.del) == 0 && len(p.create) == 0 && len(p.destroy) == 0
}

// apply writes a plan in an order that does not interrupt a VIP which is forwarded before and
// after. A set exists before the rules that use it, since the kernel rejects a rule that names an
// unknown set. An address enters fanfare-vips after all its rules, and a prefix fanfare-owned
// after its VIPs: otherwise FANFARE-UNASSIGNED would take their packets.
func (x *Renderer) apply(ctx context.Context, f state.SetID, p xtPlan) error {
	start := time.Now()
	if p.clean() {
		return nil
	}
	first, last := splitEntries(p.add)
	if err := createSets(x.Sock, p.create); err != nil {
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
	// In reverse order: prefixes are deleted before their VIPs.
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

// splitEntries separates entries that rules may match at once (first) from entries that lead
// packets to new rules (last).
func splitEntries(all []setEntry) (first, last []setEntry) {
	for _, e := range all {
		if e.set == ipsetVIPs || e.set == ipsetOwned {
			last = append(last, e)
		} else {
			first = append(first, e)
		}
	}
	return first, last
}
