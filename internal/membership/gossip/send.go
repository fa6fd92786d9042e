package gossip

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hashicorp/memberlist"
)

// Broadcast sends a message to all members. Most receive it directly, the others from
// those. After an error no member receives it.
func (g *Gossip) Broadcast(data []byte) error {
	return g.broadcast(kindBroadcast, data)
}

// Send sends a message to one member by a packet, which may be lost. After an error it was
// not sent.
func (g *Gossip) Send(node string, data []byte) error {
	list, b, err := g.seal(kindUnicast, data)
	if err != nil {
		return err
	}
	for _, n := range list.Members() {
		if n.Name == node {
			return list.SendBestEffort(n, b)
		}
	}
	return fmt.Errorf("node %s is not a member", node)
}

// broadcast sends a message to up to maxUnicast members at once and queues it for all.
func (g *Gossip) broadcast(k kind, data []byte) error {
	list, b, err := g.seal(k, data)
	if err != nil {
		return err
	}
	g.queue.QueueBroadcast(queued(b))
	others := slices.DeleteFunc(list.Members(), func(n *memberlist.Node) bool { return n.Name == g.Node })
	for _, n := range others[:min(len(others), maxUnicast)] {
		if err := list.SendBestEffort(n, b); err != nil {
			g.Log.Debug("message", "to", n.Name, "err", err)
		}
	}
	return nil
}

// seal puts a message into an envelope of its own sequence number.
func (g *Gossip) seal(k kind, data []byte) (list *memberlist.Memberlist, b []byte, err error) {
	if err := checkSize(g.Node, data); err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil {
		return nil, nil, errors.New("this node is not a member")
	}
	g.seq++
	return g.list, envelope{Message{g.Node, data}, k, g.boot, g.seq}.bytes(), nil
}

// sendPacket sends a packet to a node, member or not, without blocking. A packet needs no
// connection, and a suspended process reads it as soon as it continues.
func (g *Gossip) sendPacket(name string, e envelope) {
	to, ok := g.nodes[name].addrFor(g.addr)
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

// addrFor is the node's first address of the same family as from.
func (n Node) addrFor(from netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(n.Addrs, func(a netip.Addr) bool { return a.Is4() == from.Is4() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return n.Addrs[i], true
}
