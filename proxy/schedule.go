package proxy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// A schedule is how a count chain finds the slot of a new flow.
type schedule struct {
	letters string // between the side and the number in the chain's name
	// value is the expression whose remainder is the slot, in IPv4's words.
	value string
	// seeded: the expression is a hash.
	seeded bool
	// table: slots are those of Maglev's table, else one for each backend.
	table bool
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
	byWeight = schedule{letters: "w", value: "numgen random", table: true}
	byTurn   = schedule{letters: "r", value: "numgen inc", stateful: true}
	bySource = schedule{letters: "h", value: "jhash ip saddr", seeded: true}
	byFlow   = schedule{letters: "m", value: "jhash ip saddr . th sport", seeded: true, table: true}

	schedules = []*schedule{&byRandom, &byWeight, &byTurn, &bySource, &byFlow}
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
	if s.table {
		return tableSize(backends)
	}
	return backends
}

// A countChain is a chain that gives new flows to the backends in a number of
// slots.
type countChain struct {
	side     string // prefix of the side
	schedule *schedule
	slots    int
	owner    string // the frontend whose it is, where the schedule is stateful
}

// name is such as "x3", "ih3", "xm251" or "xr3/192.0.2.1/tcp/80".
func (c countChain) name() string {
	name := c.side + c.schedule.letters + strconv.Itoa(c.slots)
	if c.owner != "" {
		name += "/" + c.owner
	}
	return name
}

// ownerOf names a frontend in the name of a chain, which has no room for colons.
func ownerOf(vip netip.Addr, f *Frontend) string {
	return fmt.Sprintf("%s/%s/%d", strings.ReplaceAll(vip.String(), ":", "-"), f.Protocol, f.Port)
}

// pattern is the chain that this one is a copy of, but for the number.
func (c countChain) pattern() countChain {
	return countChain{side: c.side, schedule: c.schedule, slots: min(c.slots, c.schedule.patterns())}
}

// patterns is up to how many slots, from 1, chains always exist. Where the choice is
// not made from the flow itself, one slot is another thing than many.
func (s *schedule) patterns() int {
	if s.seeded {
		return 1
	}
	return 2
}

// strays says whether the chain refuses the middle of a connection that conntrack
// does not know. One of several backends would be the right one by luck. A single
// one is, for a client on this node; one outside has mostly been moved here by a
// router, from a node with another backend.
func (c countChain) strays() bool {
	return !c.schedule.seeded && (c.slots > 1 || c.side != internal.prefix)
}

// parseCountChain reads the name of a count chain.
func parseCountChain(name string) (c countChain, ok bool) {
	head, owner, _ := strings.Cut(name, "/")
	letters := strings.TrimRight(head, "0123456789")
	n, err := strconv.Atoi(head[len(letters):])
	if err != nil || n < 1 || letters == "" {
		return countChain{}, false
	}
	for _, s := range schedules {
		c = countChain{side: letters[:1], schedule: s, slots: n, owner: owner}
		if sideMajors[c.side] != 0 && c.name() == name {
			return c, true
		}
	}
	return countChain{}, false
}

// text is the chain as nft reads it. What misses must go no further, or another
// proxy could answer in our place. A connection that is new to conntrack and not to
// its client must not meet a backend by chance.
func (c countChain) text() string {
	backends, seed := "eps", ""
	if c.schedule.table {
		backends = "slots"
	}
	if c.schedule.seeded {
		seed = " seed 0xfa17"
	}
	side, first := c.side, ""
	if side == splitPrefix {
		side, first = external.prefix, strings.ReplaceAll(askClients, "\n", "\n\t\t")
	}
	if c.strays() {
		stray := "stray"
		if c.slots == 1 && side == c.side { // not yet known which kind of client it is
			stray = "xstray"
		}
		first += "\n\t\tmeta l4proto tcp tcp flags & (fin|syn|rst|ack) != syn goto " + stray
	}
	rule := fmt.Sprintf("dnat ip to ip daddr . meta l4proto . th dport . %s mod %d%s map @%s%s",
		c.schedule.value, c.slots, seed, side, backends)
	return fmt.Sprintf(`
	chain %s {%s
		meta priority set none
		%s4
		%s6
		counter drop
	}
`, c.name(), first, rule, strings.ReplaceAll(rule, "ip ", "ip6 "))
}

// askClients are the rules that send internal clients elsewhere.
const askClients = `
jump clients
meta priority none goto internal`
