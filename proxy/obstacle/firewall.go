package obstacle

import (
	"fmt"

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

// A passage is one direction of flows of one kind. What a chain does to all
// samples of a passage is an obstacle; what it does to some is a policy,
// such as a NetworkPolicy.
type passage struct {
	family      state.SetID
	reply       bool
	own, remote bool // as the samples'
}

// to says where the packets of a passage go or come from.
func (p passage) to() string {
	switch {
	case p.own:
		return "processes of this node"
	case p.remote:
		return "pods on other nodes"
	}
	return "pods of this node"
}

// passages are the directions in which a chain can be an obstacle, the clearer ones
// first.
func passages() (all []passage) {
	for _, reply := range []bool{false, true} {
		for _, family := range []state.SetID{0, 1} {
			for _, kind := range []passage{{}, {own: true}, {remote: true}} {
				all = append(all, passage{family, reply, kind.own, kind.remote})
			}
		}
	}
	return all
}

// of says whether a sample goes in this direction.
func (p passage) of(s sample) bool {
	return s.family == p.family && s.own == p.own && (s.remote == p.remote || s.own)
}

// judgeRules finds chains that drop or take away all samples of a passage.
func judgeRules(r *ruleset, samples []sample) (all []Obstacle) {
	told := make(map[string]bool)
	for _, base := range r.bases {
		for _, p := range passages() {
			if !base.sees(p.family) {
				continue
			}
			if o, found := judgeChain(r, base, p, samples); found && !told[o.About] {
				told[o.About] = true
				all = append(all, o)
			}
		}
	}
	return all
}

// judgeChain says what a chain does to all samples of a passage, if it does the same to
// each.
func judgeChain(r *ruleset, base hookedChain, p passage, samples []sample) (o Obstacle, found bool) {
	for _, s := range samples {
		if !p.of(s) {
			continue
		}
		packet := base.meets(s, p.reply, r.nat)
		if packet == nil {
			return o, false
		}
		w, out := walkHook(r, base, packet)
		one, is := w.obstacle(base, out, p)
		if !is || found && one.Code != o.Code {
			return o, false
		}
		o, found = one, true
	}
	return o, found
}

// meets is how a chain meets a packet of the sample, nil if it does not. Of two that
// translate at one priority the kernel asks the younger first, which no listing shows: it
// is taken for the later one.
func (c hookedChain) meets(s sample, reply bool, nat int32) *knownPacket {
	before := c.hook == hookPrerouting && c.priority < nat
	switch {
	case c.kind == "nat" && (!before || reply): // asked after ours, or not at all
		return nil
	case s.own && reply: // it comes in by no interface
		return nil
	case c.hook == hookPrerouting, c.hook == hookForward && !s.own && s.out != "":
	case c.hook == hookInput && s.own && !reply, c.hook == hookPostrouting && !s.own && !reply:
	default:
		return nil
	}
	p, to := newPacket(s.family, s.proto), s.backend
	if before {
		to = s.vip
	}
	if reply {
		p.from(s.backend.Addr().AsSlice(), s.backend.Port())
		p.by(unix.NFT_META_IIFNAME, s.out)
		if c.hook != hookPrerouting {
			p.by(unix.NFT_META_OIFNAME, s.in)
		}
	} else {
		p.to(to.Addr().AsSlice(), to.Port())
		p.by(unix.NFT_META_IIFNAME, s.in)
		if c.hook != hookPrerouting && c.hook != hookInput {
			p.by(unix.NFT_META_OIFNAME, s.out)
		}
	}
	switch {
	case c.hook == hookPrerouting && c.priority < priorityConntrack: // conntrack knows nothing yet
	case reply:
		p.tracked(stateEstablished, true, true)
	default:
		p.tracked(stateNew, false, !before)
	}
	return p
}

// obstacle is the obstacle that the trail shows the chain to be, if any.
func (w *trail) obstacle(base hookedChain, out outcomes, p passage) (Obstacle, bool) {
	chain := func(name string) string { return fmt.Sprintf("chain %s %s", base.table, name) }
	direction := "to the addresses, on its way to " + p.to()
	if p.reply {
		direction = "from " + p.to() + " that answers for the addresses"
	}
	switch {
	case out == mayDrop:
		about := chain(w.dropped)
		return Obstacle{Firewall, about, fmt.Sprintf("%s drops traffic %s: %s", about, direction, cure(base, p.reply))}, true
	case w.untracked != "" && base.priority < priorityConntrack:
		about := chain(w.untracked)
		return Obstacle{Untracked, about, fmt.Sprintf(
			"%s has traffic %s not tracked (notrack), so that it cannot be translated: except it there", about, direction)}, true
	case w.translated != "" && base.kind == "nat":
		about := chain(w.translated)
		return Obstacle{TranslatedBefore, about, fmt.Sprintf(
			"%s translates traffic %s, at priority %d, before Fanfare at %d: except it there, or give that chain a higher priority",
			about, direction, base.priority, w.rules.nat)}, true
	}
	return Obstacle{}, false
}

// judgeOrder finds kube-proxy's chains of nftables where they may come before ours,
// which in iptables have the same priority.
func judgeOrder(r *ruleset, families [2]bool) (all []Obstacle) {
	for _, c := range r.kubeProxy {
		if c.priority > r.nat || !(families[0] && c.sees(0) || families[1] && c.sees(1)) {
			continue
		}
		about := fmt.Sprintf("chain %s %s", c.table, c.name)
		all = append(all, Obstacle{TranslatedBefore, about, fmt.Sprintf(
			"%s has the priority that iptables has (%d), and whichever of kube-proxy's rules and Fanfare's came last translates first: start Fanfare with --proxy-mode=nftables, or kube-proxy in its iptables mode",
			about, c.priority)})
	}
	return all
}

// cure is what to change in a chain that drops.
func cure(base hookedChain, reply bool) string {
	switch {
	case base.hook == hookPrerouting:
		return "except it there"
	case reply:
		return "let it accept \"ct state established,related\" before"
	case base.hook == hookInput:
		return "let it accept \"ct status dnat\", or these ports, before"
	}
	return "let it accept \"ct status dnat\" before"
}
