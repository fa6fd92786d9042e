package iptables

import (
	_ "embed"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strings"

	"go4.org/netipx"
	"golang.org/x/net/bpf"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

//go:embed ruleset.ipt
var rulesetText string

// xtShared returns the chains that do not depend on the ports of VIPs.
func xtShared(s state.State, f state.SetID) map[string]chainSet { return staticRules(s, f).tables }

func staticRules(s state.State, f state.SetID) ruleset {
	m := flagOf(s.SNAT)
	values := map[string]string{
		"V": string("46"[f]), "set": "-m set --match-set fanfare", "midstream": strings.TrimSpace(midstream),
		"jump": `-m comment --comment "addresses of Services, by Fanfare" -j`,
		"echo": [2]string{"-p icmp -m icmp --icmp-type 8", "-p ipv6-icmp -m icmp6 --icmpv6-type 128"}[f],
		"icmp": [2]string{"icmp", "icmp6"}[f], "sameaddrs": sameAddrs(f), "mark": matchMark(m), "unmark": unmark(m),
	}
	lists := map[string][]string{
		"client":   {"-m set --match-set " + setName(ipsetClients, f) + " src"},
		"redirect": xtRedirects(s, f), "copies": nil, "forwarded": nil, "discovery": nil,
		"newsource": xtNewSource(s.SNAT, f),
	}
	if len(lists["redirect"]) > 0 {
		lists["copies"] = []string{"-m conntrack --ctstate UNTRACKED -m addrtype ! --src-type LOCAL"}
	}
	if f == 1 {
		lists["discovery"] = []string{
			"-p ipv6-icmp -m icmp6 --icmpv6-type 135", "-p ipv6-icmp -m icmp6 --icmpv6-type 136",
		}
	}
	if p := s.Clients.InterfacePrefix; p != "" {
		lists["client"] = append(lists["client"], "-i "+p+"+")
	}
	if b := s.Clients.Bridge; b != "" {
		lists["client"] = append(lists["client"], "-i "+b)
	}
	for _, p := range joined(ForwardPrefixes(s)) {
		if state.Family(p.Addr()) == f {
			lists["forwarded"] = append(lists["forwarded"], prefixText(p))
		}
	}
	return parseSave(expand(rulesetText, f, values, lists))
}

// expand replaces names in a text by values. A line that has the name of a list becomes one line for each of its
// members, and one that begins with a family is for that alone. text/template would do it, too, but
// keeps all exported methods in the program, since it calls methods by name.
func expand(text string, f state.SetID, values map[string]string, lists map[string][]string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if of, rest, found := strings.Cut(line, ": "); found && (of == "IPv4" || of == "IPv6") {
			if of != [2]string{"IPv4", "IPv6"}[f] {
				continue
			}
			line = rest
		}
		members, list := []string{""}, ""
		for name, all := range lists {
			if strings.Contains(line, "$"+name) && line[0] != '#' {
				members, list = all, name
			}
		}
		for _, member := range members {
			b.WriteString(os.Expand(line, func(name string) string {
				if name == list {
					return member
				}
				return values[name]
			}))
		}
	}
	return b.String()
}

// Jumps has the rules that lead from the kernel's built-in chains to Fanfare's, by family, table and
// chain, one for each.
var Jumps = [2]map[string]chainSet{staticRules(state.State{}, 0).others, staticRules(state.State{}, 1).others}

// joined covers the same addresses with as few prefixes as possible. A new flow is compared
// with each prefix, and the lingering addresses of a deleted pool can be many.
func joined(all []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range all {
		b.AddPrefix(p)
	}
	set, err := b.IPSet()
	if err != nil {
		panic("BUG: " + err.Error()) // only a range that ends before it begins is an error
	}
	return set.Prefixes()
}

// prefixText returns a prefix as iptables-save shows it for the match conntrack: a single
// address has no length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// defaultFlag is the bit by which kube-proxy marks packets whose source must be replaced (KUBE-
// MARK-MASQ). Fanfare uses it for the same purpose and removes it before kube-proxy's rules see
// it.
var defaultFlag = state.Mark{Value: 0x4000, Mask: 0x4000}

// flagOf returns the mark for flows that need a new source. The rules that choose a backend set
// it, and a rule in POSTROUTING reads it: only there can a rule replace the source.
func flagOf(s state.SNAT) state.Mark {
	if s.Mark.Value == 0 {
		return defaultFlag
	}
	return s.Mark
}

// matchMark returns a mark as iptables-save shows it for the match mark, which leaves out a
// full mask.
func matchMark(m state.Mark) string {
	if m.Mask == math.MaxUint32 {
		return fmt.Sprintf("%#x", m.Value)
	}
	return m.String()
}

// setMark and unmark return a target that sets or clears the bits of a mark and keeps the rest.
func setMark(m state.Mark) string { return "-j MARK --set-xmark " + m.String() }
func unmark(m state.Mark) string  { return setMark(state.Mark{Mask: m.Mask}) }

// xtNewSource returns the rules that replace the source. A mark that the user configured stays
// on the packet.
func xtNewSource(s state.SNAT, f state.SetID) []string {
	var rules []string
	if s.Mark.Value == 0 {
		rules = append(rules, unmark(defaultFlag))
		if s.Mark != (state.Mark{}) {
			rules = append(rules, setMark(s.Mark))
		}
	} else {
		// A hairpin has not been marked yet.
		rules = append(rules, setMark(s.Mark))
	}
	rule := "-j MASQUERADE"
	if from := s.Source(f); from.IsValid() {
		rule = "-j SNAT --to-source " + from.String()
	}
	return append(rules, rule+[...]string{state.PortFullyRandom: " --random-fully", state.PortRandom: " --random",
		state.PortKept: ""}[s.Ports])
}

// sameAddrs returns a match for packets whose source is their destination. No other match compares the
// two.
func sameAddrs(f state.SetID) string {
	var program []bpf.Instruction
	for word := range sourceWords[f] {
		source := sourceOffset[f] + 4*word
		program = append(program, bpf.LoadAbsolute{Off: source, Size: 4}, bpf.TAX{},
			bpf.LoadAbsolute{Off: source + 4*sourceWords[f], Size: 4},
			bpf.JumpIfX{Cond: bpf.JumpEqual, SkipFalse: uint8(4*(sourceWords[f]-1-word) + 1)})
	}
	return bytecode(append(program, accept, refuse))
}
