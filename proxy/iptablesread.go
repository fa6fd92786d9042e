package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// An xtKernel is what one iptables has of our chains and rules.
type xtKernel struct {
	tables map[string]chainSet
	// others is the chains of others that ours hang in, with all rules, by table.
	others map[string]chainSet
}

// parseSave reads what iptables-save prints.
func parseSave(save string, f state.SetID) xtKernel {
	k := xtKernel{tables: make(map[string]chainSet), others: make(map[string]chainSet)}
	jumps := xtJumps(f)
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			k.tables[table], k.others[table] = make(chainSet), make(chainSet)
		case strings.HasPrefix(verb, ":") && xtOurs(verb[1:]):
			k.tables[table].add(verb[1:])
		case verb == "-A":
			chain, rule, _ := strings.Cut(rest, " ")
			if xtOurs(chain) {
				k.tables[table].add(chain, rule)
			} else if jumps[table][chain] != "" {
				k.others[table].add(chain, rule)
			}
		}
	}
	return k
}

// xtOurs says whether a chain is the renderer's.
func xtOurs(name string) bool {
	return strings.HasPrefix(name, xtPrefix) && name != forwardChain || strings.HasPrefix(name, xtMade)
}

// target is the chain or verdict that a rule leads to.
func ruleTarget(rule string) string {
	words := strings.Fields(rule)
	for i, w := range words[:max(len(words)-1, 0)] {
		if w == "-j" || w == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// jumpLines are what makes each jump to us the first rule of its chain, and the only
// one; none if it is.
func (k xtKernel) jumpLines(f state.SetID) map[string][]string {
	lines := make(map[string][]string)
	for table, chains := range xtJumps(f) {
		for chain, jump := range chains {
			stale := k.jumps(table, chain)
			if len(stale) == 1 && stale[0] == jump && k.first(table, chain) {
				continue
			}
			for _, rule := range stale {
				lines[table] = append(lines[table], "-D "+chain+" "+rule)
			}
			lines[table] = append(lines[table], "-I "+chain+" 1 "+jump)
		}
		slices.Sort(lines[table])
	}
	return lines
}

// jumps are the rules of a chain that lead to ours.
func (k xtKernel) jumps(table, chain string) []string {
	var ours []string
	for _, rule := range k.others[table][chain] {
		if xtOurs(ruleTarget(rule)) {
			ours = append(ours, rule)
		}
	}
	return ours
}

// first says whether nothing before the jump may take a packet from us. Calico's
// chains do not, and Calico puts them back in front of whatever comes before them.
func (k xtKernel) first(table, chain string) bool {
	for _, rule := range k.others[table][chain] {
		target := ruleTarget(rule)
		if xtOurs(target) {
			return true
		}
		if !strings.HasPrefix(target, "cali-") {
			return false
		}
	}
	return false
}

// unjumpLines take all that leads to our chains out of those of others.
func (k xtKernel) unjumpLines(f state.SetID) map[string][]string {
	lines := make(map[string][]string)
	for table, chains := range xtJumps(f) {
		for chain := range chains {
			for _, rule := range k.jumps(table, chain) {
				lines[table] = append(lines[table], "-D "+chain+" "+rule)
			}
		}
	}
	return lines
}

// converge reads each family's chains and sets, and makes them want's.
func (x *xtRenderer) Converge(ctx context.Context, have *State, want State) (renderer.Finding, error) {
	var out renderer.Finding
	want = x.able(want)
	if have != nil {
		able := x.able(*have)
		have = &able
	}
	x.Dumped()
	names, err := setNames(x.Sock)
	if err != nil {
		return out, err
	}
	for f := range state.SetID(2) {
		if x.programs[f] == nil {
			continue
		}
		found, err := x.convergeFamily(ctx, f, names, have, want)
		out.Had = append(out.Had, found.Had...)
		out.Leaked = out.Leaked || found.Leaked
		if out.Found == "" {
			out.Found = found.Found
		}
		if err != nil {
			return out, err
		}
	}
	slices.SortFunc(out.Had, state.Element.Compare)
	x.Unsupported(unsupported(want))
	return out, nil
}

func (x *xtRenderer) convergeFamily(ctx context.Context, f state.SetID, names []string, have *State, want State) (out renderer.Finding, err error) {
	i := x.programs[f]
	odd, err := x.reform(ctx, names, want, f)
	if err != nil {
		return out, err
	}
	if len(odd) > 0 {
		out.Leaked = true
		if names, err = setNames(x.Sock); err != nil {
			return out, err
		}
	}
	k, entries, err := x.read(ctx, f)
	if err != nil {
		return out, err
	}
	out.Had = heldElements(k.tables["nat"], entries, f)
	plan := x.plan(k, entries, want, f)
	remembered := affinityPlan(&plan, names, want, f)
	script, _ := plan.script()
	clean := script == "" && len(plan.add) == 0 && len(plan.del) == 0 && remembered
	if have != nil && len(odd) > 0 {
		out.Found = oddText(odd)
	} else if have != nil && !clean {
		out.Found = i.name + ": " + x.plan(k, entries, *have, f).damage()
	}
	out.Leaked = out.Leaked || len(plan.write["raw"]) > 0 || len(plan.jumps["raw"]) > 0
	if clean {
		return out, nil
	}
	if err := x.createStatic(f); err != nil {
		return out, err
	}
	if err := x.apply(ctx, f, plan); err != nil {
		return out, err
	}
	if script == "" {
		return out, nil
	}
	return out, x.verify(ctx, f, want)
}

// differs is that of the first family that does.
func (x *xtRenderer) Differs(ctx context.Context, from State) (string, error) {
	from = x.able(from)
	x.Dumped()
	names, err := setNames(x.Sock)
	if err != nil {
		return "", err
	}
	for f := range state.SetID(2) {
		if x.programs[f] == nil {
			continue
		}
		if found, err := x.differsFamily(ctx, f, names, from); found != "" || err != nil {
			return found, err
		}
	}
	return "", nil
}

func (x *xtRenderer) differsFamily(ctx context.Context, f state.SetID, names []string, from State) (string, error) {
	if odd, err := x.misshapen(names, setForms(from, f)); len(odd) > 0 || err != nil {
		return oddText(odd), err
	}
	k, entries, err := x.read(ctx, f)
	if err != nil {
		return "", err
	}
	plan := x.plan(k, entries, from, f)
	remembered := affinityPlan(&plan, names, from, f)
	if script, _ := plan.script(); script == "" && len(plan.add) == 0 && len(plan.del) == 0 && remembered {
		return "", nil
	}
	return x.programs[f].name + ": " + plan.damage(), nil
}

func oddText(odd []string) string {
	if len(odd) == 0 {
		return ""
	}
	return "sets of another form: " + strings.Join(odd, ", ")
}

func (x *xtRenderer) read(ctx context.Context, f state.SetID) (xtKernel, entrySet, error) {
	save, err := x.programs[f].saveAll(ctx)
	if err != nil {
		return xtKernel{}, nil, err
	}
	entries := make(entrySet)
	for m := range ipsetCount {
		all, err := setEntries(x.Sock, m, f)
		if err != nil {
			return xtKernel{}, nil, err
		}
		entries.add(all...)
	}
	return parseSave(save, f), entries, nil
}

// plan compares the kernel with a State.
func (x *xtRenderer) plan(k xtKernel, entries entrySet, s State, f state.SetID) xtPlan {
	have, want := k.tables, xtState(s, f)
	if x.loose {
		have = reworded(have, want)
	}
	p := planTables(have, want).entries(entries, allEntries(s, f))
	p.jumps = k.jumpLines(f)
	return p
}

// reworded accepts chains with the right number of rules as the wanted ones.
func reworded(have, want map[string]chainSet) map[string]chainSet {
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

// damage says what a plan is to mend.
func (p xtPlan) damage() string {
	var words []string
	for _, table := range xtTables {
		if n := len(p.jumps[table]); n > 0 {
			words = append(words, fmt.Sprintf("table %s does not lead to our chains first", table))
		}
		if names := slices.Sorted(maps.Keys(p.write[table])); len(names) > 0 {
			words = append(words, fmt.Sprintf("table %s: %d chains missing or changed, such as %s", table, len(names), names[0]))
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

// affinityPlan adds the sets that remember clients, and says whether those there are
// are right. Their entries are left to the kernel.
func affinityPlan(p *xtPlan, names []string, want State, f state.SetID) bool {
	*p = p.remember(nil, want.VIPs, f)
	wanted := maps.Clone(p.create)
	for _, name := range names {
		delete(p.create, name)
	}
	for _, name := range names {
		if _, ok := wanted[name]; !ok && strings.HasPrefix(name, affinityPrefix(f)) {
			p.destroy = append(p.destroy, name)
		}
	}
	return len(p.create) == 0 && len(p.destroy) == 0
}

// setForms are the forms of all sets of a State, by name.
func setForms(s State, f state.SetID) map[string]setForm {
	var plan xtPlan
	affinityPlan(&plan, nil, s, f)
	for m := range ipsetCount {
		plan.create[setName(m, f)] = staticForm(m, f)
	}
	return plan.create
}

// misshapen are those of the sets that are there in another form. The kernel says so when it is
// asked to make them; those of the right form stay as they are.
func (x *xtRenderer) misshapen(names []string, forms map[string]setForm) (odd []string, err error) {
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

// reform gives sets of another form the wanted form again, with the wanted entries,
// and says which. A set that rules ask can not be destroyed, but swapped with
// another of its type.
func (x *xtRenderer) reform(ctx context.Context, names []string, want State, f state.SetID) (odd []string, err error) {
	forms := setForms(want, f)
	if odd, err = x.misshapen(names, forms); err != nil {
		return odd, err
	}
	entries := allEntries(want, f)
	for _, name := range odd {
		if replaceSet(x.Sock, name, forms[name], entries.in(name)) == nil {
			continue
		}
		// It is of another type. Without rules it can go, and they come back with it.
		if err := errors.Join(x.unload(ctx, f), destroySet(x.Sock, name)); err != nil {
			return odd, err
		}
	}
	return odd, nil
}

// unload takes our chains of a family away.
func (x *xtRenderer) unload(ctx context.Context, f state.SetID) error {
	save, err := x.programs[f].saveAll(ctx)
	if err != nil {
		return err
	}
	return unloadPlan(save, f).runParts(func(script string, tables int) error { return x.load(ctx, f, script, tables) })
}

// unloadPlan removes all our chains and rules that iptables-save shows.
func unloadPlan(save string, f state.SetID) xtPlan {
	k := parseSave(save, f)
	p := planTables(k.tables, nil)
	p.jumps = k.unjumpLines(f)
	return p
}

func (x *xtRenderer) createStatic(f state.SetID) error {
	for m := range ipsetCount {
		if err := createSet(x.Sock, setName(m, f), staticForm(m, f)); err != nil {
			return err
		}
	}
	return nil
}

// verify reads back what was written. An iptables that shows rules in other words
// would have us write them over and over.
func (x *xtRenderer) verify(ctx context.Context, f state.SetID, want State) error {
	k, entries, err := x.read(ctx, f)
	if err != nil {
		return err
	}
	p := x.plan(k, entries, want, f)
	if script, _ := p.script(); script == "" {
		return nil
	}
	if !x.loose {
		x.loose = true
		if p := x.plan(k, entries, want, f); len(p.write) == 0 && len(p.drop) == 0 && len(p.jumps) == 0 {
			x.Log.WarnContext(ctx, "iptables shows our rules in other words: only their number can be checked", "program", x.programs[f].name)
			return nil
		}
		x.loose = false
	}
	return fmt.Errorf("%s: after it was written: %s", x.programs[f].name, p.damage())
}

// remove removes our chains and rules from all iptables of this namespace, and the sets.
func (x *xtRenderer) Remove(ctx context.Context) error {
	return errors.Join(removeChains(ctx, nil), removeSets(x.Sock))
}

// removeChains removes them from all programs but those to keep.
func removeChains(ctx context.Context, keep []string) error {
	var errs []error
	for _, i := range xtPrograms() {
		if slices.Contains(keep, i.name) {
			continue
		}
		save, err := i.saveAll(ctx)
		if err != nil || !strings.Contains(save, ":"+xtPrefix) {
			continue // what cannot be asked has nothing
		}
		errs = append(errs, unloadPlan(save, i.family()).runParts(func(script string, _ int) error { return i.load(ctx, script) }))
	}
	return errors.Join(errs...)
}

// deleteChains is remove for a process without a Proxy.
func deleteChains(ctx context.Context) error {
	s, err := nfnl.Dial()
	if err != nil {
		return err
	}
	defer s.Close()
	return errors.Join(removeChains(ctx, nil), removeSets(s))
}

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
