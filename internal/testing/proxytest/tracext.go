package proxytest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// xtRules are the rules of iptables and ip6tables, in the words of iptables-save or of
// what iptables-restore takes, and the sets that they ask. As with nft, the interpreter
// refuses what it does not know.
type xtRules [2]*xtFamily

type xtFamily struct {
	tables map[string]map[string][]nftRule // by table and chain
	sets   map[string]map[xtKey]bool
}

// An xtKey is an entry of a set.
type xtKey struct {
	addr netip.Prefix
	port state.Port
	net  netip.Prefix
}

// xtHooks are the tables and chains of each hook in the order in which the kernel
// asks them, as far as we have rules there.
var xtHooks = map[string][][2]string{
	"prerouting":  {{"raw", "PREROUTING"}, {"mangle", "PREROUTING"}, {"nat", "PREROUTING"}},
	"input":       {{"mangle", "INPUT"}, {"filter", "INPUT"}},
	"forward":     {{"mangle", "FORWARD"}, {"filter", "FORWARD"}},
	"output":      {{"mangle", "OUTPUT"}, {"nat", "OUTPUT"}, {"filter", "OUTPUT"}},
	"postrouting": {{"nat", "POSTROUTING"}},
}

func (r xtRules) hook(name string, p *Packet, n *NodeView, c *chooser) fate {
	f := r[state.Family(p.Dst.Addr())]
	for _, at := range xtHooks[name] {
		table, chain := at[0], at[1]
		if table == "nat" && !natAsked(p, name) {
			continue
		}
		switch v := (&nftRun{chains: f.tables[table], p: p, node: n, c: c, hook: name}).chain(chain); v.kind {
		case "", "accept":
		case "drop":
			return dropped
		case "reset":
			return reset
		default:
			return unreachable
		}
	}
	return passes
}

// ParseXT reads what xtText writes: the rules of each family, then entries of sets.
func ParseXT(text string) (xtRules, error) {
	var r xtRules
	var of state.SetID
	var table string
	for f := range r {
		r[f] = newXTFamily(state.SetID(f))
	}
	lines := strings.Split(text, "\n")
	// Rules come before the sets that they ask.
	for _, line := range lines {
		if name, entry, _ := strings.Cut(line, " "); strings.HasPrefix(name, xtSetPrefix) {
			f := r[strings.Index("46", name[strings.IndexAny(name, "46"):][:1])]
			if err := f.entry(name, entry); err != nil {
				return r, fmt.Errorf("%s: %w", line, err)
			}
		}
	}
	for _, line := range lines {
		verb, rest, _ := strings.Cut(line, " ")
		var err error
		switch {
		case line == "# IPv4" || line == "# IPv6":
			of = state.SetID(strings.Index("46", line[len(line)-1:]))
		case line == "" || line == "COMMIT" || verb == "#" || strings.HasPrefix(verb, xtSetPrefix):
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			r[of].tables[table] = make(map[string][]nftRule)
		case strings.HasPrefix(line, ":"):
			r[of].tables[table][verb[1:]] = nil
		case verb == "-A" || verb == "-I":
			chain, rule, _ := strings.Cut(rest, " ")
			err = r[of].rule(table, chain, strings.TrimPrefix(rule, "1 "), verb == "-I")
		default:
			err = fmt.Errorf("no idea what this is")
		}
		if err != nil {
			return r, fmt.Errorf("table %s, %s: %w", table, line, err)
		}
	}
	return r, nil
}

// quoted is what is between quotes in a rule, and xtWords are the words of one.
var quoted = regexp.MustCompile(`"[^"]*"|\S+`)

func xtWords(rule string) []string {
	all := quoted.FindAllString(rule, -1)
	for i, w := range all {
		all[i] = strings.Trim(w, `"`)
	}
	return all
}

func newXTFamily(f state.SetID) *xtFamily {
	x := &xtFamily{tables: make(map[string]map[string][]nftRule), sets: make(map[string]map[xtKey]bool)}
	for name := range xtSets {
		x.sets[xtSetPrefix+name+string("46"[f])] = make(map[xtKey]bool)
	}
	return x
}

// entry reads "192.0.2.1,tcp:80,10.0.0.0/8", or how long a set of affinity remembers.
func (f *xtFamily) entry(set, text string) error {
	if f.sets[set] == nil {
		f.sets[set] = make(map[xtKey]bool)
	}
	parts := strings.Split(text, ",")
	k := xtKey{addr: xtPrefix(parts[0])}
	if !k.addr.IsValid() {
		if strings.Contains(set, "-aff") {
			return nil
		}
		return fmt.Errorf("no address")
	}
	if len(parts) > 1 {
		proto, number, _ := strings.Cut(parts[1], ":")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || sceneProtocols[proto] == nil {
			return fmt.Errorf("no port: %s", parts[1])
		}
		k.port = state.Port{Proto: sceneProtocols[proto][0], Port: uint16(n)}
	}
	if len(parts) > 2 {
		k.net = xtPrefix(parts[2])
	}
	f.sets[set][k] = true
	return nil
}

// rule reads one rule.
func (f *xtFamily) rule(table, chain, text string, first bool) error {
	in := &xtReader{family: f, table: table, words: xtWords(text)}
	var rule nftRule
	for len(in.words) > 0 {
		part, err := in.part()
		if err != nil {
			return err
		}
		rule = append(rule, part)
	}
	all := f.tables[table][chain]
	if first {
		f.tables[table][chain] = append([]nftRule{rule}, all...)
	} else {
		f.tables[table][chain] = append(all, rule)
	}
	return nil
}

// An xtReader takes the words of a rule one by one.
type xtReader struct {
	family *xtFamily
	table  string
	words  []string
}

func (in *xtReader) next() string {
	if len(in.words) == 0 {
		return ""
	}
	w := in.words[0]
	in.words = in.words[1:]
	return w
}

// options takes the next words if they are options with these names, and returns their
// arguments.
func (in *xtReader) options(names ...string) (args []string, err error) {
	for _, name := range names {
		if got := in.next(); got != name {
			return nil, fmt.Errorf("%q; want %s", got, name)
		}
		args = append(args, in.next())
	}
	return args, nil
}

func (in *xtReader) take(word string) bool {
	if len(in.words) == 0 || in.words[0] != word {
		return false
	}
	in.words = in.words[1:]
	return true
}

// test is a part that is missed where is does not hold, or where it does after "!".
func test(not bool, is func(*nftRun) bool) nftStatement {
	return func(x *nftRun) nftVerdict {
		if is(x) == not {
			return nftVerdict{kind: "miss"}
		}
		return nftVerdict{}
	}
}

// target reads what a rule does with the packet, which depends on the table.
func (in *xtReader) target(how, name string) (nftStatement, error) {
	if _, ok := in.family.tables[in.table][name]; ok {
		return say(map[string]string{"-g": "goto", "-j": "jump"}[how], name), nil
	}
	if how != "-j" {
		return nil, fmt.Errorf("no chain %s", name)
	}
	switch in.table + " " + name {
	case "filter DROP", "filter ACCEPT", "filter RETURN", "mangle DROP", "mangle RETURN", "raw RETURN", "raw ACCEPT",
		"nat RETURN", "nat ACCEPT":
		return say(strings.ToLower(name), ""), nil
	case "filter REJECT":
		return in.reject()
	case "raw CT":
		return func(x *nftRun) nftVerdict { x.p.ct.state = "untracked"; return nftVerdict{} }, in.all("--notrack")
	case "nat MARK":
		args, err := in.options("--set-xmark")
		if err != nil {
			return nil, err
		}
		m, err := parseXTMark(args[0])
		return func(x *nftRun) nftVerdict { x.p.mark = x.p.mark&^m.Mask ^ m.Value; return nftVerdict{} }, err
	case "nat SET":
		// What it notes is for later packets, of which there are none here.
		args, err := in.options("--add-set")
		if err == nil && in.family.sets[args[0]] == nil {
			err = fmt.Errorf("no set %s", args[0])
		}
		if err != nil {
			return nil, err
		}
		return say("", ""), in.all("src")
	case "nat DNAT":
		return in.translate("--to-destination", dnatXT)
	case "nat SNAT":
		return in.translate("--to-source", snat)
	case "nat MASQUERADE":
		return masquerade, in.ports()
	case "nat REDIRECT":
		return redirect, nil
	default:
		return nil, fmt.Errorf("target %s of table %s is not known", name, in.table)
	}
}

// all takes the words, which must be the last ones.
func (in *xtReader) all(words ...string) error {
	if !slices.Equal(in.words, words) {
		return fmt.Errorf("%q; want %q", in.words, words)
	}
	in.words = nil
	return nil
}

// ports takes how a source port is chosen, if it is said.
func (in *xtReader) ports() error {
	if len(in.words) == 1 && slices.Contains([]string{"--random", "--random-fully"}, in.words[0]) {
		in.words = nil
	}
	return in.all()
}

func (in *xtReader) reject() (nftStatement, error) {
	args, err := in.options("--reject-with")
	if err != nil {
		return nil, err
	}
	switch args[0] {
	case "tcp-reset":
		return say("reset", ""), nil
	case "icmp-port-unreachable", "icmp6-port-unreachable":
		return say("unreachable", ""), nil
	}
	return nil, fmt.Errorf("%s is not known", args[0])
}

// translate reads an address, with or without a port.
func (in *xtReader) translate(option string, do func(*nftRun, netip.AddrPort) nftVerdict) (nftStatement, error) {
	args, err := in.options(option)
	if err != nil {
		return nil, err
	}
	to, err := netip.ParseAddrPort(args[0])
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(args[0]); err != nil {
			return nil, err
		}
		to = netip.AddrPortFrom(a, 0)
	}
	return func(x *nftRun) nftVerdict { return do(x, to) }, in.ports()
}

// dnatXT translates to what may be the destination already: then no further rule of nat is
// asked, and conntrack does not call it translated.
func dnatXT(x *nftRun, to netip.AddrPort) nftVerdict {
	if to.Port() == 0 {
		to = netip.AddrPortFrom(to.Addr(), x.p.Dst.Port())
	}
	if to == x.p.Dst {
		return nftVerdict{kind: "accept"}
	}
	return dnat(x, to)
}
