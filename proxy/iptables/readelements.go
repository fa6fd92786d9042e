package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// readElements translates chains of nat and entries of sets into elements of the sets of nftables:
// VIPs, frontends and their backends. Package conntrack compares those with the target to find
// flows that must end. Rules that it does not recognise are left out.
func readElements(nat chainSet, entries entrySet, f state.SetID) []state.Element {
	var all []state.Element
	for e := range entries {
		if e.set == ipsetVIPs {
			all = append(all, state.Element{
				Set: state.SetVIPs + f, Key: string(state.Encoding(nil).Addr(e.addr.Addr())),
			})
		}
	}
	for _, s := range []state.Side{state.External, state.Internal} {
		h := treeReader{nat: nat, side: s, family: f}
		h.visit(xtTree(s).root, netip.Addr{}, 0)
		all = append(all, h.all...)
	}
	slices.SortFunc(all, state.Element.Compare)
	return all
}

// A treeReader collects the elements of one side by walking its tree as the kernel has it.
type treeReader struct {
	nat    chainSet
	side   state.Side
	family state.SetID
	all    []state.Element
}

// MaxDepth bounds how deep a walk follows jumps. It exceeds the depth of Fanfare's trees, also
// for IPv6, and ends the walk where another program has made a loop. Package obstacle uses it
// for the chains of other programs.
const MaxDepth = 40

// visit walks a chain. vip is the last single address that a rule on the way matched.
func (h *treeReader) visit(chain string, vip netip.Addr, depth int) {
	for _, rule := range h.nat[chain] {
		r := parseRule(rule)
		if r.dest.IsValid() && r.dest.IsSingleIP() {
			vip = r.dest.Addr()
		}
		switch {
		case r.port.Port != 0 && vip.IsValid():
			h.frontend(vip, r)
		case depth < MaxDepth && r.target != chain:
			h.visit(r.target, vip, depth+1)
		}
	}
}

// frontend adds a frontend and its backends, which are in its chain or, with affinity, in
// chains of their own. The slots have no meaning but to make the keys unique.
func (h *treeReader) frontend(vip netip.Addr, r xtRule) {
	key := state.Encoding(nil).Addr(vip).Proto(r.port.Proto).Port(r.port.Port)
	h.all = append(h.all, state.Element{Set: h.side.Svc + h.family, Key: string(key)})
	var backends []netip.AddrPort
	for _, chain := range append([]string{r.target}, h.targets(r.target)...) {
		for _, rule := range h.nat[chain] {
			if b := parseRule(rule).to; b.Port() != 0 {
				backends = append(backends, b)
			}
		}
	}
	slices.SortFunc(backends, netip.AddrPort.Compare)
	for slot, b := range slices.Compact(backends) {
		h.all = append(h.all, state.Element{
			Set: h.side.Eps + h.family, Key: string(slices.Clone(key).Slot(slot)),
			Data: string(state.Encoding(nil).AddrPort(b)),
		})
	}
}

// targets returns the chains that a chain leads to, sorted.
func (h *treeReader) targets(chain string) (names []string) {
	for _, rule := range h.nat[chain] {
		if target := ruleTarget(rule); h.nat[target] != nil {
			names = append(names, target)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// An xtRule holds the parts of a rule that a walk needs; zero where the rule has none.
type xtRule struct {
	dest   netip.Prefix
	port   state.Port
	target string         // of -j or -g
	to     netip.AddrPort // of DNAT
}

// parseRule reads a rule as iptables-save shows it, without "-A" and the chain. It ignores what it
// does not know, negations included, so it is for Fanfare's own rules.
func parseRule(rule string) (r xtRule) {
	words := strings.Fields(rule)
	for i, w := range words[:max(len(words)-1, 0)] {
		switch arg := words[i+1]; w {
		case "-d":
			r.dest = ParsePrefix(arg)
		case "-p":
			r.port.Proto = map[string]state.Protocol{"tcp": state.TCP, "udp": state.UDP, "sctp": state.SCTP}[arg]
		case "--dport":
			_, _ = fmt.Sscan(arg, &r.port.Port)
		case "-g", "-j":
			r.target = arg
		case "--to-destination":
			r.to, _ = netip.ParseAddrPort(arg)
		}
	}
	return r
}
