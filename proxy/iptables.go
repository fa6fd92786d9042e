package proxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// An iptables is one of the four that a kernel can have rules of: two families,
// and for each of them two places, which know nothing of one another. A packet
// must pass both.
type iptables struct {
	name string // of the program; -save and -restore are added
	ipv6 bool
	// tables is a file that lists the tables there are, if to ask for one by the
	// program would make it. Only the old interface has that.
	tables string
}

var allIPTables = []iptables{
	{name: "iptables-nft"},
	{name: "iptables-legacy", tables: "/proc/thread-self/net/ip_tables_names"},
	{name: "ip6tables-nft", ipv6: true},
	{name: "ip6tables-legacy", ipv6: true, tables: "/proc/thread-self/net/ip6_tables_names"},
}

// has says whether there can be rules for FORWARD, and a program to see them by.
func (i iptables) has() (bool, error) {
	if _, err := exec.LookPath(i.name + "-save"); err != nil {
		return false, nil
	}
	if i.tables == "" {
		return true, nil
	}
	tables, err := os.ReadFile(i.tables)
	// A kernel without the old interface; or a user namespace that is as old as its
	// network, in which the file has no owner, and iptables-legacy-save fails too.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return slices.Contains(strings.Fields(string(tables)), "filter"), err
}

// save is the table filter as text.
func (i iptables) save(ctx context.Context) (string, error) {
	return i.run(ctx, "", "-save", "-t", "filter")
}

// restore changes what script names and nothing else, in one transaction. It
// waits a second at most for others that change the old tables: meanwhile no
// endpoint changes, and it will be tried again.
func (i iptables) restore(ctx context.Context, script string) error {
	_, err := i.run(ctx, script, "-restore", "--noflush", "-w", "1")
	return err
}

// iptablesPatience bounds what a program of iptables may take.
const iptablesPatience = 5 * time.Second

func (i iptables) run(ctx context.Context, input, suffix string, args ...string) (string, error) {
	return i.runFor(ctx, iptablesPatience, input, suffix, args...)
}

func (i iptables) runFor(ctx context.Context, patience time.Duration, input, suffix string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out, complaint strings.Builder
	cmd := exec.CommandContext(ctx, i.name+suffix, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s%s: %w: %s", i.name, suffix, err, firstLines(complaint.String(), 3))
	}
	return out.String(), nil
}

// A filter is what one iptables does to forwarded packets, and what of that is
// ours.
type filter struct {
	policy string   // of FORWARD; empty: there is no such chain
	rules  []string // of FORWARD, others' alone
	jumps  []jump   // of FORWARD, to our chain
	chain  bool     // ours is there
	own    []string // its rules
}

// A jump is a rule of FORWARD that leads to our chain.
type jump struct {
	rule string
	at   int // how many of the others' rules come before it
}

const (
	forwardChain = "FANFARE-FORWARD"
	forwardJump  = `-m comment --comment "addresses of Services, by Fanfare" -j ` + forwardChain
)

// parseFilter reads what iptables-save prints.
func parseFilter(save string) filter {
	var f filter
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		switch verb, rest, _ := strings.Cut(line, " "); {
		case verb == ":FORWARD":
			f.policy, _, _ = strings.Cut(rest, " ")
		case verb == ":"+forwardChain:
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
	case chain == forwardChain:
		f.own = append(f.own, rule)
	case chain != "FORWARD":
	case strings.HasSuffix(rule, "-j "+forwardChain):
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

// planForward is the input for iptables-restore that makes FORWARD accept the flows
// to the prefixes, where it would drop them, and that takes our chain away where
// there is nothing to accept. It is empty if nothing must change.
//
// The jump is the last rule before FORWARD drops everything: what others drop
// before, such as the network policies of a CNI, stays dropped.
func planForward(f filter, prefixes []netip.Prefix) string {
	at, closed := f.closed()
	if !closed || len(prefixes) == 0 {
		return f.without()
	}
	if len(f.jumps) == 1 && f.jumps[0].at == at && slices.Equal(ownPrefixes(f.own), prefixes) {
		return ""
	}
	var b strings.Builder
	// The line with the chain's name empties it.
	fmt.Fprintf(&b, "*filter\n:%s - [0:0]\n", forwardChain)
	for _, p := range prefixes {
		fmt.Fprintf(&b, "-A %s -m conntrack --ctstate DNAT --ctorigdst %s -j ACCEPT\n", forwardChain, p)
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
		fmt.Fprintf(&b, "-F %[1]s\n-X %[1]s\n", forwardChain)
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

// ownPrefixes are those of the rules of our chain; an invalid one stands for a rule
// that is not ours.
func ownPrefixes(rules []string) []netip.Prefix {
	var all []netip.Prefix
	for _, rule := range rules {
		var p netip.Prefix
		if m := ownRule.FindStringSubmatch(rule); m != nil {
			p = parsePrefix(m[1])
		}
		all = append(all, p)
	}
	return all
}

// parsePrefix reads a prefix, which is shown as an address if that is all it is. It
// returns an invalid one for what is neither.
func parsePrefix(s string) netip.Prefix {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, a.BitLen())
}
