package obstacle

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Hooks, from linux/netfilter.h.
const (
	hookPrerouting  = 0
	hookInput       = 1
	hookForward     = 2
	hookPostrouting = 4
)

// judge finds chains that certainly stop all samples of a family and Destination. One that stops
// some of them is a policy, such as a NetworkPolicy. Each chain is reported once, with all flows
// that it blocks.
func (r *ruleset) judge(f *facts) (all []Obstacle) {
	samples := f.arrivals()
	for _, base := range r.bases {
		if base.table.kubeProxy() {
			all = append(all, r.judgeKubeProxy(base, f.families)...)
			continue
		}
		for bit := range 2 * destinations {
			family, to := state.SetID(bit/destinations), bit%destinations
			o, found := r.judgeChain(base, slices.DeleteFunc(slices.Clone(samples), func(s sample) bool {
				return s.family != family || s.to() != to || !base.sees(family)
			}))
			if !found {
				continue
			}
			at := slices.IndexFunc(all, o.Same)
			if at < 0 {
				at, all = len(all), append(all, o)
			}
			if !f.partial.Has(family, to) {
				all[at].Blocks |= FlowsTo(family, to)
			}
		}
	}
	return all
}

// judgeChain returns the obstacle that a chain is to all samples, which have one family and
// Destination. Found is false if one sample passes, or if two meet different obstacles.
func (r *ruleset) judgeChain(base hookedChain, samples []sample) (o Obstacle, found bool) {
	for _, s := range samples {
		packet := base.meets(s, r.nat)
		if packet == nil {
			return o, false
		}
		var one Obstacle
		switch out, by := walkHook(r, base, packet); {
		case out&mayAccept != 0:
			return o, false
		case out == mayDrop:
			one = Obstacle{Code: Firewall, About: fmt.Sprintf("chain %s %s", base.table, by)}
			one.Message = fmt.Sprintf("%s drops traffic to the addresses, on its way to %s: %s", one.About, s.to(),
				cure(base))
		default:
			one = Obstacle{Code: Untracked, About: fmt.Sprintf("chain %s %s", base.table, by)}
			one.Message = fmt.Sprintf("%s has traffic to the addresses, on its way to %s, not tracked (notrack), so "+
				"that it cannot be translated: except it there", one.About, s.to())
		}
		if found && one.Code != o.Code {
			return o, false
		}
		o, found = one, true
	}
	return o, found
}

// meets returns the first packet of the sample's flow as the chain sees it, before or after the
// translation by Fanfare's rules at priority nat; nil if the chain does not see it. Of two chains
// at one priority the kernel runs the newer one first, which no listing shows: the other
// program's chain is assumed to run second.
func (c hookedChain) meets(s sample, nat int32) *packet {
	to := s.backend
	switch {
	case c.kind == "nat": // it sees no translated flow, and only translates others
		return nil
	case c.hook == hookPrerouting:
		if c.priority < nat {
			to = s.vip
		}
	case c.hook == hookInput && s.own, c.hook == hookForward && !s.own && s.out != "",
		c.hook == hookPostrouting && !s.own:
	default:
		return nil
	}
	p := newPacket(s, to)
	p.by(unix.NFT_META_IIFNAME, s.in)
	if !s.own && c.hook != hookPrerouting {
		p.by(unix.NFT_META_OIFNAME, s.out)
	}
	if c.hook != hookPrerouting || c.priority >= priorityConntrack { // conntrack knows nothing before
		p.ct[unix.NFT_CT_STATE] = known(binary.NativeEndian.AppendUint32(nil, stateNew)...)
		p.ct[unix.NFT_CT_DIRECTION] = known(0)
	}
	return p
}

// cure returns what to change in a chain that drops packets: an exception that holds for all
// addresses and ports, so that it remains right when Services change.
func cure(base hookedChain) string {
	switch base.hook {
	case hookPrerouting:
		return "except it there"
	case hookInput:
		return "let it accept \"ct status dnat\", or these ports, before"
	}
	return "let it accept \"ct status dnat\" before"
}

// judgeKubeProxy finds kube-proxy's chains of nftables that may translate before Fanfare's rules.
// In iptables mode both have the same priority, and the kernel runs the newer one first.
func (r *ruleset) judgeKubeProxy(c hookedChain, families [2]bool) []Obstacle {
	if c.kind != "nat" || c.hook != hookPrerouting || c.priority > r.nat ||
		!(families[0] && c.sees(0) || families[1] && c.sees(1)) {
		return nil
	}
	about := fmt.Sprintf("chain %s %s", c.table, c.name)
	return []Obstacle{{Code: TranslatedBefore, About: about, Message: fmt.Sprintf(
		"%s has the priority that iptables has (%d), and whichever of kube-proxy's rules and Fanfare's came last "+
			"translates first: start Fanfare with --proxy-mode=nftables, or kube-proxy in its iptables mode",
		about, c.priority)}}
}
