package state

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// A Scheduler chooses the backend of a new flow.
type Scheduler uint8

const (
	// Random chooses each backend with a probability proportional to its weight.
	Random Scheduler = iota
	// RoundRobin chooses the backends in turn, regardless of weight.
	RoundRobin
	// SourceHash gives all flows of a client address the same backend while the number of backends
	// does not change. It ignores weights.
	SourceHash
	// Maglev hashes the flow's addresses and ports onto a table that is the same on all nodes and
	// changes little when a backend is added or removed (Eisenbud et al., NSDI 2016, section 3.4).
	// It respects weights. All nodes must have the same byte order.
	Maglev
)

// A schedule is how a count chain chooses the slot of a new flow.
type schedule struct {
	letters string // between the side and the number in the chain's name
	// value is the expression whose remainder is the slot, as nft writes it for IPv4.
	value string
	// seeded: the expression is a hash with a seed.
	seeded bool
	// Table: the slots are those of Maglev's table; otherwise there is one for each backend.
	Table bool
	// stateful: each rule keeps state for its choices. Frontends must not share such a chain: if
	// flows of two frontends alternated, each frontend would use only every other backend.
	stateful bool
}

// The schedules. The seeds are fixed: otherwise each node and each chain, also a chain that is
// created again, would choose differently. Maglev's hash omits the VIP and its port, which are the
// same for all flows of a frontend: with them an IPv6 flow does not fit into the registers that nft
// 1.0.6 knows.
var (
	byRandom     = schedule{letters: "", value: "numgen random"}
	byWeight     = schedule{letters: "w", value: "numgen random", Table: true}
	byRoundRobin = schedule{letters: "r", value: "numgen inc", stateful: true}
	bySource     = schedule{letters: "h", value: "jhash ip saddr", seeded: true}
	byFlow       = schedule{letters: "m", value: "jhash ip saddr . th sport", seeded: true, Table: true}
	// byClient is the schedule of frontends with affinity, whatever their scheduler: all nodes choose
	// the same backend for a client.
	byClient = schedule{letters: "c", value: "jhash ip saddr", seeded: true, Table: true}

	Schedules = []*schedule{&byRandom, &byWeight, &byRoundRobin, &bySource, &byFlow, &byClient}
)

// schedule returns how flows are distributed over backends. At least one backend is needed.
func (s Scheduler) schedule(backends []Backend) *schedule {
	switch s {
	case RoundRobin:
		return &byRoundRobin
	case SourceHash:
		return &bySource
	case Maglev:
		return &byFlow
	case Random:
		if weighted(backends) {
			return &byWeight
		}
	}
	return &byRandom
}

// schedule returns how a frontend's new flows are distributed over a target's backends.
func (f *Frontend) schedule(t *Target) *schedule {
	if f.Affinity != 0 {
		return &byClient
	}
	return f.Scheduler.schedule(t.Backends)
}

// slots returns the number of slots that the schedule chooses from.
func (s *schedule) slots(backends int) int {
	if s.Table {
		return tableSize(backends)
	}
	return backends
}

// A CountChain is a chain that distributes new flows over a number of slots, each with a backend.
type CountChain struct {
	Side     string // prefix of the side
	Schedule *schedule
	Slots    int
	owner    string // the frontend that the chain belongs to, if the schedule is stateful
}

// Name is, for example, "x3", "ih3", "xm251" or "xr3/192.0.2.1/tcp/80".
func (c CountChain) Name() string {
	name := c.Side + c.Schedule.letters + strconv.Itoa(c.Slots)
	if c.owner != "" {
		name += "/" + c.owner
	}
	return name
}

// ownerOf returns a frontend as part of a chain's name, where nft allows no colons.
func ownerOf(vip netip.Addr, f *Frontend) string {
	return fmt.Sprintf("%s/%s/%d", strings.ReplaceAll(vip.String(), ":", "-"), f.Protocol, f.Port)
}

// Pattern returns the chain that this one equals except for the number of slots.
func (c CountChain) Pattern() CountChain {
	return CountChain{Side: c.Side, Schedule: c.Schedule, Slots: min(c.Slots, c.Schedule.Patterns())}
}

// Patterns is the largest number of slots, from 1, for which chains always exist. Unless the slot
// is a hash of the flow, the chain of one slot has other rules than that of several (see
// refusesMidStream), so that both are patterns.
func (s *schedule) Patterns() int {
	if s.seeded {
		return 1
	}
	return 2
}

// refusesMidStream reports whether the chain refuses packets in the middle of a connection that
// conntrack does not know. With several backends, the right one would be chosen only by chance. A
// single backend is the right one for a client on this node; a router has probably moved the
// connection of an external client here from a node with another backend.
func (c CountChain) refusesMidStream() bool {
	return !c.Schedule.seeded && (c.Slots > 1 || c.Side != Internal.Prefix)
}

// RefusesMidStream is like that of CountChain. Where iptables falls back to random choice, one of
// several backends would be the right one only by chance, too.
func (f *Frontend) RefusesMidStream(s Side) bool {
	t := f.Target(s)
	switch {
	case f.Protocol != TCP || len(t.Backends) == 0 || f.Affinity != 0:
		return false
	case len(t.Backends) > 1:
		return !f.XtScheduler(t).schedule(t.Backends).seeded
	}
	return !f.schedule(t).seeded && s.Prefix != Internal.Prefix
}

// ParseCountChain reads the name of a count chain.
func ParseCountChain(name string) (c CountChain, ok bool) {
	head, owner, _ := strings.Cut(name, "/")
	letters := strings.TrimRight(head, "0123456789")
	n, err := strconv.Atoi(head[len(letters):])
	if err != nil || n < 1 || letters == "" {
		return CountChain{}, false
	}
	for _, s := range Schedules {
		c = CountChain{Side: letters[:1], Schedule: s, Slots: n, owner: owner}
		if sideMajors[c.Side] != 0 && c.Name() == name {
			return c, true
		}
	}
	return CountChain{}, false
}

// Text returns the chain as nft reads it. Packets that match no slot are dropped, or another proxy
// could answer instead. A connection that is new to conntrack, but not to its client, must not
// reach a backend by chance.
func (c CountChain) Text() string {
	backends, seed := "eps", ""
	if c.Schedule.Table {
		backends = "slots"
	}
	if c.Schedule.seeded {
		seed = " seed 0xfa17"
	}
	side, first := c.Side, ""
	if side == SplitPrefix {
		side, first = External.Prefix, strings.ReplaceAll(askClients, "\n", "\n\t\t")
	}
	if c.refusesMidStream() {
		stray := "stray"
		if c.Slots == 1 && side == c.Side { // the rules do not know yet whether the client is internal
			stray = "xstray"
		}
		first += "\n\t\tmeta l4proto tcp tcp flags & (fin|syn|rst|ack) != syn goto " + stray
	}
	if c.Schedule == &byClient {
		return clientChain(c, side, first)
	}
	rule := fmt.Sprintf("dnat ip to ip daddr . meta l4proto . th dport . %s mod %d%s map @%s%s",
		c.Schedule.value, c.Slots, seed, side, backends)
	return fmt.Sprintf(`
	chain %s {%s
		meta priority set none
		%s4
		%s6
		counter drop
	}
`, c.Name(), first, rule, strings.ReplaceAll(rule, "ip ", "ip6 "))
}

// askClients has the rules that send internal clients to their own chains.
const askClients = `
jump clients
meta priority none goto internal`
