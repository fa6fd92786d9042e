package gossip

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// MaxMeta is the maximum length of metadata in bytes: memberlist's, less this package's
// header.
const MaxMeta = memberlist.MetaMaxSize - metaHeaderBytes

// metaHeaderBytes is the length of the header of metadata: a byte that says whether the node leaves, and its boot
// number. Without that number memberlist may not report a new process: a node that has not received the end of the
// first one sees equal metadata in the second one.
const metaHeaderBytes = 1 + 8

// The first byte of the metadata.
const (
	metaStaying byte = iota
	metaLeaving
)

func metaHeader(state byte, boot uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{state}, boot)
}

// splitMeta separates the header. Metadata without one is that of a node that stays.
func splitMeta(b []byte) (state byte, boot uint64, meta []byte) {
	if len(b) < metaHeaderBytes {
		return metaStaying, 0, nil
	}
	return b[0], binary.BigEndian.Uint64(b[1:]), slices.Clone(b[metaHeaderBytes:])
}

// maxDeadSent is how many dead nodes an exchange of the full state lists.
const maxDeadSent = 256

// A delegate has the methods that memberlist calls. Memberlist holds locks meanwhile, so
// they must not call memberlist.
type delegate struct{ *Gossip }

// NodeMeta returns this node's metadata.
func (d delegate) NodeMeta(int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := metaStaying
	if d.leaving {
		state = metaLeaving
	}
	return append(metaHeader(state, d.boot), d.meta...)
}

// NotifyAlive rejects members that are not nodes at their own addresses.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := addrOf(n.Addr)
	node, exists := d.nodes[n.Name]
	switch {
	case exists && slices.Contains(node.Addrs, at):
		if _, boot, _ := splitMeta(n.Meta); isFarAhead(boot, d.now()) {
			return d.problems.rejectBoot(n.Name, boot)
		}
		return nil
	case exists:
		err := fmt.Errorf("a speaker at %s uses the name %s, but node %s has the addresses %v; is "+
			"its --node-name right?", at, n.Name, n.Name, node.Addrs)
		d.problems.set("name "+n.Name+" "+at.String(), time.Now(), err)
		return err
	default: // its Node object has not been read yet, or has just been deleted
		return fmt.Errorf("there is no Node %s", n.Name)
	}
}

// NotifyConflict records that two speakers at addresses of a node use its name.
func (d delegate) NotifyConflict(first, second *memberlist.Node) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problems.set("name "+first.Name, time.Now(),
		fmt.Errorf("two speakers use the name %s, at %s and at %s; the second is ignored", first.Name, first.Address(),
			second.Address()))
}

// NotifyJoin receives a new member.
func (d delegate) NotifyJoin(n *memberlist.Node) { d.update(n, Alive) }

// NotifyUpdate receives changed metadata.
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.update(n, Alive) }

// NotifyLeave receives a member that is dead or has left.
func (d delegate) NotifyLeave(n *memberlist.Node) { d.update(n, Dead) }

// update records a member's state in memberlist.
func (d delegate) update(n *memberlist.Node, state State) {
	meta, boot, rest := splitMeta(n.Meta)
	if at := netip.AddrPortFrom(addrOf(n.Addr), n.Port); at.IsValid() && state == Alive && n.Name != d.Node {
		d.currentTransport().restarted(at, boot)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.members[n.Name]
	if e == nil {
		e = &entry{Member: Member{Node: n.Name, State: state, Since: time.Now()}}
		d.members[n.Name] = e
	}
	e.left = meta == metaLeaving || e.left && state == Dead
	if e.left {
		state = Left
	}
	d.setState(e, state)
	e.boot, e.Meta = boot, rest
}

// setState changes the state of a member. A death starts a probe.
func (d delegate) setState(e *entry, state State) {
	switch {
	case e.State == state:
	case state == Dead:
		e.before = e.Member
		e.State, e.Since, e.probe = state, time.Now(), new(probe)
		go d.runProbe(e.Node, e, e.probe)
	case e.probe != nil && e.before.State == state:
		e.Member, e.probe = e.before, nil // It was never dead.
		d.metrics.falsePositives.Inc()
	default:
		e.State, e.Since, e.probe = state, time.Now(), nil
	}
	d.wakeUp()
}

// GetBroadcasts returns queued messages for the next packet.
func (d delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.queue.GetBroadcasts(overhead, limit)
}

// NotifyMsg receives a message, delivers it, and queues a new broadcast for other members.
func (d delegate) NotifyMsg(b []byte) {
	e, err := parse(b)
	if err == nil && e.Node == d.Node {
		d.refute(e)
		return
	}
	if err != nil || !d.accept(e) {
		return
	}
	if e.kind != kindUnicast {
		d.queue.QueueBroadcast(queued(e.bytes()))
	}
	if e.kind == kindLeave {
		return
	}
	select {
	case d.received <- e.Message:
	default:
		d.metrics.dropped.Inc()
	}
}

// refute handles a message in the name of this node. One that this process has not sent is of
// another member that uses the name: this process takes a higher boot number, by which
// all others know that it has not left, and accept its messages again.
func (d delegate) refute(e envelope) {
	d.mu.Lock()
	foreign := e.boot > d.boot || e.boot == d.boot && (e.seq > d.seq || e.kind == kindLeave && !d.leaving)
	t := d.transport
	d.mu.Unlock()
	if foreign && e.kind != kindPing && e.kind != kindAck {
		t.replaceBoot(e.boot)
	}
}

// accept reports whether a message is new and is for other members or the reader. It handles
// the kinds that concern membership.
func (d delegate) accept(e envelope) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, exists := d.nodes[e.Node]; !exists {
		return false
	}
	switch e.kind {
	case kindPing:
		d.receivePing(e)
		return false
	case kindAck:
		if m := d.members[e.Node]; m != nil && m.probe != nil && m.probe.nonce == e.seq {
			m.probe.answered = true
		}
		return false
	case kindBroadcast, kindUnicast, kindLeave:
	}
	window := d.windows[e.Node]
	if window == nil {
		window = &bootWindow{}
		d.windows[e.Node] = window
	}
	if isFarAhead(e.boot, d.now()) {
		d.problems.rejectBoot(e.Node, e.boot)
		return false
	}
	if window.isBehind(e.boot, e.seq) {
		// The node may not know of the numbers that this one has received. If it has not used them
		// itself, it takes a higher boot number.
		d.sendPacket(e.Node, envelope{Message{Node: e.Node}, kindUnicast, window.boot, window.newest})
		return false
	}
	if !window.accept(e.boot, e.seq) {
		return false
	}
	if m := d.members[e.Node]; e.kind == kindLeave && m != nil && m.boot == e.boot {
		m.left = true
		d.setState(m, Left)
	}
	return true
}

// receivePing sends an ack. The sender takes this node for dead, so Run joins it later.
func (d delegate) receivePing(e envelope) {
	if d.leaving {
		return
	}
	d.sendPacket(e.Node, envelope{kind: kindAck, Message: Message{Node: d.Node}, seq: e.seq})
	d.pingedBy[e.Node] = true
	d.wakeUp()
}

// LocalState lists the dead nodes and how long each has been dead, for an exchange of the
// full state. A node that has just started learns them only here: memberlist sends only
// living ones.
func (d delegate) LocalState(bool) (b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, m := range d.members {
		if m.effective().State != Dead || len(m.Node) > 255 || n == maxDeadSent {
			continue
		}
		n++
		b = append(b, byte(len(m.Node)))
		b = append(b, m.Node...)
		b = binary.BigEndian.AppendUint32(b, uint32(min(time.Since(m.Since).Seconds(), 1<<31)))
	}
	return b
}

// MergeRemoteState receives another node's LocalState. It adds only nodes of which this
// node has no state of its own.
func (d delegate) MergeRemoteState(b []byte, _ bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(b) > 0 && len(b) >= 1+int(b[0])+4 {
		n := int(b[0])
		name, age := string(b[1:1+n]), binary.BigEndian.Uint32(b[1+n:])
		b = b[5+n:]
		if _, exists := d.nodes[name]; !exists || d.members[name] != nil || name == d.Node {
			continue
		}
		d.members[name] = &entry{Member: Member{
			Node: name, State: Dead, Since: time.Now().Add(-time.Duration(age) * time.Second),
		}}
		d.wakeUp()
	}
}

// addrOf is a memberlist address.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
