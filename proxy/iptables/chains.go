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

// Chains of iptables that are always there. docs/concepts/iptables-mode.md explains them.
const (
	xtUnassigned = "FANFARE-UNASSIGNED"
	xtRedirect   = "FANFARE-HANDON"

	xtArriving = "FANFARE-ARRIVING"
	xtLeaving  = "FANFARE-LEAVING"
	xtSource   = "FANFARE-SOURCE"
	xtReplace  = "FANFARE-REPLACE"
	xtKeep     = "FANFARE-KEEP"
	xtLeave    = "FANFARE-POSTROUTING"

	xtForward    = "FANFARE-FILTER"
	xtOutput     = "FANFARE-OUTPUT"
	xtUnserved   = "FANFARE-UNSERVED"
	SourcesChain = "FANFARE-SOURCES"
	xtPorts      = "FANFARE-PORTS"
	xtExternal   = "FANFARE-EXTERNAL"
	xtInternal   = "FANFARE-INTERNAL"
	xtRefuse     = "FANFARE-REFUSE"

	// Prefix begins the names of all of them, and xtMade those of the chains for
	// VIPs, frontends and backends.
	Prefix     = "FANFARE-"
	MadePrefix = "FAN-"
)

// MaxChainName is the longest name of a chain (XT_EXTENSION_MAXNAMELEN).
const MaxChainName = 28

// Jumps are the rules of the chains of others that lead to ours, by table and
// chain. Each must be the first there that may lead to a translation.
func Jumps(f state.SetID) map[string]map[string]string {
	const by = `-m comment --comment "addresses of Services, by Fanfare" -j `
	vip := "-m set --match-set " + SetName(IPSetVIPs, f) + " dst "
	return map[string]map[string]string{
		"raw": {"PREROUTING": "-m set --match-set " + SetName(IPSetOwned, f) + " dst -m set ! --match-set " +
			SetName(IPSetVIPs, f) + " dst " + by + xtUnassigned},
		"mangle": {"PREROUTING": "-p tcp -m set --match-set " + SetName(ipsetRedirects, f) + " dst " + by + xtRedirect},
		"nat": {
			"PREROUTING":  vip + by + xtArriving,
			"OUTPUT":      vip + by + xtLeaving,
			"POSTROUTING": by + xtLeave,
		},
		"filter": {"INPUT": vip + by + xtPorts, "FORWARD": by + xtForward, "OUTPUT": vip + by + xtOutput},
	}
}

// xtTables are the tables that have our chains, in the order in which they
// are written: what refuses comes before what translates.
var xtTables = []string{"filter", "mangle", "raw", "nat"}

// Chains is all chains of one family, by table.
func Chains(s state.State, f state.SetID) map[string]ChainSet {
	tables := xtShared(s, f)
	nat := tables["nat"]
	vips := OfFamily(s.VIPs, f)
	xtTree(state.External).Add(nat, vips)
	xtTree(state.Internal).Add(nat, vips)
	r := Render{Node: s.Node, Mark: flagOf(s.SNAT)}
	for _, v := range vips {
		r.VIP(nat, v)
	}
	return tables
}

// xtShared is the chains that depend on no VIP.
func xtShared(s state.State, f state.SetID) map[string]ChainSet {
	return map[string]ChainSet{
		"raw": {xtUnassigned: slices.Concat(
			[]string{"-m addrtype --dst-type LOCAL -j RETURN"},
			discovery(f),
			// raw can not refuse. Without conntrack it leaves no entry, and
			// FANFARE-FILTER refuses it.
			[]string{"-j CT --notrack"},
		)},
		"mangle": {xtRedirect: xtRedirects(s, f)},
		"filter": xtFilter(s, f),
		"nat":    xtNAT(s, f),
	}
}

// discovery lets pass what routers and hosts ask their neighbours by.
func discovery(f state.SetID) []string {
	if f == 0 {
		return nil
	}
	return []string{
		"-p ipv6-icmp -m icmp6 --icmpv6-type 135 -j RETURN",
		"-p ipv6-icmp -m icmp6 --icmpv6-type 136 -j RETURN",
	}
}

func xtFilter(s state.State, f state.SetID) ChainSet {
	in := func(m ipsetID, fields string) string { return "-m set --match-set " + SetName(m, f) + " " + fields }
	unreachable := [2]string{"icmp-port-unreachable", "icmp6-port-unreachable"}[f]
	invalid := "-m conntrack --ctstate INVALID -j DROP"
	miss := func(drop, reject ipsetID) []string {
		return []string{
			midstream + in(drop, "dst,dst") + " -g " + xtRefuse,
			in(drop, "dst,dst") + " -j DROP", in(reject, "dst,dst") + " -g " + xtRefuse,
		}
	}
	return ChainSet{
		xtForward: {
			in(IPSetVIPs, "dst") + " -g " + xtUnserved,
			in(IPSetOwned, "dst") + " -g " + xtRefuse,
		},
		xtUnserved: slices.Concat(discovery(f), []string{invalid, "-j " + xtPorts, "-g " + xtRefuse}),
		// A VIP may be an address of the node: what it does not serve is the host's.
		xtOutput: append(xtRedirected(s, f), "-j "+SourcesChain, "-j "+xtInternal, "-m addrtype --dst-type LOCAL -j RETURN", invalid, "-g "+xtRefuse),
		// nat drops nothing. What it left untranslated is refused or dropped here.
		xtPorts:      slices.Concat([]string{"-j " + SourcesChain}, xtClients(s, f, xtInternal), []string{"-g " + xtExternal}),
		SourcesChain: {in(IPSetLimited, "dst,dst") + " -m set ! --match-set " + SetName(ipsetSources, f) + " dst,dst,src -j DROP"},
		xtExternal:   miss(ipsetExternalDrop, IPSetExternalReject),
		xtInternal:   miss(ipsetInternalDrop, ipsetInternalReject),
		xtRefuse: slices.Concat(discovery(f), []string{
			"-p tcp -j REJECT --reject-with tcp-reset",
			"-j REJECT --reject-with " + unreachable,
		}),
	}
}

// midstream matches a packet that begins no connection. What nat is asked about is
// then the middle of one that conntrack does not know.
const midstream = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN "

// xtClients leads the clients on this node to a chain.
func xtClients(s state.State, f state.SetID, chain string) []string {
	rules := []string{"-m set --match-set " + SetName(ipsetClients, f) + " src -g " + chain}
	if p := s.Clients.InterfacePrefix; p != "" {
		rules = append(rules, "-i "+p+"+ -g "+chain)
	}
	if b := s.Clients.Bridge; b != "" {
		rules = append(rules, "-i "+b+" -g "+chain)
	}
	return rules
}

// echo answers ping to a VIP from the node itself.
func echo(f state.SetID) string {
	return [2]string{
		"-p icmp -m icmp --icmp-type 8 -j REDIRECT",
		"-p ipv6-icmp -m icmp6 --icmpv6-type 128 -j REDIRECT",
	}[f]
}

func xtNAT(s state.State, f state.SetID) ChainSet {
	x, i := xtTree(state.External).Root, xtTree(state.Internal).Root
	m := flagOf(s.SNAT)
	nat := ChainSet{
		xtArriving: slices.Concat([]string{echo(f)}, xtClients(s, f, i), []string{"-g " + x}),
		xtLeaving:  {echo(f), "-g " + i},
		xtLeave:    nil,
		xtSource: {
			// A process of the host has the VIP for its source where that is on an
			// interface of this node. Other nodes have it too, and would get the answer.
			"! -o lo -m set --match-set " + SetName(IPSetVIPs, f) + " src -g " + xtReplace,
			// Others of the host have an address to which replies return.
			"-m addrtype --src-type LOCAL -g " + xtKeep,
			`-m bpf --bytecode "` + sameAddrs(f) + `" -g ` + xtReplace,
			"-m mark ! --mark " + matchMark(m) + " -j RETURN",
			"-m set --match-set " + SetName(ipsetNever, f) + " dst -g " + xtKeep,
			"-g " + xtReplace,
		},
		xtKeep:    {unmark(m)},
		xtReplace: xtNewSource(s.SNAT, f),
	}
	for _, p := range joined(ForwardPrefixes(s)) {
		if state.Family(p.Addr()) == f {
			nat.Add(xtLeave, "-m conntrack --ctstate DNAT --ctorigdst "+prefixText(p)+" -g "+xtSource)
		}
	}
	return nat
}

// joined covers the same addresses with as few prefixes as can be: a new flow passes
// all of them, and addresses of a pool that is gone may be many.
func joined(all []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range all {
		b.AddPrefix(p)
	}
	set, err := b.IPSet()
	if err != nil {
		panic("BUG: " + err.Error()) // of ranges that end before they begin, which no prefix does
	}
	return set.Prefixes()
}

// prefixText is a prefix in the words of the match conntrack.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// DefaultFlag is the bit by which kube-proxy marks packets whose source must be
// replaced. It means the same here, and is removed before kube-proxy's rules see it.
var DefaultFlag = state.Mark{Value: 0x4000, Mask: 0x4000}

// flag is the mark that tells POSTROUTING which flows need a new source: rules that
// choose a backend can not know yet which source there will be.
func flagOf(s state.SNAT) state.Mark {
	if s.Mark.Value == 0 {
		return DefaultFlag
	}
	return s.Mark
}

// match is the mark as the match of the name shows it.
func matchMark(m state.Mark) string {
	if m.Mask == math.MaxUint32 {
		return fmt.Sprintf("%#x", m.Value)
	}
	return m.String()
}

func setMark(m state.Mark) string { return "-j MARK --set-xmark " + m.String() }
func unmark(m state.Mark) string  { return setMark(state.Mark{Mask: m.Mask}) }

// xtNewSource replaces the source. A mark that was asked for stays.
func xtNewSource(s state.SNAT, f state.SetID) []string {
	var rules []string
	if s.Mark.Value == 0 {
		rules = append(rules, unmark(DefaultFlag))
		if s.Mark != (state.Mark{}) {
			rules = append(rules, setMark(s.Mark))
		}
	} else {
		// A hairpin came without.
		rules = append(rules, setMark(s.Mark))
	}
	rule := "-j MASQUERADE"
	if from := s.Source(f); from.IsValid() {
		rule = "-j SNAT --to-source " + from.String()
	}
	return append(rules, rule+[...]string{state.PortFullyRandom: " --random-fully", state.PortRandom: " --random", state.PortKept: ""}[s.Ports])
}

// sameAddrs is a program of the packet filter for packets whose source is their
// destination, as iptables takes it. No other match compares the two.
func sameAddrs(f state.SetID) string {
	if f == 0 {
		return "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 65535,6 0 0 0"
	}
	ops := []string{"18"}
	for word := range 4 {
		// Load from source, copy to X, load from destination, unless equal go to the end.
		ops = append(ops, fmt.Sprintf("32 0 0 %d", 8+4*word), "7 0 0 0", fmt.Sprintf("32 0 0 %d", 24+4*word),
			fmt.Sprintf("29 0 %d 0", 4*(3-word)+1))
	}
	return strings.Join(append(ops, "6 0 0 65535", "6 0 0 0"), ",")
}

// xtTree is the tree of one kind of clients.
func xtTree(s state.Side) Tree {
	return Tree{
		Root: "FANFARE-" + strings.ToUpper(s.Prefix),
		Name: func(p netip.Prefix) string { return ChainName(s, "", p.String()) },
		Leaf: func(v *state.VIP) []string { return xtLeaf(s, v) },
	}
}

// ChainName is the name of a chain made for something, "FAN-x-t80-192.0.2.1". What
// is too long for that, as most of IPv6 is, is hashed.
func ChainName(s state.Side, port, addr string) string {
	name := MadePrefix + s.Prefix + "-" + port + addr
	if len(name) > MaxChainName {
		name = MadePrefix + s.Prefix + "-" + port + state.ShortHash(addr)
	}
	return name
}

func FrontendName(s state.Side, v *state.VIP, fe *state.Frontend) string {
	return ChainName(s, fmt.Sprintf("%c%d-", fe.Protocol.String()[0], fe.Port), v.Addr.String())
}

// xtLeaf leads to the one port of a VIP, or to the chain that tells its ports
// apart.
func xtLeaf(s state.Side, v *state.VIP) []string {
	to := "-d " + netip.PrefixFrom(v.Addr, v.Addr.BitLen()).String() + " "
	switch len(v.Frontends) {
	case 0:
		return nil
	case 1:
		return []string{to + xtPort(s, v, &v.Frontends[0])}
	default:
		return []string{to + "-g " + ChainName(s, "", v.Addr.String())}
	}
}

// xtPort leads from a VIP to one of its ports. Where there is no backend, the flow
// is translated to what it is: so no other proxy translates it, and the filter
// refuses it.
func xtPort(s state.Side, v *state.VIP, fe *state.Frontend) string {
	match := fmt.Sprintf("-p %[1]s -m %[1]s --dport %[2]d ", fe.Protocol, fe.Port)
	t := fe.Target(s)
	if len(t.Backends) == 0 {
		return match + "-j DNAT --to-destination " + v.Addr.String()
	}
	return match + "-g " + FrontendName(fe.ChainSide(s), v, fe)
}

// A Render renders VIPs.
type Render struct {
	Node string
	Mark state.Mark
}

// VIP adds the chains of one VIP. Their names all have its address.
func (r Render) VIP(to ChainSet, v *state.VIP) {
	for _, s := range []state.Side{state.External, state.Internal} {
		for i := range v.Frontends {
			fe := &v.Frontends[i]
			if len(v.Frontends) > 1 {
				to.Add(ChainName(s, "", v.Addr.String()), xtPort(s, v, fe))
			}
			if fe.ChainSide(s).Prefix == s.Prefix && len(fe.Target(s).Backends) > 0 {
				r.frontend(to, v, fe, s)
			}
		}
	}
}

// frontend adds the chain that chooses a backend, and those of backends that have
// to remember who came.
func (r Render) frontend(to ChainSet, v *state.VIP, fe *state.Frontend, s state.Side) {
	name := FrontendName(s, v, fe)
	if fe.Fenced(v.Addr) {
		to.Add(name, "-m set ! --match-set "+SetName(ipsetSources, state.Family(v.Addr))+" dst,dst,src -j DNAT --to-destination "+v.Addr.String())
	}
	t := fe.Target(s)
	if fe.Affinity > 0 {
		for _, b := range t.Backends {
			to.Add(name, "-m set --match-set "+AffinityName(v, fe, b)+" src -g "+BackendName(s, v, fe, b))
			r.backend(to, v, fe, s, b)
		}
	}
	if fe.Strays(s) {
		// The filter refuses it.
		to.Add(name, midstream+"-j DNAT --to-destination "+v.Addr.String())
	}
	marked := false
	ordered := r.ordered(t)
	choices := choices(fe, t, ordered)
	for i, b := range ordered {
		// Backends that need a new source come last, so that one rule marks all.
		if r.replaced(t, b) && !marked && fe.Affinity == 0 {
			to.Add(name, setMark(r.Mark))
			marked = true
		}
		to.Add(name, "-p "+fe.Protocol.String()+" "+choices[i]+r.verdict(v, fe, s, b))
	}
}

// ordered is the backends, those whose flows keep their source first.
func (r Render) ordered(t *state.Target) []state.Backend {
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

// replaced says whether the backend gets to see another source than the client.
func (r Render) replaced(t *state.Target, b state.Backend) bool {
	return t.Remote == state.Masquerade && b.Node != r.Node
}

func (r Render) verdict(v *state.VIP, fe *state.Frontend, s state.Side, b state.Backend) string {
	if fe.Affinity > 0 {
		return "-g " + BackendName(s, v, fe, b)
	}
	return "-j DNAT --to-destination " + b.Addr.String()
}

// backend adds the chain of a backend that remembers its clients.
func (r Render) backend(to ChainSet, v *state.VIP, fe *state.Frontend, s state.Side, b state.Backend) {
	name := BackendName(s, v, fe, b)
	if r.replaced(fe.Target(s), b) {
		to.Add(name, setMark(r.Mark))
	}
	to.Add(name,
		"-j SET --add-set "+AffinityName(v, fe, b)+" src --exist",
		"-p "+fe.Protocol.String()+" -j DNAT --to-destination "+b.Addr.String())
}

func BackendName(s state.Side, v *state.VIP, fe *state.Frontend, b state.Backend) string {
	return MadePrefix + s.Prefix + "-b-" + state.ShortHash(fe.Label(v), b.Addr.String())
}

// AffinityName is the set of clients that come back to a backend. It is the
// backend's own, so that no other one inherits them.
func AffinityName(v *state.VIP, fe *state.Frontend, b state.Backend) string {
	return AffinityPrefix(state.Family(v.Addr)) + state.ShortHash(fe.Label(v), b.Addr.String(), fe.Affinity.String())
}

// choices are the matches that give each of the backends of t, in this order, its share
// of what the ones before it left. The last has all that is left.
func choices(f *state.Frontend, t *state.Target, ordered []state.Backend) []string {
	matches := make([]string, len(ordered))
	if len(ordered) < 2 {
		return matches
	}
	scheduler := f.XtScheduler(t)
	var slots []int
	if scheduler == state.Maglev {
		slots = state.MaglevSlots(t.Backends)
	}
	for i, b := range ordered[:len(ordered)-1] {
		left := ordered[i:]
		// By the backend's place among all, which is the same on all nodes.
		place := slices.Index(t.Backends, b)
		switch scheduler {
		case state.RoundRobin:
			matches[i] = fmt.Sprintf("-m statistic --mode nth --every %d --packet 0 ", len(left))
		case state.SourceHash:
			matches[i] = hashMatch(state.Family(b.Addr.Addr()), len(t.Backends), place)
		case state.Maglev:
			matches[i] = Bytecode(SlotsProgram(state.Family(b.Addr.Addr()), slots, place))
		default:
			sum := 0
			for _, l := range left {
				sum += l.Share()
			}
			matches[i] = "-m statistic --mode random --probability " + probability(b.Share(), sum) + " "
		}
	}
	return matches
}

// probability is a share of all as the kernel keeps it, in 31 bits, and iptables-save
// shows it.
func probability(share, all int) string {
	const one = 1 << 31
	return fmt.Sprintf("%.11f", math.Round(one*float64(share)/float64(all))/one)
}
