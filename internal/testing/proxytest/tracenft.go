package proxytest

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// nftRules are the rules of a script of nft, as Script writes it. What the
// interpreter does not know it refuses: it never passes over a word.
type nftRules struct {
	chains map[string][]nftRule
	bases  []*nftChain // in the order in which they are run
	sets   map[string]*nftSet
}

type nftChain struct {
	name, kind, hook string
	priority         int
	policy           string
}

// An nftSet is a set or map. Keys are the words of nft, as element.text writes
// them.
type nftSet struct {
	interval bool
	numbers  bool // a map whose values are keys of another one
	items    map[string]string
}

// An nftVerdict is how a statement goes on.
type nftVerdict struct {
	kind  string // empty: with the next statement; miss: with the next rule
	chain string
}

// An nftRun is one packet in one chain.
type nftRun struct {
	chains map[string][]nftRule // of the table
	p      *Packet
	node   *NodeView
	c      *chooser
	hook   string
}

// An nftRule is a rule of nft or iptables, each part of which may be what it misses by.
type nftRule []nftStatement

type (
	nftStatement func(*nftRun) nftVerdict
	// An nftExpr has no value where the packet lacks what it asks for.
	nftExpr func(*nftRun) (string, bool)
)

func (r *nftRules) hook(name string, p *Packet, n *NodeView, c *chooser) fate {
	for _, base := range r.bases {
		// nat chains are asked about the first packet of a flow, and only until one
		// has decided.
		if base.hook != name || base.kind == "nat" && !natAsked(p, name) {
			continue
		}
		run := &nftRun{chains: r.chains, p: p, node: n, c: c, hook: name}
		v := run.chain(base.name)
		switch cmp.Or(v.kind, base.policy) {
		case "accept":
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

func natAsked(p *Packet, hook string) bool {
	if p.ct.state != "new" {
		return false
	}
	if hook == "postrouting" || hook == "input" {
		return !p.ct.snat
	}
	return !p.ct.dnat
}

// chain runs a chain. The verdict is empty when it came to its end.
func (x *nftRun) chain(name string) nftVerdict {
next:
	for _, rule := range x.chains[name] {
		for _, statement := range rule {
			v := statement(x)
			switch v.kind {
			case "":
			case "miss":
				continue next
			case "return":
				return nftVerdict{}
			case "goto":
				return x.chain(v.chain)
			case "jump":
				if v = x.chain(v.chain); v.kind != "" {
					return v
				}
			default:
				return v
			}
		}
	}
	return nftVerdict{}
}

// ParseNft reads a script. Its table is followed by elements.
func ParseNft(script string) (*nftRules, error) {
	r := &nftRules{chains: make(map[string][]nftRule), sets: make(map[string]*nftSet)}
	var open *nftChain
	for i, line := range strings.Split(script, "\n") {
		words := strings.Fields(line)
		var err error
		switch {
		case len(words) == 0 || words[0] == "#" || words[0] == "table" || words[0] == "comment" || words[0] == "delete":
		case words[0] == "add" && words[1] == "table":
		case words[0] == "set" || words[0] == "map":
			r.sets[words[1]] = &nftSet{
				interval: strings.Contains(line, "flags interval"), numbers: strings.Contains(line, ": meta priority;"),
				items: make(map[string]string),
			}
			if _, elements, ok := strings.Cut(line, "elements = "); ok {
				err = r.elements(words[1], strings.TrimSuffix(elements, "; }"))
			}
		case words[0] == "chain":
			open = &nftChain{name: words[1], policy: "accept"}
			r.chains[open.name] = nil
		case words[0] == "}":
			open = nil
		case words[0] == "add" && words[1] == "element":
			err = r.elements(words[4], line)
		case open != nil && words[0] == "type":
			err = open.base(line)
			r.bases = append(r.bases, open)
		case open != nil:
			var rule []nftStatement
			rule, err = r.rule(words)
			r.chains[open.name] = append(r.chains[open.name], rule)
		default:
			err = fmt.Errorf("no idea what this is")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d, %s: %w", i+1, strings.TrimSpace(line), err)
		}
	}
	slices.SortStableFunc(r.bases, func(a, b *nftChain) int {
		return cmp.Or(a.position()-b.position(), a.priority-b.priority)
	})
	return r, r.check()
}

// check finds chains that are gone to and not there.
func (r *nftRules) check() error {
	for name, s := range r.sets {
		for key, value := range s.items {
			chain, jumps := strings.CutPrefix(value, "goto ")
			if _, ok := r.chains[chain]; jumps && !ok {
				return fmt.Errorf("%s { %s : %s }: no such chain", name, key, value)
			}
			to := r.sets[strings.TrimRight(name, "46")+"to"]
			if !s.numbers || to == nil { // or the numbers are those of backends or tables
				continue
			}
			if _, ok := to.items[value]; !ok {
				return fmt.Errorf("%s { %s : %s }: no chain has this number", name, key, value)
			}
		}
	}
	return nil
}

// elements reads "add element inet fanfare SET { KEY : VALUE, ... }".
func (r *nftRules) elements(set, line string) error {
	_, body, _ := strings.Cut(line, "{")
	s := r.sets[set]
	if s == nil {
		return fmt.Errorf("no set %s", set)
	}
	for item := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(body), "}"), ", ") {
		key, value, _ := strings.Cut(strings.TrimSpace(item), " : ")
		s.items[key] = value
	}
	return nil
}

var nftPriorities = map[string]int{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "srcnat": 100}

// base reads "type filter hook forward priority -1; policy accept;".
func (ch *nftChain) base(line string) error {
	head, policy, _ := strings.Cut(line, ";")
	var priority string
	if _, err := fmt.Sscanf(strings.TrimSpace(head), "type %s hook %s priority %s", &ch.kind, &ch.hook,
		&priority); err != nil {
		return err
	}
	var named bool
	if ch.priority, named = nftPriorities[priority]; !named {
		var err error
		if ch.priority, err = strconv.Atoi(priority); err != nil {
			return err
		}
	}
	ch.policy = strings.Trim(strings.TrimPrefix(strings.TrimSpace(policy), "policy "), ";")
	return nil
}

// position is where in its hook a chain is run. Those of type nat have none of their
// own: the kernel asks all of them where NAT is done, in the order of their
// priorities.
func (ch *nftChain) position() int {
	switch {
	case ch.kind != "nat":
		return ch.priority
	case ch.hook == "prerouting" || ch.hook == "output":
		return nftPriorities["dstnat"]
	default:
		return nftPriorities["srcnat"]
	}
}

// An nftReader takes the words of a rule one by one.
type nftReader struct {
	rules *nftRules
	words []string
}

func (r *nftRules) rule(words []string) ([]nftStatement, error) {
	in := &nftReader{rules: r, words: words}
	var all []nftStatement
	for len(in.words) > 0 {
		s, err := in.statement()
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (in *nftReader) next() string {
	if len(in.words) == 0 {
		return ""
	}
	w := in.words[0]
	in.words = in.words[1:]
	return w
}

// take takes the given words if they come next.
func (in *nftReader) take(words string) bool {
	all := strings.Fields(words)
	if len(in.words) < len(all) || !slices.Equal(in.words[:len(all)], all) {
		return false
	}
	in.words = in.words[len(all):]
	return true
}

func say(kind, chain string) nftStatement {
	return func(*nftRun) nftVerdict { return nftVerdict{kind, chain} }
}

func (in *nftReader) statement() (nftStatement, error) {
	switch {
	case in.take("counter"):
		return say("", ""), nil
	case in.take("goto"):
		return say("goto", in.next()), nil
	case in.take("jump"):
		return say("jump", in.next()), nil
	case in.take("accept"):
		return say("accept", ""), nil
	case in.take("return"):
		return say("return", ""), nil
	case in.take("drop"):
		return say("drop", ""), nil
	case in.take("reject with tcp reset"):
		return say("reset", ""), nil
	case in.take("reject with icmpx port-unreachable"):
		return say("unreachable", ""), nil
	case in.take("redirect"):
		return redirect, nil
	case in.take("masquerade"):
		_ = in.take("fully-random") || in.take("random")
		return masquerade, nil
	case in.take("dnat"):
		return in.nat(dnat)
	case in.take("snat"):
		return in.nat(snat)
	case in.take("meta priority set none"):
		return setPriority("none"), nil
	case in.take("meta priority set"):
		return in.priority()
	case in.take("delete @affinity4"), in.take("delete @affinity6"):
		in.words = in.words[slices.Index(in.words, "}")+1:]
		return say("miss", ""), nil // what the kernel records is no matter of one packet
	case in.take("add @affinity4"), in.take("add @affinity6"):
		in.words = in.words[slices.Index(in.words, "}")+1:]
		return say("", ""), nil
	case in.take("meta mark set meta mark &"):
		return in.mark()
	default:
		return in.match()
	}
}

func setPriority(to string) nftStatement {
	return func(x *nftRun) nftVerdict { x.p.priority = to; return nftVerdict{} }
}

// redirect sends a packet to the node itself.
func redirect(x *nftRun) nftVerdict {
	iface := cmp.Or(x.p.in, "lo")
	x.p.Dst = netip.AddrPortFrom(x.node.addr(iface, x.p.Dst.Addr()), x.p.Dst.Port())
	x.p.ct.dnat = true
	return nftVerdict{kind: "accept"}
}

func masquerade(x *nftRun) nftVerdict {
	return snat(x, netip.AddrPortFrom(x.node.addr(x.p.out, x.p.Src.Addr()), 0))
}

func snat(x *nftRun, to netip.AddrPort) nftVerdict {
	x.p.Src = netip.AddrPortFrom(to.Addr(), x.p.Src.Port())
	x.p.ct.snat = true
	return nftVerdict{kind: "accept"}
}

func dnat(x *nftRun, to netip.AddrPort) nftVerdict {
	x.p.Dst = to
	x.p.ct.dnat = true
	return nftVerdict{kind: "accept"}
}

// nat reads "ip to KEY map @MAP". What is no address in a map is a bug.
func (in *nftReader) nat(do func(*nftRun, netip.AddrPort) nftVerdict) (nftStatement, error) {
	v4 := in.take("ip to")
	if !v4 && !in.take("ip6 to") {
		return nil, fmt.Errorf("%v; want ip or ip6 to", in.words)
	}
	value, err := in.mapped()
	if err != nil {
		return nil, err
	}
	_ = in.take("fully-random") || in.take("random")
	return func(x *nftRun) nftVerdict {
		to, ok := value(x)
		if !ok || x.p.Dst.Addr().Is4() != v4 {
			return nftVerdict{kind: "miss"}
		}
		addr, port, _ := strings.Cut(to, " . ")
		n, err := strconv.ParseUint(cmp.Or(port, "0"), 10, 16)
		if err != nil {
			panic(fmt.Sprintf("nat to %s: %v", to, err))
		}
		return do(x, netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(n)))
	}, nil
}

// mark reads "KEEP | SET".
func (in *nftReader) mark() (nftStatement, error) {
	keep, err1 := strconv.ParseUint(in.next(), 0, 32)
	if !in.take("|") {
		return nil, fmt.Errorf("%v; want | and bits", in.words)
	}
	set, err2 := strconv.ParseUint(in.next(), 0, 32)
	return func(x *nftRun) nftVerdict {
		x.p.mark = x.p.mark&uint32(keep) | uint32(set)
		return nftVerdict{}
	}, errors.Join(err1, err2)
}

// priority reads what a packet's priority is set to.
func (in *nftReader) priority() (nftStatement, error) {
	value, err := in.mapped()
	return func(x *nftRun) nftVerdict {
		v, ok := value(x)
		if !ok {
			return nftVerdict{kind: "miss"}
		}
		x.p.priority = v
		return nftVerdict{}
	}, err
}

// mapped reads "KEY map @MAP".
func (in *nftReader) mapped() (nftExpr, error) {
	key, err := in.concat()
	if err != nil {
		return nil, err
	}
	if !in.take("map") {
		return nil, fmt.Errorf("%v; want map", in.words)
	}
	set, err := in.set()
	if err != nil {
		return nil, err
	}
	return func(x *nftRun) (string, bool) {
		k, ok := key(x)
		if !ok {
			return "", false
		}
		return set.get(k)
	}, nil
}

func (in *nftReader) set() (*nftSet, error) {
	name, ok := strings.CutPrefix(in.next(), "@")
	if s := in.rules.sets[name]; ok && s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("no set %s", name)
}

func (s *nftSet) get(key string) (string, bool) {
	if v, ok := s.items[key]; ok || !s.interval {
		return v, ok
	}
	for item, v := range s.items {
		if slices.EqualFunc(strings.Split(item, " . "), strings.Split(key, " . "), within) {
			return v, true
		}
	}
	return "", false
}

// within reports whether an interval, such as 10.0.0.0/8, "cali*" or 135-136, holds a
// key. Of a concatenation some parts may be plain values.
func within(interval, key string) bool {
	if interval == key {
		return true
	}
	if name, ok := strings.CutSuffix(strings.Trim(interval, `"`), "*"); ok {
		return strings.HasPrefix(strings.Trim(key, `"`), name)
	}
	a, err := netip.ParseAddr(key)
	if p, perr := netip.ParsePrefix(interval); err == nil && perr == nil {
		return p.Contains(a)
	}
	from, to, isRange := strings.Cut(interval, "-")
	if lo, lerr := netip.ParseAddr(from); err == nil && lerr == nil && isRange {
		hi, herr := netip.ParseAddr(to)
		return herr == nil && lo.Compare(a) <= 0 && a.Compare(hi) <= 0
	}
	lo, lerr := strconv.Atoi(from)
	hi, herr := strconv.Atoi(to)
	n, nerr := strconv.Atoi(key)
	return isRange && lerr == nil && herr == nil && nerr == nil && lo <= n && n <= hi
}
