package gossip

import (
	"math/rand/v2"
	"net/netip"
	"time"
)

// joinMissing tries to reach nodes that are not alive members. After a suspension of this
// process it also joins some members that are alive: they may have taken this node for
// dead, and it refutes that when it exchanges its state with them.
//
// changed: the nodes or members may have changed since the last call.
func (g *Gossip) joinMissing(now time.Time, changed bool) {
	suspended := g.suspension.Pause(now, suspendedFor) > 0
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil || g.leaving {
		return
	}
	if suspended {
		g.Log.Warn("this process was suspended; other nodes may have taken this node for dead", "node", g.Node)
	}
	if suspended || changed {
		var alive []string
		if g.missing, alive = g.splitByStateLocked(); suspended {
			for _, name := range alive[:min(len(alive), joinsAtOnce)] {
				g.join(name)
			}
		}
		for _, name := range alive {
			delete(g.joinAt, name)
		}
	}
	if len(g.missing) == 0 {
		return
	}
	alive := aliveAmong(g.members)
	for _, name := range g.missing {
		if !g.joining[name] && !now.Before(g.joinAt[name]) && len(g.joining) < maxJoins {
			g.reach(name, g.members[name], alive, now)
		}
	}
}

// splitByStateLocked lists the other nodes that are not alive members, and the alive members,
// each in random order.
func (g *Gossip) splitByStateLocked() (missing, alive []string) {
	for name := range g.nodes {
		m := g.members[name]
		switch {
		case name == g.Node:
		case m != nil && m.State == Alive:
			alive = append(alive, name)
		default:
			missing = append(missing, name)
		}
	}
	for _, names := range [][]string{missing, alive} {
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	}
	return missing, alive
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
