package gossip

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

// A probe is how this node verifies that a suspect is dead. Memberlist trusts every report
// of a death, and the reporter may be at fault: a process that got no processor time finds,
// when it continues, all its timers expired and the acks unread. So each node pings the
// suspect itself, round by round.
//
// Rounds count, not time: they pass only while this process runs. A round that ended late
// shows that it did not run, and resets the count.
//
// If the kernel of a suspect accepts connections, its process is hung, stopped or waits for
// a processor, and its kernel still forwards traffic. Such a node has more rounds, since
// taking over its addresses ends the connections to them.
type probe struct {
	nonce    uint64 // of this round; the ack repeats it
	answered bool   // in this round
	missed   int    // punctual rounds in a row without an ack
	rounds   int    // rounds since the last ack, late ones too
	accepted bool   // its kernel accepted the last connection
	refused  bool   // its kernel refused the last connection
}

const (
	// round is how long the suspect has for an ack: what probeTimeout is for a ping.
	round = 20 * time.Millisecond
	// roundLimit is how long a round may take: after a longer one, this process stood still.
	roundLimit = 2 * round
	// maxMissed rounds in a row make a suspect dead.
	maxMissed = 4
	// connectEvery is the number of rounds between two connections. The first one follows
	// the first round without an ack.
	connectEvery = 10
	// maxRounds is how many rounds a suspect has whose kernel accepts connections: a second.
	maxRounds = 50
	// roundPause is the pause between rounds while the suspect answers and memberlist has
	// not received its refutation.
	roundPause = 5 * round
)

// runProbe probes a suspect until it is dead, or alive again for memberlist.
func (g *Gossip) runProbe(name string, e *entry, p *probe) {
	for g.startRound(name, e, p) {
		began := time.Now()
		<-time.After(round)
		answered, over := g.endRound(e, p, time.Since(began) > roundLimit)
		if over {
			return
		}
		if answered {
			<-time.After(roundPause)
		}
	}
}

// startRound sends a ping, unless the probe is over.
func (g *Gossip) startRound(name string, e *entry, p *probe) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.probe != p || g.members[name] != e {
		return false
	}
	to, ok := g.nodes[name].addrFor(g.addr)
	if !ok { // Its Node has lost the address of this family.
		g.markDead(e)
		return false
	}
	nonce := rand.Uint64()
	if p.begin(nonce) {
		go g.probeTCP(g.transport.Transport, netip.AddrPortFrom(to, g.Port), p)
	}
	g.sendPacket(name, envelope{kind: kindPing, Message: Message{Node: g.Node}, seq: nonce})
	return true
}

// endRound ends a round and reports whether the probe is over.
func (g *Gossip) endRound(e *entry, p *probe, late bool) (answered, over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.probe != p {
		return false, true
	}
	if p.answered {
		e.Since = time.Now() // If it dies later, it was alive until now.
	}
	answered = p.answered
	if p.end(late) {
		g.markDead(e)
		return false, true
	}
	return answered, false
}

// markDead ends the probe of a suspect: memberlist's state holds.
func (g *Gossip) markDead(e *entry) {
	e.probe = nil
	g.wakeUp()
}

// probeTCP tests whether the kernel of a suspect responds.
func (g *Gossip) probeTCP(t memberlist.Transport, to netip.AddrPort, p *probe) {
	conn, err := t.DialTimeout(to.String(), connectEvery*round)
	if err == nil {
		err = conn.Close()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p.connected(err)
}

// begin begins a round and reports whether to try a connection in it.
func (p *probe) begin(nonce uint64) (connect bool) {
	p.nonce, p.answered = nonce, false
	return p.rounds%connectEvery == 1
}

// connected records the result of a connection.
func (p *probe) connected(err error) {
	p.accepted, p.refused = err == nil, errors.Is(err, syscall.ECONNREFUSED)
}

// end ends a round, which may have ended late, and reports whether the suspect is dead.
func (p *probe) end(late bool) (dead bool) {
	switch {
	case p.answered:
		p.missed, p.rounds, p.accepted, p.refused = 0, 0, false, false
		return false
	case late:
		p.missed = 0
	default:
		p.missed++
	}
	p.rounds++
	return p.rounds >= maxRounds || p.missed > 0 && p.refused || p.missed >= maxMissed && !p.accepted
}
