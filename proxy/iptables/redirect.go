package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Redirect returns what the rules cannot do: they are written with all others.
func (x *Renderer) Redirect(_ context.Context, want state.State, _ bool) error {
	for f := range state.SetID(2) {
		if len(state.RedirectsOf(want.Redirects, f)) > 0 && x.teeErr[f] != nil {
			return x.teeErr[f]
		}
	}
	return nil
}

// able is s without the redirects that iptables cannot do here.
func (x *Renderer) able(s state.State) state.State {
	s.Redirects = slices.DeleteFunc(slices.Clone(s.Redirects), func(h state.Redirect) bool { return x.teeErr[state.Family(h.VIP)] != nil })
	return s
}

// xtTee is the rule that redirects, to try whether the kernel takes it.
func xtTee(f state.SetID) xtFeature {
	return xtFeature{"mangle", "-j TEE --gateway " + [2]string{"192.0.2.1", "2001:db8::1"}[f], "CONFIG_NETFILTER_XT_TARGET_TEE"}
}

// xtRedirects are the rules of FANFARE-HANDON, which has the packets of TCP for the VIPs that
// have connections elsewhere.
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
		rules = append(rules, "-m mac --mac-source "+m.String()+" -j RETURN")
	}
	for _, h := range all {
		match := fmt.Sprintf("-d %s -i %s -j ", netip.PrefixFrom(h.VIP, h.VIP.BitLen()), h.Interface)
		rules = append(rules, match+"TEE --gateway "+h.Via.String()+" --oif "+h.Interface, match+"DROP")
	}
	return rules
}

// xtRedirected lets copies leave: they pass OUTPUT, with the client's source.
func xtRedirected(s state.State, f state.SetID) []string {
	if len(state.RedirectsOf(s.Redirects, f)) == 0 {
		return nil
	}
	return []string{"-m conntrack --ctstate UNTRACKED -m addrtype ! --src-type LOCAL -j RETURN"}
}
