package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// HeldElements is what chains and sets mean, in the words of nftables, as far as
// conntrack's care needs it: which backends new flows were led to.
func HeldElements(nat ChainSet, entries entrySet, f state.SetID) []state.Element {
	var all []state.Element
	for e := range entries {
		if e.Set == IPSetVIPs {
			all = append(all, state.Element{Set: state.SetVIPs + f, Key: string(state.Encoding(nil).Addr(e.Addr.Addr()))})
		}
	}
	for _, s := range []state.Side{state.External, state.Internal} {
		h := holder{nat: nat, side: s, family: f}
		h.visit(xtTree(s).Root, netip.Addr{}, 0)
		all = append(all, h.all...)
	}
	slices.SortFunc(all, state.Element.Compare)
	return all
}

// A holder walks a tree that is in the kernel.
type holder struct {
	nat    ChainSet
	side   state.Side
	family state.SetID
	all    []state.Element
}

// MaxDepth is more than our trees have: another program may have led one to itself.
const MaxDepth = 40

func (h *holder) visit(chain string, vip netip.Addr, depth int) {
	for _, rule := range h.nat[chain] {
		r := ParseRule(rule)
		if r.Dest.IsValid() && r.Dest.IsSingleIP() {
			vip = r.Dest.Addr()
		}
		switch {
		case r.port.Port != 0 && vip.IsValid():
			h.frontend(vip, r)
		case depth < MaxDepth && r.Target != chain:
			h.visit(r.Target, vip, depth+1)
		}
	}
}

func (h *holder) frontend(vip netip.Addr, r xtRule) {
	key := state.Encoding(nil).Addr(vip).Proto(r.port.Proto).Port(r.port.Port)
	h.all = append(h.all, state.Element{Set: h.side.Svc + h.family, Key: string(key)})
	var backends []netip.AddrPort
	for _, chain := range append([]string{r.Target}, h.targets(r.Target)...) {
		for _, rule := range h.nat[chain] {
			if b := ParseRule(rule).to; b.Port() != 0 {
				backends = append(backends, b)
			}
		}
	}
	slices.SortFunc(backends, netip.AddrPort.Compare)
	for slot, b := range slices.Compact(backends) {
		h.all = append(h.all, state.Element{
			Set: h.side.Eps + h.family, Key: string(slices.Clone(key).Slot(slot)), Data: string(state.Encoding(nil).AddrPort(b)),
		})
	}
}

// targets are the chains that a chain leads to.
func (h *holder) targets(chain string) (names []string) {
	for _, rule := range h.nat[chain] {
		if target := ruleTarget(rule); h.nat[target] != nil {
			names = append(names, target)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// An xtRule is a rule, as far as the walk needs it.
type xtRule struct {
	Dest   netip.Prefix
	port   state.Port
	Target string
	to     netip.AddrPort
}

func ParseRule(rule string) (r xtRule) {
	words := strings.Fields(rule)
	for i, w := range words[:max(len(words)-1, 0)] {
		switch arg := words[i+1]; w {
		case "-d":
			r.Dest = ParsePrefix(arg)
		case "-p":
			r.port.Proto = map[string]state.Protocol{"tcp": state.TCP, "udp": state.UDP, "sctp": state.SCTP}[arg]
		case "--dport":
			_, _ = fmt.Sscan(arg, &r.port.Port)
		case "-g", "-j":
			r.Target = arg
		case "--to-destination":
			r.to, _ = netip.ParseAddrPort(arg)
		}
	}
	return r
}
