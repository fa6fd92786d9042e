package obstacle

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// iptables-legacy shows its rules as text only. This file simulates FORWARD and the chains that
// it leads to, such as DOCKER-USER, as simulate.go does for nftables: an option that is not
// implemented may match. A drop in FORWARD itself, or by its policy, counts only if package
// iptables could not accept Fanfare's traffic before it. Then the rules of iptables-nft are judged
// here as well: of their text more is known than of their expressions.

// A legacyWalk leads one packet through the table filter.
type legacyWalk struct {
	chains map[string][]string
	packet legacyPacket
	marked bool // Fanfare may set kube-proxy's mark
	budget int  // of rules
	// dropped is the chain in which the packet was dropped last.
	dropped string
}

// A legacyPacket is what is known of a forwarded packet. An invalid address or an empty
// interface means unknown.
type legacyPacket struct {
	proto    state.Protocol
	src, dst netip.AddrPort
	in, out  string
	vip      netip.Addr
	reply    bool
	mark     markBits
}

// legacyPacketOf returns the packet of a sample, or its reply, as FORWARD sees it: after the
// translation of the destination, and with the backend's address as a reply's source.
func legacyPacketOf(s sample, reply bool) legacyPacket {
	if reply {
		return legacyPacket{proto: s.proto, src: s.backend, in: s.out, out: s.in, vip: s.vip.Addr(), reply: true}
	}
	return legacyPacket{proto: s.proto, dst: s.backend, in: s.in, out: s.out, vip: s.vip.Addr()}
}

// judgeLegacy finds chains of iptables that drop all samples of a flowKind. save is the output of
// iptables-save for the table filter. closed: package iptables could not open FORWARD.
func judgeLegacy(i iptables.Program, save string, f *facts, closed bool) (all []Obstacle) {
	chains, samples := parseChains(save), f.arrivals()
	reported := make(map[string]int)
	for _, p := range flowKinds() {
		if p.own || p.family != i.Family() {
			continue
		}
		chain := legacyDrop(legacyWalk{chains: chains, marked: f.marked}, p, samples, closed)
		if chain == "" {
			continue
		}
		about := fmt.Sprintf("chain %s of %s", chain, i.Name)
		at, known := reported[about]
		if !known {
			at = len(all)
			reported[about], all = at, append(all, Obstacle{Code: Firewall, About: about, Message: legacyMessage(about, p)})
		}
		if !f.partial[p.family][p.destination()] {
			all[at].Blocks |= p.flows()
		}
	}
	return all
}

// legacyDrop returns the chain that drops the last sample of a flowKind, empty unless all are
// dropped.
func legacyDrop(walk legacyWalk, p flowKind, samples []sample, closed bool) (chain string) {
	for _, s := range samples {
		if !p.of(s) || s.out == "" {
			continue
		}
		w := walk
		w.packet, w.budget = legacyPacketOf(s, p.reply), walkBudget
		out := w.chain("FORWARD", 0)
		if closed && out&mayFall != 0 { // to the policy, which is to drop, or FORWARD would not be closed
			if w.dropped == "" {
				w.dropped = "FORWARD"
			}
			out = out&^mayFall | mayDrop
		}
		if out != mayDrop || w.dropped == "FORWARD" && !closed {
			return ""
		}
		chain = w.dropped
	}
	return chain
}

// legacyMessage returns an Obstacle's message, with a remedy in the words of iptables.
func legacyMessage(about string, p flowKind) string {
	if p.reply {
		return fmt.Sprintf("%s drops traffic from %s that answers for the addresses: let it accept \"-m conntrack --ctstate ESTABLISHED,RELATED\" before", about, p.to())
	}
	return fmt.Sprintf("%s drops traffic to the addresses, on its way to %s: let it accept \"-m conntrack --ctstate DNAT\" before", about, p.to())
}

// parseChains reads the rules of all chains that iptables-save shows of one table.
func parseChains(save string) map[string][]string {
	chains := make(map[string][]string)
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(verb, ":"):
			chains[verb[1:]] = nil
		case verb == "-A":
			chain, rule, _ := strings.Cut(rest, " ")
			chains[chain] = append(chains[chain], rule)
		}
	}
	return chains
}

// chain returns the possible results of a chain for the packet. A chain that is nested too
// deeply or too long may do anything, so it never proves a drop.
func (w *legacyWalk) chain(name string, depth int) (out outcomes) {
	if depth > iptables.MaxDepth {
		return mayAccept | mayDrop | mayFall
	}
	var returned joinedMark
	for _, rule := range w.chains[name] {
		if w.budget--; w.budget < 0 {
			return out | mayAccept | mayDrop | mayFall
		}
		words, before := iptables.RuleWords(rule), w.packet.mark
		match, how, target := w.packet.meets(words)
		if match == no || !w.marked && name == "KUBE-FORWARD" && strings.Contains(rule, kubeProxyMark) {
			continue
		}
		may, ends := w.target(how, target, name, depth)
		out |= may
		switch {
		case target == "MARK":
			w.packet.setMark(words)
		case target == "CONNMARK", target == "SET": // may change the mark
			w.packet.mark = markBits{}
		case may&mayFall != 0:
			returned.add(w.packet.mark)
		}
		if ends && match == yes {
			w.packet.mark = returned.markBits
			return out
		}
		if match == maybe {
			w.packet.mark = before.join(w.packet.mark)
		}
	}
	returned.add(w.packet.mark)
	w.packet.mark = returned.markBits
	return out | mayFall
}

// target returns the possible results of a rule in the chain named in, for a packet that
// matches. ends reports whether such a packet leaves the chain. how is "-j" or "-g".
func (w *legacyWalk) target(how, target, in string, depth int) (may outcomes, ends bool) {
	switch target {
	case "ACCEPT":
		return mayAccept, true
	case "DROP", "REJECT":
		w.dropped = in
		return mayDrop, true
	case "RETURN":
		return mayFall, true
	}
	if _, ok := w.chains[target]; !ok {
		if target == "" || slices.Contains(passing, target) {
			return 0, false
		}
		return mayAccept | mayDrop, false // NFQUEUE and others
	}
	may = w.chain(target, depth+1)
	if how == "-g" {
		return may, true
	}
	return may &^ mayFall, may&mayFall == 0
}

// passing are the targets after which a packet goes on to the next rule.
var passing = []string{"LOG", "NFLOG", "MARK", "CONNMARK", "SET", "TCPMSS", "CLASSIFY", "TRACE", "AUDIT", "ACCOUNT", "SECMARK", "CONNSECMARK"}

// meets reports whether a rule matches the packet, and returns its target. iptables-save writes
// the target last, so all options before it have been tested by then.
func (p legacyPacket) meets(words []string) (match ternary, how, target string) {
	match = yes
	not := false
	for len(words) > 0 {
		word, arg := words[0], ""
		if len(words) > 1 {
			arg = words[1]
		}
		switch {
		case word == "!":
			not, words = true, words[1:]
			continue
		case word == "-j" || word == "-g":
			return match, word, arg
		case word == "-m" || word == "--comment":
			words = words[min(2, len(words)):]
			continue
		}
		is := p.test(word, arg)
		if not {
			is = yes - is // maybe stays what it is
		}
		match, not = min(match, is), false
		words = words[1:]
		if arg != "!" && !strings.HasPrefix(arg, "-") && arg != "" {
			words = words[1:]
		}
	}
	return match, "", ""
}

// test reports whether one option of a rule matches. The result is maybe for options that do
// not follow from the addresses, the protocol and the interfaces, such as ports and ipsets.
func (p legacyPacket) test(option, arg string) ternary {
	switch option {
	case "-p":
		return ternaryOf(arg == p.proto.String() || arg == "all")
	case "-s":
		return inPrefix(arg, p.src.Addr())
	case "-d":
		return inPrefix(arg, p.dst.Addr())
	case "--ctorigdst":
		return inPrefix(arg, p.vip)
	case "-i":
		return named(arg, p.in)
	case "-o":
		return named(arg, p.out)
	case "--ctstate", "--state":
		return ternaryOf(p.inState(strings.Split(arg, ",")))
	case "--mark":
		return p.hasMark(arg)
	case "--ctdir":
		return ternaryOf((arg == "REPLY") == p.reply)
	}
	return maybe
}

// inState reports whether conntrack has the packet in one of the states. DNAT is one of them in
// xt_conntrack, and always matches: the destination of each sample was translated.
func (p legacyPacket) inState(states []string) bool {
	is := "NEW"
	if p.reply {
		is = "ESTABLISHED"
	}
	return slices.Contains(states, is) || slices.Contains(states, "DNAT")
}

// inPrefix reports whether a rule's prefix contains an address; maybe if either is unknown.
func inPrefix(prefix string, a netip.Addr) ternary {
	p := iptables.ParsePrefix(prefix)
	if !p.IsValid() || !a.IsValid() {
		return maybe
	}
	return ternaryOf(p.Contains(a))
}

// named reports whether a rule's interface is this one; a name that ends in "+" is a prefix.
func named(name, iface string) ternary {
	if iface == "" {
		return maybe
	}
	if prefix, ok := strings.CutSuffix(name, "+"); ok {
		return ternaryOf(strings.HasPrefix(iface, prefix))
	}
	return ternaryOf(name == iface)
}

// textRules judges the tables of iptables-legacy, and of programs whose chain FORWARD could not be
// opened. It does not read a table that does not exist, because reading would load the kernel
// module.
func (s *collector) textRules(closed []string) (all []Obstacle) {
	for _, i := range iptables.Programs {
		shut := slices.Contains(closed, i.Name)
		if !i.Legacy() && !shut {
			continue
		}
		has, err := i.Has()
		s.miss("tables of "+i.Name, err)
		if !has {
			continue
		}
		save, err := i.Save(context.Background()) // Save has a timeout of its own
		s.miss("rules of "+i.Name, err)
		if err == nil {
			all = append(all, judgeLegacy(i, save, &s.Facts, shut)...)
		}
	}
	return all
}
