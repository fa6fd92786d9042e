package proxy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// xtRules are the rules of iptables and ip6tables, in the words of iptables-save or of
// what iptables-restore takes, and the sets that they ask. As with nft, the interpreter
// refuses what it does not know.
type xtRules [2]*xtFamily

type xtFamily struct {
	tables map[string]map[string][]xtTraced // by table and chain
	sets   map[string]map[xtKey]bool
}

// An xtTraced is a rule, each part of which may be what it misses by.
type xtTraced []nftStatement

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
	"input":       {{"filter", "INPUT"}},
	"forward":     {{"filter", "FORWARD"}},
	"output":      {{"nat", "OUTPUT"}, {"filter", "OUTPUT"}},
	"postrouting": {{"nat", "POSTROUTING"}},
}

func (r xtRules) hook(name string, p *packet, n *nodeView, c *chooser) fate {
	f := r[state.Family(p.dst.Addr())]
	for _, at := range xtHooks[name] {
		table, chain := at[0], at[1]
		if table == "nat" && !natAsked(p, name) {
			continue
		}
		switch v := f.chain(table, chain, &nftRun{p: p, node: n, c: c, hook: name}); v.kind {
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

// chain runs a chain. The verdict is empty when it came to its end.
func (f *xtFamily) chain(table, name string, x *nftRun) nftVerdict {
next:
	for _, rule := range f.tables[table][name] {
		for _, part := range rule {
			switch v := part(x); v.kind {
			case "":
			case "miss":
				continue next
			case "return":
				return nftVerdict{}
			case "goto":
				return f.chain(table, v.chain, x)
			case "jump":
				if v = f.chain(table, v.chain, x); v.kind != "" {
					return v
				}
			default:
				return v
			}
		}
	}
	return nftVerdict{}
}

// parseXT reads what xtText writes: the rules of each family, then entries of sets.
func parseXT(text string) (xtRules, error) {
	var r xtRules
	var of state.SetID
	var table string
	for f := range r {
		r[f] = newXTFamily(state.SetID(f))
	}
	lines := strings.Split(text, "\n")
	// Rules come before the sets that they ask.
	for _, line := range lines {
		if name, entry, _ := strings.Cut(line, " "); strings.HasPrefix(name, iptables.SetPrefix) {
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
		case line == "" || line == "COMMIT" || verb == "#" || strings.HasPrefix(verb, iptables.SetPrefix):
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			r[of].tables[table] = make(map[string][]xtTraced)
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

func newXTFamily(f state.SetID) *xtFamily {
	x := &xtFamily{tables: make(map[string]map[string][]xtTraced), sets: make(map[string]map[xtKey]bool)}
	for m := range iptables.IPSetCount {
		x.sets[iptables.SetName(m, f)] = make(map[xtKey]bool)
	}
	return x
}

// entry reads "192.0.2.1,tcp:80,10.0.0.0/8", or how long a set of affinity remembers.
func (f *xtFamily) entry(set, text string) error {
	if f.sets[set] == nil {
		f.sets[set] = make(map[xtKey]bool)
	}
	parts := strings.Split(text, ",")
	k := xtKey{addr: iptables.ParsePrefix(parts[0])}
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
		k.net = iptables.ParsePrefix(parts[2])
	}
	f.sets[set][k] = true
	return nil
}

// rule reads one rule.
func (f *xtFamily) rule(table, chain, text string, first bool) error {
	in := &xtReader{family: f, table: table, words: iptables.RuleWords(text)}
	var rule xtTraced
	for len(in.words) > 0 {
		part, err := in.part()
		if err != nil {
			return err
		}
		rule = append(rule, part)
	}
	all := f.tables[table][chain]
	if first {
		f.tables[table][chain] = append([]xtTraced{rule}, all...)
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

// part reads one match, or the target.
func (in *xtReader) part() (nftStatement, error) {
	not := in.take("!")
	switch w := in.next(); w {
	case "-d", "-s":
		p := iptables.ParsePrefix(in.next())
		if !p.IsValid() {
			return nil, fmt.Errorf("no prefix")
		}
		return test(not, func(x *nftRun) bool {
			return p.Contains(map[string]netip.AddrPort{"-d": x.p.dst, "-s": x.p.src}[w].Addr())
		}), nil
	case "-i", "-o":
		name := in.next()
		return test(not, func(x *nftRun) bool { return ifaceIs(name, map[string]string{"-i": x.p.in, "-o": x.p.out}[w]) }), nil
	case "-p":
		name := in.next()
		proto, ok := map[string]uint8{"tcp": uint8(TCP), "udp": uint8(UDP), "sctp": uint8(SCTP), "icmp": protoICMP, "ipv6-icmp": protoICMPv6}[name]
		if !ok {
			return nil, fmt.Errorf("protocol %s", name)
		}
		return test(not, func(x *nftRun) bool { return x.p.proto == proto }), nil
	case "-m":
		return in.match(in.next())
	case "-g", "-j":
		return in.target(w, in.next())
	default:
		return nil, fmt.Errorf("option %q is not known", w)
	}
}

// ifaceIs says whether an interface is meant by a name, which may end in "+".
func ifaceIs(name, iface string) bool {
	if prefix, ok := strings.CutSuffix(name, "+"); ok {
		return strings.HasPrefix(iface, prefix)
	}
	return iface == name
}

// match reads the options of a match.
func (in *xtReader) match(name string) (nftStatement, error) {
	not := in.take("!")
	switch name {
	case "comment":
		_, err := in.options("--comment")
		return say("", ""), err
	case "set":
		return in.matchSet(not)
	case "tcp", "udp", "sctp":
		if len(in.words) > 0 && in.words[0] == "--tcp-flags" {
			return in.tcpFlags(not)
		}
		return in.number(not, "--dport", func(x *nftRun) int { return int(x.p.dst.Port()) })
	case "icmp":
		return in.number(not, "--icmp-type", func(x *nftRun) int { return x.p.icmp })
	case "icmp6":
		return in.number(not, "--icmpv6-type", func(x *nftRun) int { return x.p.icmp })
	case "conntrack":
		return in.conntrack(not)
	case "addrtype":
		return in.addrtype(not)
	case "mark":
		args, err := in.options("--mark")
		if err != nil {
			return nil, err
		}
		m, err := parseXTMark(args[0])
		return test(not, func(x *nftRun) bool { return x.p.mark&m.Mask == m.Value }), err
	case "bpf":
		args, err := in.options("--bytecode")
		if err != nil {
			return nil, err
		}
		return program(not, args[0])
	case "statistic", "cluster":
		return in.chance(name)
	default:
		return nil, fmt.Errorf("match %s is not known", name)
	}
}

func (in *xtReader) number(not bool, option string, of func(*nftRun) int) (nftStatement, error) {
	args, err := in.options(option)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(args[0])
	return test(not, func(x *nftRun) bool { return of(x) == n }), err
}

// tcpFlags reads "--tcp-flags MASK SYN" with all flags that a first packet may not have
// but one.
func (in *xtReader) tcpFlags(not bool) (nftStatement, error) {
	args, err := in.options("--tcp-flags")
	if is := in.next(); err == nil && (args[0] != "FIN,SYN,RST,ACK" || is != "SYN") {
		err = fmt.Errorf("flags %s of %s are not known", is, args[0])
	}
	return test(not, func(x *nftRun) bool { return x.p.proto == uint8(TCP) && !x.p.midstream }), err
}

// matchSet reads "--match-set NAME dst,dst,src".
func (in *xtReader) matchSet(not bool) (nftStatement, error) {
	args, err := in.options("--match-set")
	if err != nil {
		return nil, err
	}
	set, flags := in.family.sets[args[0]], in.next()
	if set == nil {
		return nil, fmt.Errorf("no set %s", args[0])
	}
	if !slices.Contains([]string{"src", "dst", "dst,dst", "dst,dst,src"}, flags) {
		return nil, fmt.Errorf("%s of a set is not known", flags)
	}
	return test(not, func(x *nftRun) bool {
		for k := range set {
			if k.meets(x.p, flags) {
				return true
			}
		}
		return false
	}), nil
}

func (k xtKey) meets(p *packet, flags string) bool {
	switch {
	case flags == "src":
		return k.addr.Contains(p.src.Addr())
	case !k.addr.Contains(p.dst.Addr()):
		return false
	case flags == "dst":
		return true
	case isICMP(p) || k.port != state.Port{Proto: Protocol(p.proto), Port: p.dst.Port()}:
		return false
	}
	return flags == "dst,dst" || k.net.Contains(p.src.Addr())
}

// conntrack reads "--ctstate STATE" and "--ctorigdst PREFIX", both if there are two.
func (in *xtReader) conntrack(not bool) (nftStatement, error) {
	var tests []func(*nftRun) bool
	for len(in.words) > 0 && strings.HasPrefix(in.words[0], "--ct") {
		option, arg := in.next(), in.next()
		p := iptables.ParsePrefix(arg)
		switch {
		case option == "--ctstate" && arg == "INVALID":
			tests = append(tests, func(x *nftRun) bool { return x.p.ct.state == "invalid" })
		case option == "--ctstate" && arg == "DNAT":
			tests = append(tests, func(x *nftRun) bool { return x.p.ct.dnat })
		case option == "--ctorigdst" && p.IsValid():
			tests = append(tests, func(x *nftRun) bool { return p.Contains(x.p.ct.orig.Addr()) })
		default:
			return nil, fmt.Errorf("%s %s is not known", option, arg)
		}
	}
	if not || len(tests) == 0 {
		return nil, fmt.Errorf("conntrack without a state that is known")
	}
	return test(false, func(x *nftRun) bool {
		return !slices.ContainsFunc(tests, func(is func(*nftRun) bool) bool { return !is(x) })
	}), nil
}

func (in *xtReader) addrtype(not bool) (nftStatement, error) {
	option, kind := in.next(), in.next()
	if kind != "LOCAL" || option != "--dst-type" && option != "--src-type" {
		return nil, fmt.Errorf("%s %s is not known", option, kind)
	}
	return test(not, func(x *nftRun) bool {
		return x.node.local[map[string]netip.AddrPort{"--dst-type": x.p.dst, "--src-type": x.p.src}[option].Addr()]
	}), nil
}

// chance reads the options of a match that depends on chance, or on a hash. Either may
// come out.
func (in *xtReader) chance(name string) (nftStatement, error) {
	names := []string{"--cluster-local-nodemask", "--cluster-total-nodes", "--cluster-hash-seed"}
	if name == "statistic" {
		switch in.take("--mode"); in.next() {
		case "random":
			names = []string{"--probability"}
		case "nth":
			names = []string{"--every", "--packet"}
		default:
			return nil, fmt.Errorf("mode of statistic is not known")
		}
	}
	_, err := in.options(names...)
	return test(false, func(x *nftRun) bool { return x.c.choose(2) == 0 }), err
}

// filterProgram is a program of the packet filter over the packet's header.
func filterProgram(text string) (is func(*packet) bool, err error) {
	var raw []bpf.RawInstruction
	for _, op := range strings.Split(text, ",")[1:] {
		var i bpf.RawInstruction
		if _, err := fmt.Sscan(op, &i.Op, &i.Jt, &i.Jf, &i.K); err != nil {
			return nil, fmt.Errorf("%q: %w", op, err)
		}
		raw = append(raw, i)
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		return nil, fmt.Errorf("a program with instructions that are not known")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		return nil, err
	}
	return func(p *packet) bool {
		// Of the part of a header before its addresses only the length is of interest.
		header := slices.Concat([]byte{0x45}, make([]byte, 11), p.src.Addr().AsSlice(), p.dst.Addr().AsSlice())
		if p.dst.Addr().Is6() {
			header = header[4:]
		}
		header = binary.BigEndian.AppendUint16(header, p.src.Port())
		n, err := vm.Run(header)
		if err != nil {
			panic(fmt.Sprintf("program %s: %v", text, err))
		}
		return n != 0
	}, nil
}

// program reads a program that compares addresses, or hashes them. Of a hash anything may
// come out.
func program(not bool, text string) (nftStatement, error) {
	is, err := filterProgram(text)
	if strings.Contains(text, fmt.Sprintf(",%d 0 0 ", unix.BPF_ALU|unix.BPF_MOD)) {
		return test(not, func(x *nftRun) bool { return x.c.choose(2) == 0 }), err
	}
	return test(not, func(x *nftRun) bool { return is(x.p) }), err
}

// parseXTMark reads "0x4000/0x4000" or "0x4000".
func parseXTMark(s string) (Mark, error) {
	value, mask, _ := strings.Cut(s, "/")
	v, err := strconv.ParseUint(value, 0, 32)
	if err != nil {
		return Mark{}, err
	}
	m, err := strconv.ParseUint(cmp.Or(mask, "0xffffffff"), 0, 32)
	return Mark{Value: uint32(v), Mask: uint32(m)}, err
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
	case "filter DROP", "filter ACCEPT", "filter RETURN", "raw RETURN", "raw ACCEPT", "nat RETURN", "nat ACCEPT":
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
		return say("", ""), in.all("src", "--exist")
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
		to = netip.AddrPortFrom(to.Addr(), x.p.dst.Port())
	}
	if to == x.p.dst {
		return nftVerdict{kind: "accept"}
	}
	return dnat(x, to)
}
