package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// The chains that always exist. docs/concepts/iptables-mode.md explains them.
const (
	// Of the tables raw and mangle.
	xtUnassigned = "FANFARE-UNASSIGNED"
	xtRedirect   = "FANFARE-REDIRECT"
	xtInvalid    = "FANFARE-INVALID"
	xtReply      = "FANFARE-REPLY"

	// Of the table nat.
	xtArriving = "FANFARE-ARRIVING"
	xtLeaving  = "FANFARE-LEAVING"
	xtSource   = "FANFARE-SOURCE"
	xtReplace  = "FANFARE-REPLACE"
	xtKeep     = "FANFARE-KEEP"
	xtLeave    = "FANFARE-POSTROUTING"

	// Of the table filter.
	xtForward  = "FANFARE-FILTER"
	xtOutput   = "FANFARE-OUTPUT"
	xtUnserved = "FANFARE-UNSERVED"
	xtSources  = "FANFARE-SOURCES"
	xtPorts    = "FANFARE-PORTS"
	xtExternal = "FANFARE-EXTERNAL"
	xtInternal = "FANFARE-INTERNAL"
	xtRefuse   = "FANFARE-REFUSE"

	// staticPrefix begins the names of these chains, and madePrefix those of the chains for VIPs,
	// frontends and backends, which is short because the names hold an address. Unknown chains
	// with either prefix are deleted.
	staticPrefix = "FANFARE-"
	madePrefix   = "FAN-"
)

// maxChainName is the length of the longest name of a chain that iptables accepts, in bytes:
// XT_EXTENSION_MAXNAMELEN without the final zero.
const maxChainName = 28

// Jumps returns the rules that lead from the kernel's built-in chains to Fanfare's, by table and
// chain. Each must come before any rule that may translate the packet, such as those of
// kube-proxy: the first translation of a flow holds.
func Jumps(f state.SetID) map[string]map[string]string {
	const by = `-m comment --comment "addresses of Services, by Fanfare" -j `
	const invalid = "-m conntrack --ctstate INVALID "
	vip := "-m set --match-set " + setName(ipsetVIPs, f) + " dst "
	return map[string]map[string]string{
		"raw": {"PREROUTING": "-m set --match-set " + setName(ipsetOwned, f) + " dst -m set ! --match-set " +
			setName(ipsetVIPs, f) + " dst " + by + xtUnassigned},
		"mangle": {
			"PREROUTING": "-p tcp -m set --match-set " + setName(ipsetRedirects, f) + " dst " + by + xtRedirect,
			"INPUT":      invalid + by + xtInvalid,
			"FORWARD":    invalid + by + xtInvalid,
			"OUTPUT":     invalid + by + xtReply,
		},
		"nat": {
			"PREROUTING":  vip + by + xtArriving,
			"OUTPUT":      vip + by + xtLeaving,
			"POSTROUTING": by + xtLeave,
		},
		"filter": {"INPUT": vip + by + xtPorts, "FORWARD": by + xtForward, "OUTPUT": vip + by + xtOutput},
	}
}

// xtTables are the tables that have chains of Fanfare, in the order in which they are written.
// Each is a transaction of its own, so the refusing rules come before the translating ones.
// xtRepaired is the order if nothing translates: the kernel translates packets of open
// connections again as soon as table nat has chains, and the rules of filter would refuse them
// before that.
var (
	xtTables   = []string{"filter", "mangle", "raw", "nat"}
	xtRepaired = []string{"nat", "filter", "mangle", "raw"}
)

// chainsOf returns all chains of a State for one family, by table.
func chainsOf(s state.State, f state.SetID) map[string]chainSet {
	tables := xtShared(s, f)
	nat := tables["nat"]
	vips := ofFamily(s.VIPs, f)
	xtTree(state.External).add(nat, vips)
	xtTree(state.Internal).add(nat, vips)
	r := render{node: s.Node, mark: flagOf(s.SNAT)}
	for _, v := range vips {
		r.vip(nat, v)
	}
	return tables
}

// xtShared returns the chains that do not depend on VIPs.
func xtShared(s state.State, f state.SetID) map[string]chainSet {
	return map[string]chainSet{
		"raw": {xtUnassigned: slices.Concat(
			[]string{"-m addrtype --dst-type LOCAL -j RETURN"},
			discovery(f),
			// The target REJECT is valid in the table filter only. Untracked, the packet
			// leaves no conntrack entry, and FANFARE-FILTER refuses it.
			[]string{"-j CT --notrack"},
		)},
		"mangle": {xtRedirect: xtRedirects(s, f), xtInvalid: xtICMPErrors(f), xtReply: {
			// nftables/ruleset.nft explains it, in the chain invalid-reply.
			"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN,ACK -j RETURN",
			"-m set --match-set " + setName(ipsetReplies, f) + " src,src -j DROP",
		}},
		"filter": xtFilter(s, f),
		"nat":    xtNAT(s, f),
	}
}

// xtICMPErrors returns the rules for packets that conntrack finds invalid and that this node did not
// send: of ICMP errors they leave those about the size of packets alone.
func xtICMPErrors(f state.SetID) (rules []string) {
	match, types := "-p icmp -m icmp --icmp-type ", []string{"3", "11", "12"}
	if f == 0 {
		rules = []string{match + "3/4 -j RETURN"}
	} else {
		match, types = "-p ipv6-icmp -m icmp6 --icmpv6-type ", []string{"1", "3", "4"}
	}
	for _, t := range types {
		rules = append(rules, match+t+" -m set --match-set "+setName(ipsetRepliers, f)+" src -j DROP")
	}
	return append(rules, "-g "+xtReply)
}

// discovery accepts neighbour solicitations and advertisements (RFC 4861, types 135 and 136):
// without them no router reaches an address of the pools. ARP does not pass these tables.
func discovery(f state.SetID) []string {
	if f == 0 {
		return nil
	}
	return []string{
		"-p ipv6-icmp -m icmp6 --icmpv6-type 135 -j RETURN",
		"-p ipv6-icmp -m icmp6 --icmpv6-type 136 -j RETURN",
	}
}

// xtFilter returns the chains that refuse or drop what nat left untranslated.
func xtFilter(s state.State, f state.SetID) chainSet {
	in := func(m ipsetID, fields string) string { return "-m set --match-set " + setName(m, f) + " " + fields }
	unreachable := [2]string{"icmp-port-unreachable", "icmp6-port-unreachable"}[f]
	invalid := "-m conntrack --ctstate INVALID -j DROP"
	miss := func(drop, reject ipsetID) []string {
		return []string{
			midstream + in(drop, "dst,dst") + " -g " + xtRefuse,
			in(drop, "dst,dst") + " -j DROP", in(reject, "dst,dst") + " -g " + xtRefuse,
		}
	}
	return chainSet{
		xtForward: {
			in(ipsetVIPs, "dst") + " -g " + xtUnserved,
			in(ipsetOwned, "dst") + " -g " + xtRefuse,
		},
		xtUnserved: slices.Concat(discovery(f), []string{invalid, "-j " + xtPorts, "-g " + xtRefuse}),
		// A VIP may be an address of the node: its other ports are the host's.
		xtOutput: append(xtRedirected(s, f), "-j "+xtSources, "-j "+xtInternal, "-m addrtype --dst-type LOCAL -j RETURN", invalid, "-g "+xtRefuse),
		// iptables accepts no DROP in nat, so untranslated packets are refused or dropped here.
		xtPorts:    slices.Concat([]string{"-j " + xtSources}, xtClients(s, f, xtInternal), []string{"-g " + xtExternal}),
		xtSources:  {in(ipsetLimited, "dst,dst") + " -m set ! --match-set " + setName(ipsetSources, f) + " dst,dst,src -j DROP"},
		xtExternal: miss(ipsetExternalDrop, ipsetExternalReject),
		xtInternal: miss(ipsetInternalDrop, ipsetInternalReject),
		xtRefuse: slices.Concat(discovery(f), []string{
			"-p tcp -j REJECT --reject-with tcp-reset",
			"-j REJECT --reject-with " + unreachable,
		}),
	}
}

// midstream matches a TCP packet that does not begin a connection. nat sees only the first
// packet of a flow, so there it belongs to a connection that conntrack does not know.
const midstream = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN "

// xtClients returns rules that lead packets from clients on this node to a chain.
func xtClients(s state.State, f state.SetID, chain string) []string {
	rules := []string{"-m set --match-set " + setName(ipsetClients, f) + " src -g " + chain}
	if p := s.Clients.InterfacePrefix; p != "" {
		rules = append(rules, "-i "+p+"+ -g "+chain)
	}
	if b := s.Clients.Bridge; b != "" {
		rules = append(rules, "-i "+b+" -g "+chain)
	}
	return rules
}

// echo makes the node itself answer pings to a VIP (echo requests: ICMP type 8, ICMPv6 type 128).
func echo(f state.SetID) string {
	return [2]string{
		"-p icmp -m icmp --icmp-type 8 -j REDIRECT",
		"-p ipv6-icmp -m icmp6 --icmpv6-type 128 -j REDIRECT",
	}[f]
}

// xtNAT returns the chains of nat but those of VIPs. xtSource runs in POSTROUTING, where the
// backend is known, and decides which source address the backend sees.
func xtNAT(s state.State, f state.SetID) chainSet {
	x, i := xtTree(state.External).root, xtTree(state.Internal).root
	m := flagOf(s.SNAT)
	nat := chainSet{
		xtArriving: slices.Concat([]string{echo(f)}, xtClients(s, f, i), []string{"-g " + x}),
		xtLeaving:  {echo(f), "-g " + i},
		xtLeave:    nil,
		xtSource: {
			// Where the VIP is on an interface of this node, a process of the host may have
			// it as its source. Other nodes may have it too, and would get the reply.
			"! -o lo -m set --match-set " + setName(ipsetVIPs, f) + " src -g " + xtReplace,
			// Any other address of the host receives its replies.
			"-m addrtype --src-type LOCAL -g " + xtKeep,
			`-m bpf --bytecode "` + sameAddrs(f) + `" -g ` + xtReplace,
			"-m mark ! --mark " + matchMark(m) + " -j RETURN",
			"-m set --match-set " + setName(ipsetNever, f) + " dst -g " + xtKeep,
			"-g " + xtReplace,
		},
		xtKeep:    {unmark(m)},
		xtReplace: xtNewSource(s.SNAT, f),
	}
	for _, p := range joined(ForwardPrefixes(s)) {
		if state.Family(p.Addr()) == f {
			nat.add(xtLeave, "-m conntrack --ctstate DNAT --ctorigdst "+prefixText(p)+" -g "+xtSource)
		}
	}
	return nat
}

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
	return append(rules, rule+[...]string{state.PortFullyRandom: " --random-fully", state.PortRandom: " --random", state.PortKept: ""}[s.Ports])
}

// sameAddrs returns a program of classic BPF, in the text form of iptables, that matches packets
// whose source is their destination. No other match compares the two.
func sameAddrs(f state.SetID) string {
	if f == 0 {
		return "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 65535,6 0 0 0"
	}
	ops := []string{"18"}
	for word := range 4 {
		// Load a word of the source, copy it to X, load that of the destination, and jump to
		// the end unless they are equal.
		ops = append(ops, fmt.Sprintf("32 0 0 %d", 8+4*word), "7 0 0 0", fmt.Sprintf("32 0 0 %d", 24+4*word),
			fmt.Sprintf("29 0 %d 0", 4*(3-word)+1))
	}
	return strings.Join(append(ops, "6 0 0 65535", "6 0 0 0"), ",")
}

// xtTree returns the tree for one side, external or internal clients.
func xtTree(s state.Side) tree {
	return tree{
		root: "FANFARE-" + strings.ToUpper(s.Prefix),
		name: func(p netip.Prefix) string { return chainName(s, "", p.String()) },
		leaf: func(v *state.VIP) []string { return xtLeaf(s, v) },
	}
}

// chainName returns the name of a chain for an address or prefix, such as "FAN-x-t80-192.0.2.1".
// If it exceeds maxChainName, as most IPv6 addresses do, it holds a hash of the address.
func chainName(s state.Side, port, addr string) string {
	name := madePrefix + s.Prefix + "-" + port + addr
	if len(name) > maxChainName {
		name = madePrefix + s.Prefix + "-" + port + state.ShortHash(addr)
	}
	return name
}

// frontendName returns the name of the chain that chooses a backend of a frontend. The letter
// before the port is t, u or s, for TCP, UDP or SCTP.
func frontendName(s state.Side, v *state.VIP, fe *state.Frontend) string {
	return chainName(s, fmt.Sprintf("%c%d-", fe.Protocol.String()[0], fe.Port), v.Addr.String())
}

// xtLeaf returns the rule of the tree for a VIP: it leads to the chain of its only port, or to
// the chain that distinguishes its ports.
func xtLeaf(s state.Side, v *state.VIP) []string {
	to := "-d " + netip.PrefixFrom(v.Addr, v.Addr.BitLen()).String() + " "
	switch len(v.Frontends) {
	case 0:
		return nil
	case 1:
		return []string{to + xtPort(s, v, &v.Frontends[0])}
	default:
		return []string{to + "-g " + chainName(s, "", v.Addr.String())}
	}
}

// xtPort returns the rule for one port of a VIP. Without a backend, the flow is translated to its
// own destination: then no other proxy translates it, and the table filter refuses it.
func xtPort(s state.Side, v *state.VIP, fe *state.Frontend) string {
	match := fmt.Sprintf("-p %[1]s -m %[1]s --dport %[2]d ", fe.Protocol, fe.Port)
	t := fe.Target(s)
	if len(t.Backends) == 0 {
		return match + "-j DNAT --to-destination " + v.Addr.String()
	}
	return match + "-g " + frontendName(fe.ChainSide(s), v, fe)
}

// A render holds what the chains of VIPs depend on besides the VIP: this node's name, and the mark
// for flows that need a new source. If either changes, all chains are rendered again.
type render struct {
	node string
	mark state.Mark
}

// vip adds the chains of one VIP for both sides. Each name depends on the address, so chains of
// different VIPs do not collide.
func (r render) vip(to chainSet, v *state.VIP) {
	for _, s := range []state.Side{state.External, state.Internal} {
		for i := range v.Frontends {
			fe := &v.Frontends[i]
			if len(v.Frontends) > 1 {
				to.add(chainName(s, "", v.Addr.String()), xtPort(s, v, fe))
			}
			if fe.ChainSide(s).Prefix == s.Prefix && len(fe.Target(s).Backends) > 0 {
				r.frontend(to, v, fe, s)
			}
		}
	}
}

// frontend adds the chain that chooses a backend and, with affinity, the chains of the backends,
// which record their clients.
func (r render) frontend(to chainSet, v *state.VIP, fe *state.Frontend, s state.Side) {
	name := frontendName(s, v, fe)
	if fe.SourceRestricted(v.Addr) {
		to.add(name, "-m set ! --match-set "+setName(ipsetSources, state.Family(v.Addr))+" dst,dst,src -j DNAT --to-destination "+v.Addr.String())
	}
	t := fe.Target(s)
	if fe.Affinity > 0 {
		for _, b := range t.Backends {
			to.add(name, "-m set --match-set "+AffinityName(v, fe, b)+" src -g "+backendName(s, v, fe, b))
			r.backend(to, v, fe, s, b)
		}
	}
	if fe.RefusesMidStream(s) {
		// The table filter refuses what is still for the VIP.
		to.add(name, midstream+"-j DNAT --to-destination "+v.Addr.String())
	}
	marked := false
	ordered := r.ordered(t)
	choices := choices(fe, t, ordered)
	for i, b := range ordered {
		// Backends that need a new source come last, so that one rule marks all.
		if r.replaced(t, b) && !marked && fe.Affinity == 0 {
			to.add(name, setMark(r.mark))
			marked = true
		}
		to.add(name, "-p "+fe.Protocol.String()+" "+choices[i]+r.verdict(v, fe, s, b))
	}
}

// ordered returns the backends: first those whose flows keep their source.
func (r render) ordered(t *state.Target) []state.Backend {
	var kept, replaced []state.Backend
	for _, b := range t.Backends {
		if r.replaced(t, b) {
			replaced = append(replaced, b)
		} else {
			kept = append(kept, b)
		}
	}
	return append(kept, replaced...)
}

// replaced reports whether the backend sees another source than the client's address.
func (r render) replaced(t *state.Target, b state.Backend) bool {
	return t.Remote == state.Masquerade && b.Node != r.node
}

// verdict returns the target of a rule that has chosen a backend.
func (r render) verdict(v *state.VIP, fe *state.Frontend, s state.Side, b state.Backend) string {
	if fe.Affinity > 0 {
		return "-g " + backendName(s, v, fe, b)
	}
	return "-j DNAT --to-destination " + b.Addr.String()
}

// backend adds the chain of a backend that records its clients. Without --exist, a client that is in
// the set already still leaves it after the timeout: nodes that remember another backend than others
// choose would otherwise split it for good.
func (r render) backend(to chainSet, v *state.VIP, fe *state.Frontend, s state.Side, b state.Backend) {
	name := backendName(s, v, fe, b)
	if r.replaced(fe.Target(s), b) {
		to.add(name, setMark(r.mark))
	}
	to.add(name,
		"-j SET --add-set "+AffinityName(v, fe, b)+" src",
		"-p "+fe.Protocol.String()+" -j DNAT --to-destination "+b.Addr.String())
}

// backendName returns the name of a backend's chain, which exists only with affinity.
func backendName(s state.Side, v *state.VIP, fe *state.Frontend, b state.Backend) string {
	return madePrefix + s.Prefix + "-b-" + state.ShortHash(fe.Label(v), b.Addr.String())
}

// AffinityName returns the name of the set of a backend's clients. The hash covers the frontend,
// the backend and the timeout: no other backend inherits the clients, and another timeout, which
// the kernel cannot change, is another set. It is exported for the tests of package proxy.
func AffinityName(v *state.VIP, fe *state.Frontend, b state.Backend) string {
	return affinityPrefix(state.Family(v.Addr)) + state.ShortHash(fe.Label(v), b.Addr.String(), fe.Affinity.String())
}

// choices returns one match per backend, in the order of ordered. Rules are tried in turn, so
// each match takes the backend's share of the flows that the earlier ones left; the last takes
// the rest.
func choices(f *state.Frontend, t *state.Target, ordered []state.Backend) []string {
	matches := make([]string, len(ordered))
	if len(ordered) < 2 {
		return matches
	}
	scheduler := f.XtScheduler(t)
	var slots []int
	if scheduler == state.Maglev && f.Affinity == 0 {
		slots = state.MaglevSlots(t.Backends)
	}
	for i, b := range ordered[:len(ordered)-1] {
		left := ordered[i:]
		// The index among all backends, unlike the one in ordered, is the same on all nodes.
		place := slices.Index(t.Backends, b)
		if f.Affinity != 0 {
			matches[i] = clientMatch(state.Family(b.Addr.Addr()), t.Backends, place)
			continue
		}
		switch scheduler {
		case state.RoundRobin:
			matches[i] = fmt.Sprintf("-m statistic --mode nth --every %d --packet 0 ", len(left))
		case state.SourceHash:
			matches[i] = hashMatch(state.Family(b.Addr.Addr()), len(t.Backends), place)
		case state.Maglev:
			matches[i] = bytecode(slotsProgram(state.Family(b.Addr.Addr()), slots, place))
		default:
			sum := 0
			for _, l := range left {
				sum += l.EffectiveWeight()
			}
			matches[i] = "-m statistic --mode random --probability " + probability(b.EffectiveWeight(), sum) + " "
		}
	}
	return matches
}

// probability returns share/all as iptables-save shows it: the kernel keeps 31 bits of it
// (xt_statistic). Written with other digits, the rule would differ from what is read back.
func probability(share, all int) string {
	const one = 1 << 31
	return fmt.Sprintf("%.11f", math.Round(one*float64(share)/float64(all))/one)
}
