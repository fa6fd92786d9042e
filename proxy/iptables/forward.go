package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// OutsidePrefixes reports whether an address of the change, before or after it, is outside the
// prefixes: a lingering address of a deleted pool. Such an address needs rules of its own.
func OutsidePrefixes(c state.VIPChange, owned []netip.Prefix) bool {
	return c.Have != nil && !sortedset.ContainsAddr(owned, c.Have.Addr) ||
		c.Want != nil && !sortedset.ContainsAddr(owned, c.Want.Addr)
}

// ForwardPrefixes returns the addresses whose flows FORWARD must accept, sorted: the prefixes of
// the pools, and the VIPs outside them. Rules by pool are fewer than rules by VIP, and change
// less often.
func ForwardPrefixes(want state.State) []netip.Prefix {
	all := slices.Clone(want.Owned)
	for v := range want.VIPs.All() {
		if !sortedset.ContainsAddr(want.Owned, v.Addr) {
			all = append(all, netip.PrefixFrom(v.Addr, v.Addr.BitLen()))
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// OpenForward makes every iptables of this network namespace accept flows to the prefixes, where
// its chain FORWARD would drop them. It returns the names of the programs that now have Fanfare's
// chain, and of the changed programs. With no prefixes, it removes that chain and the jump to
// it. If one program fails, it continues with the others.
func OpenForward(ctx context.Context, prefixes []netip.Prefix) (opened, changed []string, err error) {
	var errs []error
	for _, i := range Programs {
		open, wrote, err := i.open(ctx, prefixes)
		if err != nil {
			errs = append(errs, err)
		}
		if open {
			opened = append(opened, i.Name)
		}
		if wrote {
			changed = append(changed, i.Name)
		}
	}
	return opened, changed, errors.Join(errs...)
}

// open does that for one program. It returns whether the chain exists afterwards, and whether
// anything was written.
func (i Program) open(ctx context.Context, prefixes []netip.Prefix) (open, wrote bool, err error) {
	if has, err := i.Has(); !has || err != nil {
		return false, false, err
	}
	prefixes = slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return p.Addr().Is6() != i.ipv6 })
	f, err := i.filter(ctx)
	if err != nil {
		return false, false, err
	}
	plan := planForward(f, prefixes)
	if plan.empty() {
		return f.chain, false, nil
	}
	if err := plan.apply(ctx, i); err != nil {
		if now, err := i.filter(ctx); err == nil {
			f = now // a part may have been done
		}
		return f.chain, false, f.blame(i, prefixes, err)
	}
	if f, err = i.filter(ctx); err != nil {
		return false, true, err
	}
	if !planForward(f, prefixes).empty() {
		// Without this error, the rules would be written again and again for a version of
		// iptables that shows them differently.
		return f.chain, true, fmt.Errorf("%s: shows other rules than were written", i.Name)
	}
	return f.chain, true, nil
}

// A closedError means that FORWARD of a program drops flows to the prefixes, and could not be opened.
type closedError struct {
	program string
	err     error
}

func (e *closedError) Error() string { return e.err.Error() }
func (e *closedError) Unwrap() error { return e.err }

// blame makes an error of writing rules a closedError if FORWARD drops flows to the prefixes.
func (f *filter) blame(i Program, prefixes []netip.Prefix, err error) error {
	at, closed := f.closed()
	open := f.reached(at) > 0 && slices.Equal(ownPrefixes(f.own), prefixes)
	if closed && !open && len(prefixes) > 0 {
		return &closedError{i.Name, err}
	}
	return err
}

// ClosedBy returns the programs whose FORWARD drops flows to the prefixes, by the error of
// OpenForward. A program that could not be read is not among them.
func ClosedBy(err error) (programs []string) {
	if closed, ok := err.(*closedError); ok {
		return []string{closed.program}
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			programs = append(programs, ClosedBy(err)...)
		}
	}
	return programs
}

// filter reads the rules of FORWARD and of Fanfare's chain in table filter.
func (i Program) filter(ctx context.Context) (filter, error) {
	save, err := i.Save(ctx)
	return parseFilter(save), err
}

// A filter is the chain FORWARD of one iptables, and Fanfare's chain that it leads to.
type filter struct {
	policy string   // of FORWARD; empty: the chain does not exist
	rules  []string // of FORWARD, without the jumps to Fanfare's chain
	jumps  []jump   // of FORWARD, to Fanfare's chain
	chain  bool     // Fanfare's chain exists
	own    []string // the rules of Fanfare's chain
}

// A jump is a rule of FORWARD that leads to Fanfare's chain.
type jump struct {
	rule string
	at   int // how many rules of other programs come before it
}

const (
	// ForwardChain is the chain in table filter that accepts flows to the prefixes. It exists
	// in either proxy mode, so it is not one of the renderer's chains: see Ours.
	ForwardChain = "FANFARE-FORWARD"
	forwardJump  = `-m comment --comment "addresses of Services, by Fanfare" -j ` + ForwardChain
)

// parseFilter reads what iptables-save prints of table filter.
func parseFilter(save string) filter {
	var f filter
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		switch verb, rest, _ := strings.Cut(line, " "); {
		case verb == ":FORWARD":
			f.policy, _, _ = strings.Cut(rest, " ")
		case verb == ":"+ForwardChain:
			f.chain = true
		case verb == "-A":
			chain, rule, _ := strings.Cut(rest, " ")
			f.add(chain, rule)
		}
	}
	return f
}

func (f *filter) add(chain, rule string) {
	switch {
	case chain == ForwardChain:
		f.own = append(f.own, rule)
	case chain != "FORWARD":
	case strings.HasSuffix(rule, "-j "+ForwardChain):
		f.jumps = append(f.jumps, jump{rule: rule, at: len(f.rules)})
	default:
		f.rules = append(f.rules, rule)
	}
}

// unconditional matches a rule that applies to all packets, and captures its target.
var unconditional = regexp.MustCompile(`^(?:-m comment --comment (?:"(?:[^"\\]|\\.)*"|\S+) )*-j (\S+)(?: --reject-with \S+)?$`)

// closed reports whether FORWARD drops or rejects every packet that no rule accepts, and how many
// rules come before that. Rules that drop only some packets do not count: they are a policy,
// which applies to flows of Services too.
func (f *filter) closed() (at int, closed bool) {
	for n, rule := range f.rules {
		m := unconditional.FindStringSubmatch(rule)
		if m == nil {
			continue
		}
		switch m[1] {
		case "ACCEPT":
			return 0, false
		case "DROP", "REJECT":
			return n, true
		}
	}
	return len(f.rules), f.policy == "DROP"
}

// A forwardPlan is what to change in table filter, in the order of its fields.
type forwardPlan struct {
	fill   string     // input for iptables-restore: Fanfare's chain, in one transaction
	jumps  []jumpStep // one after the other
	remove bool       // Fanfare's chain
}

// A jumpStep changes one rule of FORWARD.
type jumpStep struct {
	verb string // of iptables: "-A", "-I" or "-D"
	at   int    // of "-I": the number that the rule gets
	rule string
}

func (p forwardPlan) empty() bool { return p.fill == "" && len(p.jumps) == 0 && !p.remove }

// planForward returns what makes FORWARD accept flows to the prefixes, or what removes Fanfare's
// chain if FORWARD accepts them anyway. The jump goes directly before the rule that drops
// everything, so that packets which earlier rules drop, such as the network policies of a CNI,
// stay dropped.
func planForward(f filter, prefixes []netip.Prefix) forwardPlan {
	at, closed := f.closed()
	if !closed || len(prefixes) == 0 {
		return forwardPlan{jumps: deletions(f.jumps), remove: f.chain}
	}
	p := forwardPlan{jumps: f.planJumps(at)}
	if !f.chain || !slices.Equal(ownPrefixes(f.own), prefixes) {
		p.fill = fillChain(prefixes)
	}
	return p
}

// fillChain returns the input for iptables-restore that makes Fanfare's chain accept flows to the
// prefixes and nothing else.
func fillChain(prefixes []netip.Prefix) string {
	var b strings.Builder
	// With --noflush, this line creates the chain, or empties it if it exists.
	fmt.Fprintf(&b, "*filter\n:%s - [0:0]\n", ForwardChain)
	for _, p := range prefixes {
		fmt.Fprintf(&b, "-A %s -m conntrack --ctstate DNAT --ctorigdst %s -j ACCEPT\n", ForwardChain, p)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// reached returns how many of the jumps packets reach: those behind the rule at have no effect.
func (f *filter) reached(at int) (n int) {
	for n < len(f.jumps) && f.jumps[n].at <= at {
		n++
	}
	return n
}

// planJumps returns the steps to one jump directly before the other rules' number at, or at the
// end. The new jump is inserted before the former ones are deleted: no packet finds FORWARD without
// a jump, and a speaker that is killed between two steps leaves one too many, for the next plan.
func (f *filter) planJumps(at int) (steps []jumpStep) {
	n := f.reached(at)
	former, behind := f.jumps[:n], f.jumps[n:]
	if n == 0 { // packets are dropped now, so the order does not matter
		return append(deletions(behind), f.insertion(at, at))
	}
	kept := former[n-1]
	if kept.at == at {
		former = former[:n-1]
	} else {
		kept = jump{rule: forwardJump, at: at}
		steps = append(steps, f.insertion(at, at+n))
	}
	// -D deletes the first rule with the same words. So all former jumps can be deleted, but no copy
	// behind the kept one: that has no effect and stays until it is the first or only one.
	behind = slices.DeleteFunc(slices.Clone(behind), func(j jump) bool { return j.rule == kept.rule })
	return append(steps, deletions(slices.Concat(former, behind))...)
}

// insertion returns the step that adds the jump before the other rules' number at, with so many
// rules and jumps before it.
func (f *filter) insertion(at, before int) jumpStep {
	if at == len(f.rules) {
		return jumpStep{verb: "-A", rule: forwardJump}
	}
	return jumpStep{verb: "-I", at: before + 1, rule: forwardJump}
}

// deletions returns the steps that delete jumps, in whatever words they are.
func deletions(jumps []jump) (steps []jumpStep) {
	for _, j := range jumps {
		steps = append(steps, jumpStep{verb: "-D", rule: j.rule})
	}
	return steps
}

// apply changes the rules of a program. It stops at the first error: every step leaves rules that
// the next plan begins with.
func (p forwardPlan) apply(ctx context.Context, i Program) error {
	if p.fill != "" {
		if err := i.restore(ctx, p.fill); err != nil {
			return err
		}
	}
	if len(p.jumps) == 0 && !p.remove {
		return nil
	}
	return i.byRule(ctx, iptablesPatience, forwardLockWait, func(t *goiptables.IPTables) error {
		for _, s := range p.jumps {
			if err := s.apply(t); err != nil {
				return err
			}
		}
		if p.remove {
			return t.ClearAndDeleteChain("filter", ForwardChain)
		}
		return nil
	})
}

func (s jumpStep) apply(t *goiptables.IPTables) error {
	words := RuleWords(s.rule)
	switch s.verb {
	case "-A":
		return t.Append("filter", "FORWARD", words...)
	case "-I":
		return t.Insert("filter", "FORWARD", s.at, words...)
	default:
		return t.DeleteIfExists("filter", "FORWARD", words...) // another program may have deleted it
	}
}

// ownRule matches a rule of Fanfare's chain as iptables-save shows it.
var ownRule = regexp.MustCompile(`^-m conntrack --ctstate DNAT --ctorigdst (\S+) -j ACCEPT$`)

// ownPrefixes returns the prefix of each rule of Fanfare's chain. For a rule that another program
// wrote there, it is invalid.
func ownPrefixes(rules []string) []netip.Prefix {
	var all []netip.Prefix
	for _, rule := range rules {
		var p netip.Prefix
		if m := ownRule.FindStringSubmatch(rule); m != nil {
			p = ParsePrefix(m[1])
		}
		all = append(all, p)
	}
	return all
}

// ParsePrefix reads a prefix or an address, which stands for the prefix of its full length: that
// is how iptables-save shows some. It returns an invalid prefix for any other text.
func ParsePrefix(s string) netip.Prefix {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, a.BitLen())
}
