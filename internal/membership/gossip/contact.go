package gossip

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// try makes contact with those who should be there and are not; after a pause, with
// some who were there: they may have declared this node dead, which is to contradict.
func (g *Gossip) try(now time.Time) {
	paused := !g.tickAt.IsZero() && now.Sub(g.tickAt) > frozen
	g.tickAt = now
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil || g.leaving {
		return
	}
	if paused {
		g.Log.Warn("this process stood still; other nodes may have taken this one for dead", "node", g.Node)
	}
	alive := g.aliveLocked()
	names := make([]string, 0, len(g.nodes))
	for name := range g.nodes {
		names = append(names, name)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	greeted := 0
	for _, name := range names {
		m := g.table[name]
		switch {
		case name == g.Node || g.trying[name]:
		case m != nil && m.State == Alive:
			if paused && greeted < greet {
				greeted++
				g.contact(name)
			}
			delete(g.next, name)
		case !now.Before(g.next[name]) && len(g.trying) < atOnce:
			var away time.Duration
			if m != nil {
				away = now.Sub(m.Since)
			}
			pause := tries(m != nil, away, alive)
			switch _, tried := g.next[name]; {
			case m == nil, tried && rand.N(connects) == 0:
				g.contact(name)
			case tried:
				g.post(name, envelope{kind: knock, Message: Message{Node: g.Node}})
			}
			g.next[name] = now.Add(time.Duration(2 * float64(pause) * rand.Float64()))
		}
	}
}

// post sends a node a packet, in its own time: one that is not heard of is told that it is
// missed by a packet, which waits for nobody, and for which a frozen process finds the
// time as soon as it goes on.
func (g *Gossip) post(name string, e envelope) {
	to, ok := g.nodes[name].reach(g.at)
	if !ok || g.list == nil {
		return
	}
	b, list, at := e.bytes(), g.list, netip.AddrPortFrom(to, g.Port)
	go func() {
		if err := list.SendToAddress(memberlist.Address{Addr: at.String(), Name: name}, b); err != nil {
			g.Log.Debug("packet", "node", name, "err", err)
		}
	}()
}

// callBack makes contact with some of those who have knocked, and learns what they think
// of this node. They may be many, and one is mostly enough.
func (g *Gossip) callBack(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.knocks) == 0 || now.Sub(g.calledAt) < tick {
		return
	}
	g.calledAt = now
	called := 0
	for name := range g.knocks {
		if called < greet && g.list != nil && !g.leaving && !g.trying[name] {
			called++
			g.contact(name)
		}
	}
	clear(g.knocks)
}

// contact exchanges with a node all that is known, in its own time.
func (g *Gossip) contact(name string) {
	to, ok := g.nodes[name].reach(g.at)
	if !ok {
		return
	}
	g.trying[name] = true
	list := g.list
	go func() {
		_, err := list.Join([]string{netip.AddrPortFrom(to, g.Port).String()})
		if err != nil {
			g.Log.Debug("contact", "node", name, "err", err)
		}
		g.mu.Lock()
		delete(g.trying, name)
		g.mu.Unlock()
	}()
}

// reach is the address of a node to send to from another: its first one of that family.
func (n Node) reach(from netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(n.Addrs, func(a netip.Addr) bool { return a.Is4() == from.Is4() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return n.Addrs[i], true
}
