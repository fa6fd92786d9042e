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
	// Random chooses each with the probability of its weight.
	Random Scheduler = iota
	// RoundRobin gives each its turn, whatever its weight.
	RoundRobin
	// SourceHash gives all flows of a client's address the same backend, as long as
	// the number of backends stays. It ignores weights.
	SourceHash
	// Maglev hashes the flow's addresses and ports onto a table that all nodes
	// have alike and that changes little when a backend comes or goes
	// (Eisenbud et al., NSDI 2016, section 3.4). It respects weights. Nodes agree as
	// long as their processors have the same order of bytes.
	Maglev
)

// A schedule is how a count chain finds the slot of a new flow.
type schedule struct {
	letters string // between the side and the number in the chain's name
	// value is the expression whose remainder is the slot, in IPv4's words.
	value string
	// seeded: the expression is a hash.
	seeded bool
	// Table: slots are those of Maglev's table, else one for each backend.
	Table bool
	// stateful: what it computes from is a state that each rule keeps for itself.
	// Frontends that shared a chain would take one another's turns: of two that are
	// used alternately, each would meet every other backend only.
	stateful bool
}

// The schedules. Seeds are fixed: with one of its own, each node and each chain
// would choose differently, and so would a chain that is made again. The hash of
// Maglev leaves out the VIP and its port, which are the same for a frontend: with
// them an IPv6 flow does not fit into the registers that nft 1.0.6 knows.
var (
	byRandom = schedule{letters: "", value: "numgen random"}
	byWeight = schedule{letters: "w", value: "numgen random", Table: true}
	byTurn   = schedule{letters: "r", value: "numgen inc", stateful: true}
	bySource = schedule{letters: "h", value: "jhash ip saddr", seeded: true}
	byFlow   = schedule{letters: "m", value: "jhash ip saddr . th sport", seeded: true, Table: true}

	Schedules = []*schedule{&byRandom, &byWeight, &byTurn, &bySource, &byFlow}
)

// schedule is how flows are given to backends, of which there is at least one.
func (s Scheduler) schedule(backends []Backend) *schedule {
	switch s {
	case RoundRobin:
		return &byTurn
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

// slots is the number of slots that a schedule chooses from.
func (s *schedule) slots(backends int) int {
	if s.Table {
		return tableSize(backends)
	}
	return backends
}

// A CountChain is a chain that gives new flows to the backends in a number of
// slots.
type CountChain struct {
	Side     string // prefix of the side
	Schedule *schedule
	Slots    int
	owner    string // the frontend whose it is, where the schedule is stateful
}

// Name is such as "x3", "ih3", "xm251" or "xr3/192.0.2.1/tcp/80".
func (c CountChain) Name() string {
	name := c.Side + c.Schedule.letters + strconv.Itoa(c.Slots)
	if c.owner != "" {
		name += "/" + c.owner
	}
	return name
}

// ownerOf names a frontend in the name of a chain, which has no room for colons.
func ownerOf(vip netip.Addr, f *Frontend) string {
	return fmt.Sprintf("%s/%s/%d", strings.ReplaceAll(vip.String(), ":", "-"), f.Protocol, f.Port)
}

// Pattern is the chain that this one is a copy of, but for the number.
func (c CountChain) Pattern() CountChain {
	return CountChain{Side: c.Side, Schedule: c.Schedule, Slots: min(c.Slots, c.Schedule.Patterns())}
}

// Patterns is up to how many slots, from 1, chains always exist. Where the choice is
// not made from the flow itself, one slot is another thing than many.
func (s *schedule) Patterns() int {
	if s.seeded {
		return 1
	}
	return 2
}

// refusesMidStream reports whether the chain refuses the middle of a connection that conntrack
// does not know. One of several backends would be the right one by luck. A single
// one is, for a client on this node; one outside has mostly been moved here by a
// router, from a node with another backend.
func (c CountChain) refusesMidStream() bool {
	return !c.Schedule.seeded && (c.Slots > 1 || c.Side != Internal.Prefix)
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

// Text is the chain as nft reads it. What misses must go no further, or another
// proxy could answer in our place. A connection that is new to conntrack and not to
// its client must not meet a backend by chance.
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
		if c.Slots == 1 && side == c.Side { // not yet known which kind of client it is
			stray = "xstray"
		}
		first += "\n\t\tmeta l4proto tcp tcp flags & (fin|syn|rst|ack) != syn goto " + stray
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

// askClients are the rules that send internal clients elsewhere.
const askClients = `
jump clients
meta priority none goto internal`
