package iptables

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

// A Kernel holds the chains and rules that one program shows. It is exported for the tests of
// package proxy.
type Kernel struct {
	tables map[string]ChainSet // Fanfare's chains, by table
	// Others holds the built-in chains that lead to Fanfare's, with all their rules, by table.
	Others map[string]ChainSet
}

// parseSave reads what iptables-save prints of all tables.
func parseSave(save string, f state.SetID) Kernel {
	k := Kernel{tables: make(map[string]ChainSet), Others: make(map[string]ChainSet)}
	jumps := Jumps(f)
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			k.tables[table], k.Others[table] = make(ChainSet), make(ChainSet)
		case strings.HasPrefix(verb, ":") && Ours(verb[1:]):
			k.tables[table].Add(verb[1:])
		case verb == "-A":
			chain, rule, _ := strings.Cut(rest, " ")
			if Ours(chain) {
				k.tables[table].Add(chain, rule)
			} else if jumps[table][chain] != "" {
				k.Others[table].Add(chain, rule)
			}
		}
	}
	return k
}

// Ours reports whether a chain is one of the renderer's, by its name. FANFARE-FORWARD is not: it
// belongs to OpenForward, in either mode.
func Ours(name string) bool {
	return strings.HasPrefix(name, Prefix) && name != ForwardChain || strings.HasPrefix(name, MadePrefix)
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

// JumpLines returns the lines of input that make each jump to Fanfare's chains the first rule of
// its chain, by table; none for a jump that is first and the only one. It is exported for the
// tests of package proxy.
func (k Kernel) JumpLines(f state.SetID) map[string][]string {
	lines := make(map[string][]string)
	for table, chains := range Jumps(f) {
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

// jumps returns the rules of a chain that lead to Fanfare's.
func (k Kernel) jumps(table, chain string) []string {
	var ours []string
	for _, rule := range k.Others[table][chain] {
		if Ours(ruleTarget(rule)) {
			ours = append(ours, rule)
		}
	}
	return ours
}

// first reports whether no rule before the jump can take a packet that is Fanfare's. Jumps to
// Calico's chains may come first: they take none, and Calico moves them back to the front again
// and again.
func (k Kernel) first(table, chain string) bool {
	for _, rule := range k.Others[table][chain] {
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
func (k Kernel) unjumpLines(f state.SetID) map[string][]string {
	lines := make(map[string][]string)
	for table, chains := range Jumps(f) {
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
	names, err := SetNames(x.Sock)
	if err != nil {
		return out, err
	}
	for f := range state.SetID(2) {
		if x.Programs[f] == nil {
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
	x.Unsupported(Unsupported(want))
	return out, nil
}

// convergeFamily converges one family, and reads back what it wrote. Damage is reported only if
// have is known, and against have: a difference from want alone is an ordinary change.
func (x *Renderer) convergeFamily(ctx context.Context, f state.SetID, names []string, have *state.State, want state.State) (out renderer.Finding, err error) {
	i := x.Programs[f]
	odd, err := x.reform(ctx, names, want, f)
	if err != nil {
		return out, err
	}
	if len(odd) > 0 {
		out.Leaked = true
		if names, err = SetNames(x.Sock); err != nil {
			return out, err
		}
	}
	k, entries, err := x.Read(ctx, f)
	if err != nil {
		return out, err
	}
	out.Had = HeldElements(k.tables["nat"], entries, f)
	plan := x.Plan(k, entries, want, f)
	remembered := AffinityPlan(&plan, names, want, f)
	script, _ := plan.Script()
	clean := script == "" && len(plan.Add) == 0 && len(plan.Del) == 0 && remembered
	if have != nil && len(odd) > 0 {
		out.Found = oddText(odd)
	} else if have != nil && !clean {
		out.Found = i.Name + ": " + x.Plan(k, entries, *have, f).Damage()
	}
	out.Leaked = out.Leaked || len(plan.Write["raw"]) > 0 || len(plan.Jumps["raw"]) > 0
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

// Differs describes how the first family that differs does so, with the program's name.
func (x *Renderer) Differs(ctx context.Context, from state.State) (string, error) {
	from = x.able(from)
	x.Dumped()
	names, err := SetNames(x.Sock)
	if err != nil {
		return "", err
	}
	for f := range state.SetID(2) {
		if x.Programs[f] == nil {
			continue
		}
		if found, err := x.differsFamily(ctx, f, names, from); found != "" || err != nil {
			return found, err
		}
	}
	return "", nil
}

func (x *Renderer) differsFamily(ctx context.Context, f state.SetID, names []string, from state.State) (string, error) {
	if odd, err := x.misshapen(names, setForms(from, f)); len(odd) > 0 || err != nil {
		return oddText(odd), err
	}
	k, entries, err := x.Read(ctx, f)
	if err != nil {
		return "", err
	}
	plan := x.Plan(k, entries, from, f)
	remembered := AffinityPlan(&plan, names, from, f)
	if script, _ := plan.Script(); script == "" && len(plan.Add) == 0 && len(plan.Del) == 0 && remembered {
		return "", nil
	}
	return x.Programs[f].Name + ": " + plan.Damage(), nil
}

// oddText describes sets of another form, for Finding.Found.
func oddText(odd []string) string {
	if len(odd) == 0 {
		return ""
	}
	return "sets of another form: " + strings.Join(odd, ", ")
}

// Read reads Fanfare's chains and the entries of the static sets of a family. The two are not one
// snapshot. It is exported for the tests of package proxy.
func (x *Renderer) Read(ctx context.Context, f state.SetID) (Kernel, entrySet, error) {
	save, err := x.Programs[f].SaveAll(ctx)
	if err != nil {
		return Kernel{}, nil, err
	}
	entries := make(entrySet)
	for m := range IPSetCount {
		all, err := setEntries(x.Sock, m, f)
		if err != nil {
			return Kernel{}, nil, err
		}
		entries.Add(all...)
	}
	return parseSave(save, f), entries, nil
}

// Plan returns the changes from what was read to a State, without those of affinity sets. It is
// exported for the tests of package proxy.
func (x *Renderer) Plan(k Kernel, entries entrySet, s state.State, f state.SetID) xtPlan {
	have, want := k.tables, Chains(s, f)
	if x.loose {
		have = reworded(have, want)
	}
	p := PlanTables(have, want).Entries(entries, AllEntries(s, f))
	p.Jumps = k.JumpLines(f)
	return p
}

// reworded returns have, in which a chain with the wanted number of rules has the wanted rules.
func reworded(have, want map[string]ChainSet) map[string]ChainSet {
	out := make(map[string]ChainSet)
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

// Damage describes the differences that a plan repairs, with one example of each kind. It is for
// logs and the status.
func (p xtPlan) Damage() string {
	var words []string
	for _, table := range xtTables {
		if n := len(p.Jumps[table]); n > 0 {
			words = append(words, fmt.Sprintf("table %s does not lead to our chains first", table))
		}
		if names := slices.Sorted(maps.Keys(p.Write[table])); len(names) > 0 {
			words = append(words, fmt.Sprintf("table %s: %d chains missing or changed, such as %s", table, len(names), names[0]))
		}
		if names := slices.Sorted(slices.Values(p.Drop[table])); len(names) > 0 {
			words = append(words, fmt.Sprintf("table %s: %d unknown chains, such as %s", table, len(names), names[0]))
		}
	}
	if len(p.Add) > 0 {
		words = append(words, fmt.Sprintf("%d entries missing, such as %s", len(p.Add), p.Add[0]))
	}
	if len(p.Del) > 0 {
		words = append(words, fmt.Sprintf("%d unknown entries, such as %s", len(p.Del), p.Del[0]))
	}
	if len(words) == 0 {
		return "sets missing"
	}
	return strings.Join(words, "; ")
}

// AffinityPlan adds the changes of affinity sets to a plan, and reports whether there are none.
// names are the sets that exist. Entries are the kernel's: rules add them, and they expire. It is
// exported for the tests of package proxy.
func AffinityPlan(p *xtPlan, names []string, want state.State, f state.SetID) bool {
	*p = p.Remember(nil, want.VIPs, f)
	wanted := maps.Clone(p.Create)
	for _, name := range names {
		delete(p.Create, name)
	}
	for _, name := range names {
		if _, ok := wanted[name]; !ok && strings.HasPrefix(name, AffinityPrefix(f)) {
			p.Destroy = append(p.Destroy, name)
		}
	}
	return len(p.Create) == 0 && len(p.Destroy) == 0
}

// setForms returns the forms of all sets of a State, by name.
func setForms(s state.State, f state.SetID) map[string]SetForm {
	var plan xtPlan
	AffinityPlan(&plan, nil, s, f)
	for m := range IPSetCount {
		plan.Create[SetName(m, f)] = StaticForm(m, f)
	}
	return plan.Create
}

// misshapen returns the sets that exist in another form. To find them, it creates each set again:
// the kernel accepts that without effect for a set of the same form, and otherwise returns EEXIST.
func (x *Renderer) misshapen(names []string, forms map[string]SetForm) (odd []string, err error) {
	for _, name := range names {
		form, ok := forms[name]
		if !ok {
			continue
		}
		switch err := CreateSet(x.Sock, name, form); {
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
func (x *Renderer) reform(ctx context.Context, names []string, want state.State, f state.SetID) (odd []string, err error) {
	forms := setForms(want, f)
	if odd, err = x.misshapen(names, forms); err != nil {
		return odd, err
	}
	entries := AllEntries(want, f)
	for _, name := range odd {
		if ReplaceSet(x.Sock, name, forms[name], entries.in(name)) == nil {
			continue
		}
		// It is of another type, and can be deleted only without rules. Converge then writes
		// the rules and the set again; until then, the family is not forwarded.
		if err := errors.Join(x.unload(ctx, f), DestroySet(x.Sock, name)); err != nil {
			return odd, err
		}
	}
	return odd, nil
}

// unload deletes Fanfare's chains of a family, and the jumps to them.
func (x *Renderer) unload(ctx context.Context, f state.SetID) error {
	save, err := x.Programs[f].SaveAll(ctx)
	if err != nil {
		return err
	}
	return unloadPlan(save, f).runParts(func(script string, tables int) error { return x.load(ctx, f, script, tables) })
}

// unloadPlan returns the plan that deletes all Fanfare's chains which iptables-save shows.
func unloadPlan(save string, f state.SetID) xtPlan {
	k := parseSave(save, f)
	p := PlanTables(k.tables, nil)
	p.Jumps = k.unjumpLines(f)
	return p
}

// createStatic creates the static sets of a family that do not exist.
func (x *Renderer) createStatic(f state.SetID) error {
	for m := range IPSetCount {
		if err := CreateSet(x.Sock, SetName(m, f), StaticForm(m, f)); err != nil {
			return err
		}
	}
	return nil
}

// verify reads back what was written. Where a program shows rules differently than they were
// written, it makes comparisons loose, so that the rules are not written again and again.
func (x *Renderer) verify(ctx context.Context, f state.SetID, want state.State) error {
	k, entries, err := x.Read(ctx, f)
	if err != nil {
		return err
	}
	p := x.Plan(k, entries, want, f)
	if script, _ := p.Script(); script == "" {
		return nil
	}
	if !x.loose {
		x.loose = true
		if p := x.Plan(k, entries, want, f); len(p.Write) == 0 && len(p.Drop) == 0 && len(p.Jumps) == 0 {
			x.Log.WarnContext(ctx, "iptables shows our rules in other words: only their number can be checked", "program", x.Programs[f].Name)
			return nil
		}
		x.loose = false
	}
	return fmt.Errorf("%s: after it was written: %s", x.Programs[f].Name, p.Damage())
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
		save, err := i.SaveAll(ctx)
		if err != nil || !strings.Contains(save, ":"+Prefix) {
			continue // usually the kernel lacks the program's interface: then it has no rules
		}
		errs = append(errs, unloadPlan(save, i.Family()).runParts(func(script string, _ int) error { return i.Load(ctx, script) }))
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
	names, err := SetNames(s)
	if errors.Is(err, unix.EINVAL) {
		return nil // this kernel has no sets
	}
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, DestroySet(s, name))
	}
	return errors.Join(errs...)
}
