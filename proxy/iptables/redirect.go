package iptables

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Redirect writes nothing: Update and Converge write redirects with all other rules. It returns
// an error if want has redirects of a family whose kernel or program lacks them.
func (x *Renderer) Redirect(_ context.Context, want state.State, _ bool) error {
	for f := range state.SetID(2) {
		if len(state.RedirectsOf(want.Redirects, f)) > 0 && x.teeErr[f] != nil {
			return x.teeErr[f]
		}
	}
	return nil
}

// able returns s without the redirects of families that cannot redirect.
func (x *Renderer) able(s state.State) state.State {
	s.Redirects = slices.DeleteFunc(slices.Clone(s.Redirects),
		func(h state.Redirect) bool { return x.teeErr[state.Family(h.VIP)] != nil })
	return s
}

// xtRedirectFeatures are rules for a probe: the target TEE sends a copy of a packet to another
// host, and the match and the target for the TTL keep packets from looping.
func xtRedirectFeatures(f state.SetID) []xtFeature {
	return []xtFeature{
		{"mangle", "-j TEE --gateway " + [2]string{"192.0.2.1", "2001:db8::1"}[f], "CONFIG_NETFILTER_XT_TARGET_TEE"},
		{"mangle", matchTTL(f, "gt", state.RedirectTTL) + setTTL(f),
			"CONFIG_NETFILTER_XT_MATCH_HL and CONFIG_NETFILTER_XT_TARGET_HL"},
	}
}

func matchTTL(f state.SetID, compare string, ttl int) string {
	name := [2]string{"ttl", "hl"}[f]
	return fmt.Sprintf("-m %[1]s --%[1]s-%[2]s %[3]d ", name, compare, ttl)
}

func setTTL(f state.SetID) string {
	return [2]string{"-j TTL --ttl-set ", "-j HL --hl-set "}[f] + strconv.Itoa(state.RedirectTTL)
}

// xtRedirects returns the rules of FANFARE-REDIRECT, through which TCP packets pass for VIPs that
// other nodes have connections to. Packets of flows that this node knows, and packets that
// begin a connection, stay. Invalid packets go only with FIN or RST: without, they may belong to a
// connection of this node. The TTL counts the redirects of a packet, see [state.RedirectTTL]:
// otherwise nodes could send a packet to each other without end.
func xtRedirects(s state.State, f state.SetID) []string {
	all := state.RedirectsOf(s.Redirects, f)
	if len(all) == 0 {
		return nil
	}
	rules := []string{
		"-m conntrack ! --ctstate INVALID,NEW -j RETURN",
		"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j RETURN",
		"-p tcp -m conntrack --ctstate INVALID -m tcp --tcp-flags FIN,RST NONE -j RETURN",
		matchTTL(f, "lt", state.RedirectTTL-state.MaxRedirects+1) + "-j RETURN",
		matchTTL(f, "gt", state.RedirectTTL) + setTTL(f),
	}
	for _, h := range all {
		rules = append(rules, xtHop(h, h.Via, matchTTL(f, "gt", state.RedirectTTL-1))...)
		redirected := matchTTL(f, "lt", state.RedirectTTL)
		if h.OnwardMAC != [6]byte{} {
			back := redirected + "-m mac --mac-source " + net.HardwareAddr(h.OnwardMAC[:]).String() + " "
			rules = append(rules, xtHop(h, h.Beyond, back)...)
			if !h.Beyond.IsValid() {
				rules = append(rules, xtPackets(h, back)+"RETURN")
			}
		}
		rules = append(rules, xtHop(h, h.Onward, redirected)...)
	}
	return rules
}

// xtPackets returns the beginning of a rule for the packets of a redirect that also match.
func xtPackets(h state.Redirect, match string) string {
	return fmt.Sprintf("-d %s -i %s %s-j ", netip.PrefixFrom(h.VIP, h.VIP.BitLen()), h.Interface, match)
}

// xtHop returns the rules that send the packets of a redirect that also match to an address.
func xtHop(h state.Redirect, to netip.Addr, match string) []string {
	if !to.IsValid() {
		return nil
	}
	match = xtPackets(h, match)
	return []string{match + "TEE --gateway " + to.String() + " --oif " + h.Interface, match + "DROP"}
}
