package gossip

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

// A hearing is what comes before a member counts as dead here. Memberlist believes
// whoever says that somebody is, and whoever says it may be the one that is out of order:
// a process that got no processor finds, when it goes on, all its timers expired and the
// answers unread. So each node asks the accused itself, round by round.
//
// Rounds, and not the clock, are what is counted: they pass only while this process runs.
// A round that ended late shows that it did not, and what was found out until then is void.
//
// Whose process is silent and whose kernel accepts connections for it has not died, and
// its kernel forwards what it did before: it is hung, stopped, or waits for a processor.
// That is borne for a while, since to take its addresses ends the connections to them.
type hearing struct {
	question uint64 // what an answer has to repeat, of this round
	answered bool   // in this round
	silent   int    // punctual rounds in a row without an answer
	rounds   int    // rounds since the last answer, late ones too
	accepts  bool   // its kernel accepted a connection a moment ago
	refuses  bool   // its kernel said that nobody listens
}

const (
	// round is how long the accused has for an answer: what probeTimeout is for a ping.
	round = 20 * time.Millisecond
	// latest is how long a round may have taken when it ends: else this process stood still.
	latest = 2 * round
	// enough silent rounds in a row make it dead.
	enough = 4
	// reconnect is after how many rounds a connection is tried anew; the first one is when
	// a packet was not answered.
	reconnect = 10
	// patience is for how many rounds a process may be silent whose kernel is not: a second.
	patience = 50
	// calm is the pause between rounds while the accused answers, and waits for memberlist
	// to hear of it.
	calm = 5 * round
)

// begin begins a round, and returns whether it is one in which to try a connection.
func (h *hearing) begin(question uint64) (connect bool) {
	h.question, h.answered = question, false
	return h.rounds%reconnect == 1
}

// end ends a round, which may have ended late, and returns whether the accused is dead.
func (h *hearing) end(late bool) (dead bool) {
	switch {
	case h.answered:
		h.silent, h.rounds, h.accepts, h.refuses = 0, 0, false, false
		return false
	case late:
		h.silent = 0
	default:
		h.silent++
	}
	h.rounds++
	return h.rounds >= patience || h.silent > 0 && h.refuses || h.silent >= enough && !h.accepts
}

// connected takes down what became of a connection.
func (h *hearing) connected(err error) {
	h.accepts, h.refuses = err == nil, errors.Is(err, syscall.ECONNREFUSED)
}

// hear holds a hearing for a member, until it is dead or memberlist has heard of it again.
func (g *Gossip) hear(name string, e *entry, h *hearing) {
	for g.ask(name, e, h) {
		began := time.Now()
		<-time.After(round)
		answered, over := g.judge(e, h, time.Since(began) > latest)
		if over {
			return
		}
		if answered {
			<-time.After(calm)
		}
	}
}

// ask begins a round, unless nothing is left to find out.
func (g *Gossip) ask(name string, e *entry, h *hearing) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.hearing != h || g.table[name] != e {
		return false
	}
	to, ok := g.nodes[name].reach(g.at)
	if !ok { // It has no address any more at which it could be asked.
		g.condemn(e)
		return false
	}
	question := rand.Uint64()
	if h.begin(question) {
		go g.connect(g.wire, netip.AddrPortFrom(to, g.Port), h)
	}
	g.post(name, envelope{kind: knock, Message: Message{Node: g.Node}, seq: question})
	return true
}

// judge ends a round, and says whether the hearing is over.
func (g *Gossip) judge(e *entry, h *hearing, late bool) (answered, over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.hearing != h {
		return false, true
	}
	if h.answered {
		e.Since = time.Now() // If it dies now, it was heard of until now.
	}
	answered = h.answered
	if h.end(late) {
		g.condemn(e)
		return false, true
	}
	return answered, false
}

// condemn has a member be what memberlist takes it for.
func (g *Gossip) condemn(e *entry) {
	e.hearing = nil
	g.nudge()
}

// connect finds out whether the kernel of an accused lives.
func (g *Gossip) connect(wire memberlist.Transport, to netip.AddrPort, h *hearing) {
	conn, err := wire.DialTimeout(to.String(), reconnect*round)
	if err == nil {
		err = conn.Close()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	h.connected(err)
}
