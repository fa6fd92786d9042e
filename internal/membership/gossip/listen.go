package gossip

import (
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// home is where this node is to listen: its first address.
func (g *Gossip) home() (netip.Addr, error) {
	self, there := g.nodes[g.Node]
	switch {
	case len(g.nodes) == 0:
		return netip.Addr{}, errors.New("no node is known yet")
	case !there:
		return netip.Addr{}, fmt.Errorf("there is no node named %q", g.Node)
	case len(self.Addrs) == 0:
		return netip.Addr{}, fmt.Errorf("node %s has no InternalIP", g.Node)
	default:
		return self.Addrs[0], nil
	}
}

// listen has memberlist listen where it should, if there is a key.
func (g *Gossip) listen(now time.Time) {
	g.mu.Lock()
	at, err := g.home()
	move := g.list != nil && err == nil && at != g.at
	need := err == nil && len(g.keys.file) > 0 && (g.list == nil || move) && !now.Before(g.startAt)
	if g.list == nil {
		g.problems.set("listen", now, err)
	}
	g.mu.Unlock()
	if !need {
		return
	}
	if move {
		g.shut()
	}
	if err := g.start(at); err != nil {
		g.startAt = now.Add(startRetry)
		g.mu.Lock()
		g.problems.set("listen", now, err)
		g.mu.Unlock()
	}
}

// start listens at an address.
func (g *Gossip) start(at netip.Addr) error {
	ring, err := memberlist.NewKeyring(nil, g.keys.use[:])
	if err != nil {
		return err
	}
	if err := turn(ring, &g.keys); err != nil {
		return err
	}
	c := config()
	c.Name, c.BindAddr, c.AdvertiseAddr = g.Node, at.String(), at.String()
	c.BindPort, c.AdvertisePort = int(g.Port), int(g.Port)
	c.Keyring, c.Logger = ring, log.New(chronicle{g.Log, g.stranger}, "", 0)
	d := delegate{g}
	c.Delegate, c.Events, c.Alive, c.Conflict = d, d, d, d
	if c.Transport, err = g.open(netip.AddrPortFrom(at, g.Port), c.Logger); err != nil {
		return err
	}
	list, err := memberlist.Create(c)
	if err != nil {
		return errors.Join(err, c.Transport.Shutdown())
	}
	g.mu.Lock()
	g.list, g.wire, g.ring, g.at = list, c.Transport, ring, at
	g.problems.set("listen", time.Now(), nil)
	g.mu.Unlock()
	g.Log.Info("listening for other speakers", "at", netip.AddrPortFrom(at, g.Port))
	return nil
}

// shut ends memberlist without a word. What was known of others is forgotten.
func (g *Gossip) shut() {
	g.mu.Lock()
	list := g.list
	g.list, g.wire, g.ring, g.at = nil, nil, nil, netip.Addr{}
	g.table = map[string]*entry{}
	g.mu.Unlock()
	if list == nil {
		return
	}
	if err := list.Shutdown(); err != nil {
		g.Log.Debug("memberlist", "err", err)
	}
}
