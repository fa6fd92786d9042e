package iptables

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Redirect writes nothing: Update and Converge write redirects with all other rules. It returns
// an error if want has redirects of a family whose kernel or program lacks the target TEE.
func (x *Renderer) Redirect(_ context.Context, want state.State, _ bool) error {
	for f := range state.SetID(2) {
		if len(state.RedirectsOf(want.Redirects, f)) > 0 && x.teeErr[f] != nil {
			return x.teeErr[f]
		}
	}
	return nil
}

// able returns s without the redirects of families that lack the target TEE.
func (x *Renderer) able(s state.State) state.State {
	s.Redirects = slices.DeleteFunc(slices.Clone(s.Redirects), func(h state.Redirect) bool { return x.teeErr[state.Family(h.VIP)] != nil })
	return s
}

// xtTee is the rule for a probe of the target TEE, which sends a copy of a packet to another host.
func xtTee(f state.SetID) xtFeature {
	return xtFeature{"mangle", "-j TEE --gateway " + [2]string{"192.0.2.1", "2001:db8::1"}[f], "CONFIG_NETFILTER_XT_TARGET_TEE"}
}

// xtRedirects returns the rules of FANFARE-HANDON, through which TCP packets pass for VIPs whose
// previous owner still has connections. Packets of flows that this node knows, and packets that
// begin a connection, stay. Invalid packets go only with FIN or RST: without, they may belong to a
// connection of this node. Packets that came from another node stay too: otherwise two nodes could
// send a packet to each other without end.
func xtRedirects(s state.State, f state.SetID) []string {
	all := state.RedirectsOf(s.Redirects, f)
	if len(all) == 0 {
		return nil
	}
	rules := []string{
		"-m conntrack ! --ctstate INVALID,NEW -j RETURN",
		"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j RETURN",
		"-p tcp -m conntrack --ctstate INVALID -m tcp --tcp-flags FIN,RST NONE -j RETURN",
	}
	for _, m := range s.Nodes {
		rules = append(rules, "-m mac --mac-source "+net.HardwareAddr(m[:]).String()+" -j RETURN")
	}
	for _, h := range all {
		match := fmt.Sprintf("-d %s -i %s -j ", netip.PrefixFrom(h.VIP, h.VIP.BitLen()), h.Interface)
		rules = append(rules, match+"TEE --gateway "+h.Via.String()+" --oif "+h.Interface, match+"DROP")
	}
	return rules
}

// xtRedirected returns the rule that accepts copies made by TEE: they pass OUTPUT untracked, with
// the client's address as their source.
func xtRedirected(s state.State, f state.SetID) []string {
	if len(state.RedirectsOf(s.Redirects, f)) == 0 {
		return nil
	}
	return []string{"-m conntrack --ctstate UNTRACKED -m addrtype ! --src-type LOCAL -j RETURN"}
}
