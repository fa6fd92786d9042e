package gossip

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// MaxMeta is the most bytes of metadata: memberlist's, less a head of our own.
const MaxMeta = memberlist.MetaMaxSize - headBytes

// The metadata begin with a byte that says farewell, and with what tells a process from
// the one before. Without that memberlist may tell nobody that there is another: who has
// not heard yet of the end of the first one finds what the second one says to be the same.
const headBytes = 1 + 4

// The first byte of the metadata.
const (
	stays byte = iota
	leaves
)

// head is what a process begins its metadata with.
func head(says byte, boot uint64) []byte {
	return binary.BigEndian.AppendUint32([]byte{says}, uint32(boot))
}

// split reads metadata. What is too short is of nobody who leaves.
func split(b []byte) (says byte, boot uint32, meta []byte) {
	if len(b) < headBytes {
		return stays, 0, nil
	}
	return b[0], binary.BigEndian.Uint32(b[1:]), slices.Clone(b[headBytes:])
}

// maxObituaries is how many dead nodes are told of in an exchange.
const maxObituaries = 256

// A delegate is what memberlist calls. It holds locks meanwhile: nothing here calls it
// back.
type delegate struct{ *Gossip }

// NodeMeta is what the others are to know of this node.
func (d delegate) NodeMeta(int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	says := stays
	if d.leaving {
		says = leaves
	}
	return append(head(says, d.boot), d.meta...)
}

// NotifyAlive admits a member, or not: only nodes at their own addresses.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := addrOf(n.Addr)
	node, there := d.nodes[n.Name]
	switch {
	case there && slices.Contains(node.Addrs, at):
		return nil
	case there:
		err := fmt.Errorf("somebody at %s calls itself %s, and node %s is at %v; is its --node-name right?", at, n.Name, n.Name, node.Addrs)
		d.problems.set("name "+n.Name+" "+at.String(), time.Now(), err)
		return err
	default: // a node whose object has yet to come, or whose object has just gone
		return fmt.Errorf("there is no node %s", n.Name)
	}
}

// NotifyConflict is told of two that call themselves alike, both at addresses of the node.
func (d delegate) NotifyConflict(is, other *memberlist.Node) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problems.set("name "+is.Name, time.Now(), fmt.Errorf("two speakers call themselves %s: at %s and at %s; the second is not listened to", is.Name, is.Address(), other.Address()))
}

// NotifyJoin is told of one that is there.
func (d delegate) NotifyJoin(n *memberlist.Node) { d.is(n, Alive) }

// NotifyUpdate is told of other metadata.
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.is(n, Alive) }

// NotifyLeave is told of one that is dead, or has left.
func (d delegate) NotifyLeave(n *memberlist.Node) { d.is(n, Dead) }

// is takes down what has become of a member.
func (d delegate) is(n *memberlist.Node, state State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	says, boot, meta := split(n.Meta)
	e := d.table[n.Name]
	if e == nil {
		e = &entry{Member: Member{Node: n.Name, State: state, Since: time.Now()}}
		d.table[n.Name] = e
	}
	e.left = says == leaves || e.left && state == Dead
	if e.left {
		state = Left
	}
	d.set(e, state)
	e.boot, e.Meta = boot, meta
}

// set has a member be something from now on. One that is to be dead is heard first.
func (d delegate) set(e *entry, state State) {
	switch {
	case e.State == state:
	case state == Dead:
		e.before = e.Member
		e.State, e.Since, e.hearing = state, time.Now(), new(hearing)
		go d.hear(e.Node, e, e.hearing)
	case e.hearing != nil && e.before.State == state:
		e.Member, e.hearing = e.before, nil // It never was.
		d.metrics.alarms.Inc()
	default:
		e.State, e.Since, e.hearing = state, time.Now(), nil
	}
	d.nudge()
}

// GetBroadcasts are messages that go with the next packet.
func (d delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.queue.GetBroadcasts(overhead, limit)
}

// NotifyMsg takes a message, and passes it on if it is news.
func (d delegate) NotifyMsg(b []byte) {
	e, err := parse(b)
	if err != nil || e.Node == d.Node {
		return
	}
	d.mu.Lock()
	_, expected := d.nodes[e.Node]
	if e.kind == knock || e.kind == here {
		if expected {
			d.knocked(e)
		}
		d.mu.Unlock()
		return
	}
	s := d.heard[e.Node]
	if s == nil && expected {
		s = &seen{}
		d.heard[e.Node] = s
	}
	news := expected && s.first(e)
	if m := d.table[e.Node]; news && e.kind == goodbye && m != nil && m.boot == uint32(e.boot) {
		m.left = true
		d.set(m, Left)
	}
	d.mu.Unlock()
	if !news {
		return
	}
	if e.kind != whisper {
		d.queue.QueueBroadcast(rumour(e.bytes()))
	}
	if e.kind == goodbye {
		return
	}
	select {
	case d.received <- e.Message:
	default:
		d.metrics.lost.Inc()
	}
}

// knocked answers who knocks, and asks it later what it thinks of this node; or it takes
// down an answer.
func (d delegate) knocked(e envelope) {
	if e.kind == here {
		if m := d.table[e.Node]; m != nil && m.hearing != nil && m.hearing.question == e.seq {
			m.hearing.answered = true
		}
		return
	}
	if d.leaving {
		return
	}
	d.post(e.Node, envelope{kind: here, Message: Message{Node: d.Node}, seq: e.seq})
	d.knocks[e.Node] = true
	d.nudge()
}

// LocalState tells who is dead, and for how long: somebody who has just started cannot
// know, since memberlist passes on only those who live.
func (d delegate) LocalState(bool) (b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, m := range d.table {
		if m.counts().State != Dead || len(m.Node) > 255 || n == maxObituaries {
			continue
		}
		n++
		b = append(b, byte(len(m.Node)))
		b = append(b, m.Node...)
		b = binary.BigEndian.AppendUint32(b, uint32(min(time.Since(m.Since).Seconds(), 1<<31)))
	}
	return b
}

// MergeRemoteState is told what LocalState is at another. Whom we know ourselves we
// know better.
func (d delegate) MergeRemoteState(b []byte, _ bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(b) > 0 && len(b) >= 1+int(b[0])+4 {
		n := int(b[0])
		name, age := string(b[1:1+n]), binary.BigEndian.Uint32(b[1+n:])
		b = b[5+n:]
		if _, expected := d.nodes[name]; !expected || d.table[name] != nil || name == d.Node {
			continue
		}
		d.table[name] = &entry{Member: Member{Node: name, State: Dead, Since: time.Now().Add(-time.Duration(age) * time.Second)}}
		d.nudge()
	}
}
