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

// A flowKind is one direction of one kind of flow. A chain that drops all samples of a flowKind
// is an obstacle; one that drops some of them is a policy, such as a NetworkPolicy.
type flowKind struct {
	family      state.SetID
	reply       bool
	own, remote bool // as the samples'
}

// to returns the endpoints of a flowKind, for a message: where its packets go, or where replies
// come from.
func (p flowKind) to() string {
	switch {
	case p.own:
		return "processes of this node"
	case p.remote:
		return "pods on other nodes"
	}
	return "pods of this node"
}

// flowKinds returns all kinds in the order in which they are reported. A chain is reported
// once, so the easiest to understand comes first: requests before replies, and
// pods of this node before others.
func flowKinds() (all []flowKind) {
	for _, reply := range []bool{false, true} {
		for _, family := range []state.SetID{0, 1} {
			for _, kind := range []flowKind{{}, {own: true}, {remote: true}} {
				all = append(all, flowKind{family, reply, kind.own, kind.remote})
			}
		}
	}
	return all
}

// flows returns the kind of flows of the flowKind.
func (p flowKind) flows() Flows { return FlowsTo(p.family, p.destination()) }

func (p flowKind) destination() Destination { return sample{own: p.own, remote: p.remote}.to() }

// of reports whether a sample belongs to this flowKind.
func (p flowKind) of(s sample) bool {
	return s.family == p.family && s.own == p.own && (s.remote == p.remote || s.own)
}

// judgeRules finds chains that drop, translate or exclude from conntrack all samples of a
// flowKind; each chain is reported once, with all flows that it blocks for certain.
func judgeRules(r *ruleset, samples []sample, more partial) (all []Obstacle) {
	reported := make(map[string]int)
	for _, base := range r.bases {
		for _, p := range flowKinds() {
			if !base.sees(p.family) {
				continue
			}
			o, found := judgeChain(r, base, p, samples)
			if !found {
				continue
			}
			at, known := reported[o.About]
			if !known {
				at = len(all)
				reported[o.About], all = at, append(all, o)
			}
			if o.Code == all[at].Code && o.Code != TranslatedBefore && !more[p.family][p.destination()] {
				all[at].Blocks |= p.flows()
			}
		}
	}
	return all
}

// judgeChain returns the obstacle that a chain is to all samples of a flowKind. Found is false
// if one sample passes, or if two meet different obstacles.
func judgeChain(r *ruleset, base hookedChain, p flowKind, samples []sample) (o Obstacle, found bool) {
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

// meets returns a packet of the sample as the chain sees it, before or after the translation by
// Fanfare's rules at priority nat; nil if the chain does not see it. Of two chains at one
// priority the kernel runs the newer one first, which no listing shows. The other program's
// chain is assumed to run second.
func (c hookedChain) meets(s sample, reply bool, nat int32) *knownPacket {
	before := c.hook == hookPrerouting && c.priority < nat
	switch {
	case c.kind == "nat" && (!before || reply): // the flow has its translation already
		return nil
	case s.own && reply: // a local process sends it: hook output, which is not judged
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

// obstacle returns the obstacle that a chain at a hook is, by the results of the simulation.
// About names the chain that has the rule: a chain at the hook may only jump to it.
func (w *hookWalk) obstacle(base hookedChain, out outcomes, p flowKind) (Obstacle, bool) {
	chain := func(name string) string { return fmt.Sprintf("chain %s %s", base.table, name) }
	direction := "to the addresses, on its way to " + p.to()
	if p.reply {
		direction = "from " + p.to() + " that answers for the addresses"
	}
	switch {
	case out == mayDrop:
		about := chain(w.dropped)
		return Obstacle{Code: Firewall, About: about, Message: fmt.Sprintf("%s drops traffic %s: %s", about, direction, cure(base, p.reply))}, true
	case w.untracked != "" && base.priority < priorityConntrack:
		about := chain(w.untracked)
		return Obstacle{Code: Untracked, About: about, Message: fmt.Sprintf(
			"%s has traffic %s not tracked (notrack), so that it cannot be translated: except it there", about, direction)}, true
	case w.translated != "" && base.kind == "nat":
		about := chain(w.translated)
		return Obstacle{Code: TranslatedBefore, About: about, Message: fmt.Sprintf(
			"%s translates traffic %s, at priority %d, before Fanfare at %d: except it there, or give that chain a higher priority",
			about, direction, base.priority, w.rules.nat)}, true
	}
	return Obstacle{}, false
}

// cure returns what to change in a chain that drops packets: an exception that holds for all
// addresses and ports, so that it remains right when Services change.
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
