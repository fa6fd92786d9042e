package gossip

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// listenAddr is this node's first address.
func (g *Gossip) listenAddr() (netip.Addr, error) {
	self, exists := g.nodes[g.Node]
	switch {
	case len(g.nodes) == 0:
		return netip.Addr{}, errors.New("no node is known yet")
	case !exists:
		return netip.Addr{}, fmt.Errorf("there is no Node %q; is --node-name right?", g.Node)
	case len(self.Addrs) == 0:
		return netip.Addr{}, fmt.Errorf("node %s has no InternalIP", g.Node)
	default:
		return self.Addrs[0], nil
	}
}

// listen starts memberlist at this node's address once there is a key, and again when the
// address changes.
func (g *Gossip) listen(now time.Time) {
	g.mu.Lock()
	at, err := g.listenAddr()
	move := g.list != nil && err == nil && at != g.addr
	need := err == nil && len(g.keys.file) > 0 && (g.list == nil || move) && !now.Before(g.retryListenAt)
	if g.list == nil {
		g.problems.set("listen", now, err)
	}
	g.mu.Unlock()
	if !need {
		return
	}
	if move {
		g.stop()
	}
	if err := g.start(at); err != nil {
		g.retryListenAt = now.Add(listenRetry)
		g.mu.Lock()
		g.problems.set("listen", now, err)
		g.mu.Unlock()
	}
}

// start starts memberlist at an address.
func (g *Gossip) start(at netip.Addr) error {
	g.mu.Lock()
	c := config(len(g.nodes))
	g.mu.Unlock()
	c.Name, c.BindAddr, c.AdvertiseAddr = g.Node, at.String(), at.String()
	c.BindPort, c.AdvertisePort = int(g.Port), int(g.Port)
	c.Logger = slog.NewLogLogger(g.Log.Handler(), slog.LevelDebug) // This package logs what matters of it.
	d := delegate{g}
	c.Delegate, c.Events, c.Alive, c.Conflict = d, d, d, d
	socket, err := g.open(netip.AddrPortFrom(at, g.Port), g.admits, c.Logger)
	if err != nil {
		return err
	}
	t := sealTransport(socket, g, netip.AddrPortFrom(at, g.Port), g.nextBoot())
	g.mu.Lock()
	g.transport = t
	g.mu.Unlock()
	c.Transport = t
	list, err := memberlist.Create(c)
	if err != nil {
		return errors.Join(err, t.Shutdown())
	}
	g.mu.Lock()
	g.list, g.addr = list, at
	g.problems.set("listen", time.Now(), nil)
	g.mu.Unlock()
	g.Log.Info("listening for other speakers", "at", netip.AddrPortFrom(at, g.Port))
	return nil
}

// nextBoot takes the next boot number: the time in nanoseconds since 1970, if that is higher
// than the last one.
func (g *Gossip) nextBoot() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.boot = max(uint64(max(g.now().UnixNano(), 0)), g.boot+1)
	return g.boot
}

// stop ends memberlist and forgets the members. It does not leave: see Leave.
func (g *Gossip) stop() {
	g.mu.Lock()
	list := g.list
	g.list, g.transport, g.addr = nil, nil, netip.Addr{}
	g.members = map[string]*entry{}
	g.mu.Unlock()
	g.wakeUp()
	if list == nil {
		return
	}
	if err := list.Shutdown(); err != nil {
		g.Log.Debug("memberlist", "err", err)
	}
}
