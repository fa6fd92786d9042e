package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A ruleset holds the chains and rules that one program shows, and the sets of its family.
type ruleset struct {
	tables map[string]chainSet // Fanfare's chains, by table
	// others holds the built-in chains that lead to Fanfare's, with all their rules, by table.
	others map[string]chainSet
	// entries are those of the static sets, and names those of all sets.
	entries entrySet
	names   []string
}

// builtin are the kernel's chains that may lead to Fanfare's.
var builtin = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// parseSave reads what iptables-save prints of all tables.
func parseSave(save string) ruleset {
	k := ruleset{tables: make(map[string]chainSet), others: make(map[string]chainSet)}
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			k.tables[table], k.others[table] = make(chainSet), make(chainSet)
		case strings.HasPrefix(verb, ":") && Ours(verb[1:]):
			k.tables[table].add(verb[1:])
		case verb == "-A":
			chain, rule, _ := strings.Cut(rest, " ")
			if Ours(chain) {
				k.tables[table].add(chain, rule)
			} else if slices.Contains(builtin, chain) {
				k.others[table].add(chain, rule)
			}
		}
	}
	return k
}

// Ours reports whether a chain is one of the renderer's, by its name. FANFARE-FORWARD is not: it
// belongs to OpenForward, in either mode.
func Ours(name string) bool {
	return strings.HasPrefix(name, staticPrefix) && name != ForwardChain || strings.HasPrefix(name, madePrefix)
}

// ruleTarget returns the chain or target of a rule; empty if it has none.
func ruleTarget(rule string) string {
	words := strings.Fields(rule)
	for i, w := range words[:max(len(words)-1, 0)] {
		if w == "-j" || w == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// jumpLines returns the lines of input that make each jump to Fanfare's chains the first rule of
// its chain, by table; none for a jump that is first and the only one.
func (k ruleset) jumpLines(f state.SetID) map[string][]string {
	lines := make(map[string][]string)
	for table, chains := range Jumps[f] {
		for chain, jump := range chains {
			stale := k.jumps(table, chain)
			if slices.Equal(stale, jump) && k.first(table, chain) {
				continue
			}
			for _, rule := range stale {
				lines[table] = append(lines[table], "-D "+chain+" "+rule)
			}
			lines[table] = append(lines[table], "-I "+chain+" 1 "+jump[0])
		}
		slices.Sort(lines[table])
	}
	return lines
}

// jumps returns the rules of a chain that lead to Fanfare's.
func (k ruleset) jumps(table, chain string) []string {
	var ours []string
	for _, rule := range k.others[table][chain] {
		if Ours(ruleTarget(rule)) {
			ours = append(ours, rule)
		}
	}
	return ours
}

// first reports whether no rule before the jump can take a packet that is Fanfare's. Jumps to
// Calico's chains may come first: they take none, and Calico moves them back to the front again
// and again.
func (k ruleset) first(table, chain string) bool {
	for _, rule := range k.others[table][chain] {
		target := ruleTarget(rule)
		if Ours(target) {
			return true
		}
		if !strings.HasPrefix(target, "cali-") {
			return false
		}
	}
	return false
}

// unjumpLines returns the lines of input that delete all jumps to Fanfare's chains, by table.
func (k ruleset) unjumpLines() map[string][]string {
	lines := make(map[string][]string)
	for table, chains := range k.others {
		for chain := range chains {
			for _, rule := range k.jumps(table, chain) {
				lines[table] = append(lines[table], "-D "+chain+" "+rule)
			}
		}
	}
	return lines
}

// Converge reads each family's chains and sets and changes what differs from want. Redirects that
// the kernel cannot do are left out of both States. IPv4 comes first; an error ends the call, with
// what was found until then.
func (x *Renderer) Converge(ctx context.Context, have *state.State, want state.State) (renderer.Finding, error) {
	var out renderer.Finding
	want = x.able(want)
	if have != nil {
		able := x.able(*have)
		have = &able
	}
	x.Dumped()
	for f := range state.SetID(2) {
		if x.Programs[f] == nil {
			continue
		}
		found, err := x.convergeFamily(ctx, f, have, want)
		out.Had = append(out.Had, found.Had...)
		out.Leaked = out.Leaked || found.Leaked
		out.Found = cmp.Or(out.Found, found.Found)
		if err != nil {
			return out, err
		}
	}
	slices.SortFunc(out.Had, state.Element.Compare)
	x.Unsupported(unsupportedBy(want))
	return out, nil
}

// convergeFamily converges one family, and reads back what it wrote. Damage is reported only if
// have is known, and against have: a difference from want alone is an ordinary change.
func (x *Renderer) convergeFamily(ctx context.Context, f state.SetID, have *state.State,
	want state.State) (out renderer.Finding, err error) {
	odd, err := x.reform(ctx, want, f)
	if err != nil {
		return out, err
	}
	k, err := x.read(ctx, f)
	if err != nil {
		return out, err
	}
	out.Had = readElements(k.tables["nat"], k.entries, f)
	plan := x.plan(k, want, f)
	if have != nil && len(odd) > 0 {
		out.Found = describeMismatch(odd)
	} else if have != nil && !plan.clean() {
		out.Found = x.Programs[f].Name + ": " + x.plan(k, *have, f).damage()
	}
	out.Leaked = len(odd) > 0 || len(plan.write["raw"]) > 0 || len(plan.jumps["raw"]) > 0
	if plan.clean() {
		return out, nil
	}
	if err := createSets(x.Sock, staticForms(f)); err != nil {
		return out, err
	}
	if err := x.apply(ctx, f, plan); err != nil {
		return out, err
	}
	if script, _ := plan.script(); script == "" {
		return out, nil
	}
	return out, x.verify(ctx, f, want)
}

// Differs describes how the first family that differs does so, with the program's name.
func (x *Renderer) Differs(ctx context.Context, from state.State) (string, error) {
	from = x.able(from)
	x.Dumped()
	for f := range state.SetID(2) {
		if x.Programs[f] == nil {
			continue
		}
		if found, err := x.differsFamily(ctx, f, from); found != "" || err != nil {
			return found, err
		}
	}
	return "", nil
}

func (x *Renderer) differsFamily(ctx context.Context, f state.SetID, from state.State) (string, error) {
	k, err := x.read(ctx, f)
	if err != nil {
		return "", err
	}
	if odd, err := x.setsWithWrongParams(k.names, setForms(from, f)); len(odd) > 0 || err != nil {
		return describeMismatch(odd), err
	}
	if plan := x.plan(k, from, f); !plan.clean() {
		return x.Programs[f].Name + ": " + plan.damage(), nil
	}
	return "", nil
}

// describeMismatch describes sets of another form, for Finding.Found; empty if there are none.
func describeMismatch(odd []string) string {
	if len(odd) == 0 {
		return ""
	}
	return "sets of another form: " + strings.Join(odd, ", ")
}

// read reads Fanfare's chains and sets of a family. They are not one snapshot.
func (x *Renderer) read(ctx context.Context, f state.SetID) (k ruleset, err error) {
	save, err := x.Programs[f].saveAll(ctx)
	if err != nil {
		return k, err
	}
	k = parseSave(save)
	if k.names, err = setNames(x.Sock); err != nil {
		return k, err
	}
	k.entries = make(entrySet)
	for m := range ipsetCount {
		all, err := setEntries(x.Sock, m, f)
		if err != nil {
			return k, err
		}
		k.entries.add(all...)
	}
	return k, nil
}

// plan returns the changes from what was read to a State.
func (x *Renderer) plan(k ruleset, s state.State, f state.SetID) xtPlan {
	have, want := k.tables, chainsOf(s, f)
	if x.loose {
		have = normalizeRules(have, want)
	}
	p := planTables(have, want).entries(k.entries, allEntries(s, f)).
		remember(affinitySets(k.names, f), affinityForms(ofFamily(s.VIPs, f)))
	p.jumps = k.jumpLines(f)
	p.repairs = len(p.jumps["nat"]) > 0
	return p
}

// normalizeRules returns have, in which a chain with the wanted number of rules has the wanted rules.
func normalizeRules(have, want map[string]chainSet) map[string]chainSet {
	out := make(map[string]chainSet)
	for table, chains := range have {
		out[table] = maps.Clone(chains)
		for name, rules := range chains {
			if w, ok := want[table][name]; ok && len(w) == len(rules) {
				out[table][name] = w
			}
		}
	}
	return out
}

// damage describes the differences that a plan repairs, with one example of each kind. It is for
// logs and the status.
func (p xtPlan) damage() string {
	var words []string
	for _, table := range xtTables {
		if n := len(p.jumps[table]); n > 0 {
			words = append(words, fmt.Sprintf("table %s does not lead to our chains first", table))
		}
		if names := slices.Sorted(maps.Keys(p.write[table])); len(names) > 0 {
			words = append(words, fmt.Sprintf("table %s: %d chains missing or changed, such as %s", table, len(names),
				names[0]))
		}
		if names := slices.Sorted(slices.Values(p.drop[table])); len(names) > 0 {
			words = append(words, fmt.Sprintf("table %s: %d unknown chains, such as %s", table, len(names), names[0]))
		}
	}
	if len(p.add) > 0 {
		words = append(words, fmt.Sprintf("%d entries missing, such as %s", len(p.add), p.add[0]))
	}
	if len(p.del) > 0 {
		words = append(words, fmt.Sprintf("%d unknown entries, such as %s", len(p.del), p.del[0]))
	}
	if len(words) == 0 {
		return "sets missing"
	}
	return strings.Join(words, "; ")
}

// affinitySets returns those of the names that are affinity sets of a family, as far as they are known.
func affinitySets(names []string, f state.SetID) map[string]setForm {
	all := make(map[string]setForm)
	for _, name := range names {
		if strings.HasPrefix(name, affinityPrefix(f)) {
			all[name] = setForm{}
		}
	}
	return all
}

// staticForms returns the forms of the sets that a family always has, by name.
func staticForms(f state.SetID) map[string]setForm {
	all := make(map[string]setForm)
	for m := range ipsetCount {
		all[setName(m, f)] = staticForm(m, f)
	}
	return all
}

// setForms returns the forms of all sets of a State, by name.
func setForms(s state.State, f state.SetID) map[string]setForm {
	all := staticForms(f)
	maps.Copy(all, affinityForms(ofFamily(s.VIPs, f)))
	return all
}

// setsWithWrongParams returns the sets that exist in another form. To find them, it creates each set again:
// the kernel accepts that without effect for a set of the same form, and otherwise returns EEXIST.
func (x *Renderer) setsWithWrongParams(names []string, forms map[string]setForm) (odd []string, err error) {
	for _, name := range names {
		form, ok := forms[name]
		if !ok {
			continue
		}
		switch err := createSet(x.Sock, name, form); {
		case errors.Is(err, unix.EEXIST):
			odd = append(odd, name)
		case err != nil:
			return odd, err
		}
	}
	return odd, nil
}

// reform replaces sets of another form by sets of the wanted form with the wanted entries, and
// returns their names. The kernel does not delete a set that rules use, but swaps it with another
// of its type.
func (x *Renderer) reform(ctx context.Context, want state.State, f state.SetID) (odd []string, err error) {
	names, err := setNames(x.Sock)
	if err != nil {
		return nil, err
	}
	forms := setForms(want, f)
	if odd, err = x.setsWithWrongParams(names, forms); err != nil {
		return odd, err
	}
	entries := allEntries(want, f)
	for _, name := range odd {
		if replaceSet(x.Sock, name, forms[name], entries.in(name)) == nil {
			continue
		}
		// It is of another type, and can be deleted only without rules. Converge then writes
		// the rules and the set again; until then, the family is not forwarded.
		if err := errors.Join(x.unload(ctx, f), destroySet(x.Sock, name)); err != nil {
			return odd, err
		}
	}
	return odd, nil
}

// unload deletes Fanfare's chains of a family, and the jumps to them.
func (x *Renderer) unload(ctx context.Context, f state.SetID) error {
	save, err := x.Programs[f].saveAll(ctx)
	if err != nil {
		return err
	}
	return unloadPlan(save).runParts(func(script string, tables int) error { return x.load(ctx, f, script, tables) })
}

// unloadPlan returns the plan that deletes all Fanfare's chains which iptables-save shows.
func unloadPlan(save string) xtPlan {
	k := parseSave(save)
	p := planTables(k.tables, nil)
	p.jumps = k.unjumpLines()
	return p
}

// verify reads back what was written. Where a program shows rules differently than they were
// written, it makes comparisons loose, so that the rules are not written again and again.
func (x *Renderer) verify(ctx context.Context, f state.SetID, want state.State) error {
	k, err := x.read(ctx, f)
	if err != nil {
		return err
	}
	p := x.plan(k, want, f)
	if script, _ := p.script(); script == "" {
		return nil
	}
	if !x.loose {
		x.loose = true
		if p := x.plan(k, want, f); len(p.write) == 0 && len(p.drop) == 0 && len(p.jumps) == 0 {
			x.Log.WarnContext(ctx, "iptables shows our rules in other words: only their number can be checked",
				"program", x.Programs[f].Name)
			return nil
		}
		x.loose = false
	}
	return fmt.Errorf("%s: after it was written: %s", x.Programs[f].Name, p.damage())
}

// Remove deletes Fanfare's chains and jumps from all installed programs, also those not in use,
// and then the sets. Chain FANFARE-FORWARD stays: OpenForward removes it.
func (x *Renderer) Remove(ctx context.Context) error {
	return errors.Join(RemoveChains(ctx, nil), removeSets(x.Sock))
}

// RemoveChains deletes Fanfare's chains and jumps from all installed programs but those named in
// keep. Rules may be in several after the node's default has changed.
func RemoveChains(ctx context.Context, keep []string) error {
	var errs []error
	for _, i := range Installed() {
		if slices.Contains(keep, i.Name) {
			continue
		}
		save, err := i.saveAll(ctx)
		if err != nil && i.interfaceMissing() {
			continue // then it has no rules
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("rules of %s may remain: %w", i.Name, err))
			continue
		}
		if !strings.Contains(save, ":"+staticPrefix) {
			continue
		}
		errs = append(errs, unloadPlan(save).runParts(func(script string, _ int) error { return i.load(ctx, script) }))
	}
	return errors.Join(errs...)
}

// DeleteChains does what Remove does, for a process without a Proxy, such as a clean-up command.
func DeleteChains(ctx context.Context) error {
	s, err := nfnl.Dial()
	if err != nil {
		return err
	}
	defer s.Close()
	return errors.Join(RemoveChains(ctx, nil), removeSets(s))
}

// removeSets deletes all sets of Fanfare. Rules that use them must be gone.
func removeSets(s *nfnl.Socket) error {
	names, err := setNames(s)
	if errors.Is(err, unix.EINVAL) {
		return nil // this kernel has no sets
	}
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, destroySet(s, name))
	}
	return errors.Join(errs...)
}
