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

// A Kernel is what one iptables has of our chains and rules.
type Kernel struct {
	tables map[string]ChainSet
	// Others is the chains of others that ours hang in, with all rules, by table.
	Others map[string]ChainSet
}

// parseSave reads what iptables-save prints.
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

// Ours says whether a chain is the renderer's.
func Ours(name string) bool {
	return strings.HasPrefix(name, Prefix) && name != ForwardChain || strings.HasPrefix(name, MadePrefix)
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

// JumpLines are what makes each jump to us the first rule of its chain, and the only
// one; none if it is.
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

// jumps are the rules of a chain that lead to ours.
func (k Kernel) jumps(table, chain string) []string {
	var ours []string
	for _, rule := range k.Others[table][chain] {
		if Ours(ruleTarget(rule)) {
			ours = append(ours, rule)
		}
	}
	return ours
}

// first says whether nothing before the jump may take a packet from us. Calico's
// chains do not, and Calico puts them back in front of whatever comes before them.
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

// unjumpLines take all that leads to our chains out of those of others.
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

// Converge reads each family's chains and sets, and makes them want's.
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

// Differs is that of the first family that does.
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

func oddText(odd []string) string {
	if len(odd) == 0 {
		return ""
	}
	return "sets of another form: " + strings.Join(odd, ", ")
}

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

// Plan compares the kernel with a State.
func (x *Renderer) Plan(k Kernel, entries entrySet, s state.State, f state.SetID) xtPlan {
	have, want := k.tables, Chains(s, f)
	if x.loose {
		have = reworded(have, want)
	}
	p := PlanTables(have, want).Entries(entries, AllEntries(s, f))
	p.Jumps = k.JumpLines(f)
	return p
}

// reworded accepts chains with the right number of rules as the wanted ones.
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

// Damage says what a plan is to mend.
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

// AffinityPlan adds the sets that remember clients, and says whether those there are
// are right. Their entries are left to the kernel.
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

// setForms are the forms of all sets of a State, by name.
func setForms(s state.State, f state.SetID) map[string]SetForm {
	var plan xtPlan
	AffinityPlan(&plan, nil, s, f)
	for m := range IPSetCount {
		plan.Create[SetName(m, f)] = StaticForm(m, f)
	}
	return plan.Create
}

// misshapen are those of the sets that are there in another form. The kernel says so when it is
// asked to make them; those of the right form stay as they are.
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

// reform gives sets of another form the wanted form again, with the wanted entries,
// and says which. A set that rules ask can not be destroyed, but swapped with
// another of its type.
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
		// It is of another type. Without rules it can go, and they come back with it.
		if err := errors.Join(x.unload(ctx, f), DestroySet(x.Sock, name)); err != nil {
			return odd, err
		}
	}
	return odd, nil
}

// unload takes our chains of a family away.
func (x *Renderer) unload(ctx context.Context, f state.SetID) error {
	save, err := x.Programs[f].SaveAll(ctx)
	if err != nil {
		return err
	}
	return unloadPlan(save, f).runParts(func(script string, tables int) error { return x.load(ctx, f, script, tables) })
}

// unloadPlan removes all our chains and rules that iptables-save shows.
func unloadPlan(save string, f state.SetID) xtPlan {
	k := parseSave(save, f)
	p := PlanTables(k.tables, nil)
	p.Jumps = k.unjumpLines(f)
	return p
}

func (x *Renderer) createStatic(f state.SetID) error {
	for m := range IPSetCount {
		if err := CreateSet(x.Sock, SetName(m, f), StaticForm(m, f)); err != nil {
			return err
		}
	}
	return nil
}

// verify reads back what was written. An iptables that shows rules in other words
// would have us write them over and over.
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

// Remove removes our chains and rules from all iptables of this namespace, and the sets.
func (x *Renderer) Remove(ctx context.Context) error {
	return errors.Join(RemoveChains(ctx, nil), removeSets(x.Sock))
}

// RemoveChains removes them from all programs but those to keep.
func RemoveChains(ctx context.Context, keep []string) error {
	var errs []error
	for _, i := range Installed() {
		if slices.Contains(keep, i.Name) {
			continue
		}
		save, err := i.SaveAll(ctx)
		if err != nil || !strings.Contains(save, ":"+Prefix) {
			continue // what cannot be asked has nothing
		}
		errs = append(errs, unloadPlan(save, i.Family()).runParts(func(script string, _ int) error { return i.Load(ctx, script) }))
	}
	return errors.Join(errs...)
}

// DeleteChains is remove for a process without a Proxy.
func DeleteChains(ctx context.Context) error {
	s, err := nfnl.Dial()
	if err != nil {
		return err
	}
	defer s.Close()
	return errors.Join(RemoveChains(ctx, nil), removeSets(s))
}

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
