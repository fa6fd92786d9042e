package gossip

import (
	"math/rand/v2"
	"net/netip"
	"time"
)

// joinMissing tries to reach nodes that are not alive members. After a suspension of this
// process it also joins some members that are alive: they may have taken this node for
// dead, and it refutes that when it exchanges its state with them.
func (g *Gossip) joinMissing(now time.Time) {
	suspended := g.suspension.Pause(now, suspendedFor) > 0
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil || g.leaving {
		return
	}
	if suspended {
		g.Log.Warn("this process was suspended; other nodes may have taken this node for dead", "node", g.Node)
	}
	alive := g.countAliveLocked()
	names := make([]string, 0, len(g.nodes))
	for name := range g.nodes {
		names = append(names, name)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	joined := 0
	for _, name := range names {
		m := g.members[name]
		switch {
		case name == g.Node || g.joining[name]:
		case m != nil && m.State == Alive:
			if suspended && joined < joinsAtOnce {
				joined++
				g.join(name)
			}
			delete(g.joinAt, name)
		case !now.Before(g.joinAt[name]) && len(g.joining) < maxJoins:
			g.reach(name, m, alive, now)
		}
	}
}

// reach joins a node that is not alive, or pings it, and schedules the next attempt. The
// first attempt at a former member only schedules: all others have missed it, too.
func (g *Gossip) reach(name string, m *entry, alive int, now time.Time) {
	var away time.Duration
	if m != nil {
		away = now.Sub(m.Since)
	}
	switch _, scheduled := g.joinAt[name]; {
	case m == nil, scheduled && rand.N(joinOneIn) == 0:
		g.join(name)
	case scheduled:
		g.sendPacket(name, envelope{kind: kindPing, Message: Message{Node: g.Node}})
	}
	mean := joinInterval(m != nil, away, alive)
	g.joinAt[name] = now.Add(time.Duration(2 * float64(mean) * rand.Float64()))
}

// joinBack joins some nodes that have pinged this one: they take it for dead. There may be
// many, and one exchange is mostly enough.
func (g *Gossip) joinBack(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pingedBy) == 0 || now.Sub(g.joinedBackAt) < tick {
		return
	}
	g.joinedBackAt = now
	joined := 0
	for name := range g.pingedBy {
		if joined < joinsAtOnce && g.list != nil && !g.leaving && !g.joining[name] {
			joined++
			g.join(name)
		}
	}
	clear(g.pingedBy)
}

// join exchanges the full state with a node, without blocking.
func (g *Gossip) join(name string) {
	to, ok := g.nodes[name].addrFor(g.addr)
	if !ok {
		return
	}
	g.joining[name] = true
	list := g.list
	go func() {
		_, err := list.Join([]string{netip.AddrPortFrom(to, g.Port).String()})
		if err != nil {
			g.Log.Debug("join", "node", name, "err", err)
		}
		g.mu.Lock()
		delete(g.joining, name)
		g.mu.Unlock()
	}()
}
