package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

const (
	// xtArriving is the chain by which Fanfare's use of a program is recognised.
	xtArriving = "FANFARE-ARRIVING"

	// staticPrefix begins the names of the chains of ruleset.ipt, and madePrefix those of the chains for
	// VIPs, frontends and backends, which is short because the names hold an address. Unknown chains
	// with either prefix are deleted.
	staticPrefix = "FANFARE-"
	madePrefix   = "FAN-"
)

// maxChainName is the length of the longest name of a chain that iptables accepts, in bytes:
// XT_EXTENSION_MAXNAMELEN without the final zero.
const maxChainName = 28

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

// xtTree returns the tree for one side, external or internal clients.
func xtTree(s state.Side) tree {
	return tree{
		root: staticPrefix + strings.ToUpper(s.Prefix),
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

// midstream matches a TCP packet that does not begin a connection.
const midstream = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN "

// frontend adds the chain that chooses a backend and, with affinity, the chains of the backends,
// which record their clients.
func (r render) frontend(to chainSet, v *state.VIP, fe *state.Frontend, s state.Side) {
	name := frontendName(s, v, fe)
	if fe.SourceRestricted(v.Addr) {
		to.add(name, "-m set ! --match-set "+setName(ipsetSources, state.Family(v.Addr))+
			" dst,dst,src -j DNAT --to-destination "+v.Addr.String())
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
		if t.Masks(b, r.node) && !marked && fe.Affinity == 0 {
			to.add(name, setMark(r.mark))
			marked = true
		}
		to.add(name, "-p "+fe.Protocol.String()+" "+choices[i]+r.verdict(v, fe, s, b))
	}
}

// ordered returns the backends: first those whose flows keep their source.
func (r render) ordered(t *state.Target) []state.Backend {
	masked := func(b state.Backend) bool { return t.Masks(b, r.node) }
	kept := slices.DeleteFunc(slices.Clone(t.Backends), masked)
	return append(kept, slices.DeleteFunc(slices.Clone(t.Backends),
		func(b state.Backend) bool { return !masked(b) })...)
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
	if fe.Target(s).Masks(b, r.node) {
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
