package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// strays says whether the address is in none of the prefixes, as one of a pool that
// was deleted and that still lingers.
func StraysFrom(c state.VipChange, owned []netip.Prefix) bool {
	return c.Have != nil && !state.ContainsAddr(owned, c.Have.Addr) || c.Want != nil && !state.ContainsAddr(owned, c.Want.Addr)
}

// ForwardPrefixes are the addresses whose flows must pass. One prefix for a pool
// is less for every packet to walk along than its VIPs, and changes less often.
func ForwardPrefixes(want state.State) []netip.Prefix {
	all := slices.Clone(want.Owned)
	for _, v := range want.VIPs {
		if !state.ContainsAddr(want.Owned, v.Addr) {
			all = append(all, netip.PrefixFrom(v.Addr, v.Addr.BitLen()))
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// OpenForward makes every iptables of this namespace accept the flows to the
// prefixes where it would drop them. It returns the names of the iptables that have a
// rule for that, and of the changed ones. With no prefixes it removes our chain and rules.
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

// open says whether our rule is there afterwards, and whether anything was
// written.
func (i Program) open(ctx context.Context, prefixes []netip.Prefix) (open, wrote bool, err error) {
	if has, err := i.Has(); !has || err != nil {
		return false, false, err
	}
	prefixes = slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return p.Addr().Is6() != i.ipv6 })
	f, err := i.Filter(ctx)
	if err != nil {
		return false, false, err
	}
	script := PlanForward(f, prefixes)
	if script == "" {
		return f.chain, false, nil
	}
	if err := i.restore(ctx, script); err != nil {
		return f.chain, false, err
	}
	if f, err = i.Filter(ctx); err != nil {
		return false, true, err
	}
	if PlanForward(f, prefixes) != "" {
		// Without this an iptables that shows rules in other words would have us
		// write them over and over.
		return f.chain, true, fmt.Errorf("%s: shows other rules than were written", i.Name)
	}
	return f.chain, true, nil
}

func (i Program) Filter(ctx context.Context) (filter, error) {
	save, err := i.Save(ctx)
	return ParseFilter(save), err
}

// A filter is what one iptables does to forwarded packets, and what of that is
// ours.
type filter struct {
	policy string   // of FORWARD; empty: there is no such chain
	rules  []string // of FORWARD, others' alone
	jumps  []jump   // of FORWARD, to our chain
	chain  bool     // ours is there
	Own    []string // its rules
}

// A jump is a rule of FORWARD that leads to our chain.
type jump struct {
	rule string
	at   int // how many of the others' rules come before it
}

const (
	ForwardChain = "FANFARE-FORWARD"
	forwardJump  = `-m comment --comment "addresses of Services, by Fanfare" -j ` + ForwardChain
)

// ParseFilter reads what iptables-save prints.
func ParseFilter(save string) filter {
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
		f.Own = append(f.Own, rule)
	case chain != "FORWARD":
	case strings.HasSuffix(rule, "-j "+ForwardChain):
		f.jumps = append(f.jumps, jump{rule: rule, at: len(f.rules)})
	default:
		f.rules = append(f.rules, rule)
	}
}

// unconditional matches a rule for all packets, and its target.
var unconditional = regexp.MustCompile(`^(?:-m comment --comment (?:"(?:[^"\\]|\\.)*"|\S+) )*-j (\S+)(?: --reject-with \S+)?$`)

// closed says whether FORWARD drops or rejects whatever it does not accept for a
// reason, and how many rules come before it does. Rules that drop for a reason
// do not count: they are a policy, which holds for our packets as for all others.
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

// PlanForward is the input for iptables-restore that makes FORWARD accept the flows
// to the prefixes, where it would drop them, and that takes our chain away where
// there is nothing to accept. It is empty if nothing must change.
//
// The jump is the last rule before FORWARD drops everything: what others drop
// before, such as the network policies of a CNI, stays dropped.
func PlanForward(f filter, prefixes []netip.Prefix) string {
	at, closed := f.closed()
	if !closed || len(prefixes) == 0 {
		return f.without()
	}
	if len(f.jumps) == 1 && f.jumps[0].at == at && slices.Equal(OwnPrefixes(f.Own), prefixes) {
		return ""
	}
	var b strings.Builder
	// The line with the chain's name empties it.
	fmt.Fprintf(&b, "*filter\n:%s - [0:0]\n", ForwardChain)
	for _, p := range prefixes {
		fmt.Fprintf(&b, "-A %s -m conntrack --ctstate DNAT --ctorigdst %s -j ACCEPT\n", ForwardChain, p)
	}
	f.unjump(&b)
	if at == len(f.rules) {
		fmt.Fprintf(&b, "-A FORWARD %s\n", forwardJump)
	} else {
		fmt.Fprintf(&b, "-I FORWARD %d %s\n", at+1, forwardJump)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// without removes our chain.
func (f *filter) without() string {
	if !f.chain && len(f.jumps) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("*filter\n")
	f.unjump(&b)
	if f.chain {
		fmt.Fprintf(&b, "-F %[1]s\n-X %[1]s\n", ForwardChain)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

func (f *filter) unjump(b *strings.Builder) {
	for _, j := range f.jumps {
		fmt.Fprintf(b, "-D FORWARD %s\n", j.rule)
	}
}

// ownRule matches a rule of our chain as iptables-save shows it.
var ownRule = regexp.MustCompile(`^-m conntrack --ctstate DNAT --ctorigdst (\S+) -j ACCEPT$`)

// OwnPrefixes are those of the rules of our chain; an invalid one stands for a rule
// that is not ours.
func OwnPrefixes(rules []string) []netip.Prefix {
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

// ParsePrefix reads a prefix, which is shown as an address if that is all it is. It
// returns an invalid one for what is neither.
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
