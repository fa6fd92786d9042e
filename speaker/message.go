package speaker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// maxMessage is the most bytes of one message between speakers.
const maxMessage = 512

// kindState begins each message, sayingAsks in its place one whose receiver is to say
// what it answers for, sayingWants one with addresses that the sender waits for. What begins
// otherwise is another release's.
const (
	kindState = 1
	kindQuery = 2
	kindReady = 3
)

// A message is what speakers tell one another about addresses.
type message struct {
	instance uint64 // of the speaker's process, at random: what earlier ones said is void
	sequence uint64 // later words of one process have higher ones
	query    bool   // what the receiver answers for
	ready    bool   // held is what the sender shall answer for, and waits for the receiver to stop
	// released is what the speaker has stopped to answer for, held what it answers for.
	released, held []netip.Addr
}

// encode is the saying in as many messages as it takes, one at least.
func (s message) encode() (all [][]byte) {
	begin := func() []byte {
		b := binary.BigEndian.AppendUint64([]byte{s.kind()}, s.instance)
		return binary.BigEndian.AppendUint64(b, s.sequence)
	}
	b := begin()
	add := func(held byte, list []netip.Addr) {
		for _, a := range list {
			raw := a.AsSlice()
			if len(b)+1+len(raw) > maxMessage {
				all, b = append(all, b), begin()
			}
			b = append(append(b, held|byte(len(raw))), raw...)
		}
	}
	// What is released is what somebody waits for.
	add(0, s.released)
	add(heldBit, s.held)
	return append(all, b)
}

func (s message) kind() byte {
	switch {
	case s.query:
		return kindQuery
	case s.ready:
		return kindReady
	default:
		return kindState
	}
}

// heldBit is set in the length of addresses that are held.
const heldBit = 0x80

var errMessage = errors.New("is no message about addresses, or one of another release")

// parseMessage reads one message.
func parseMessage(b []byte) (message, error) {
	if len(b) < 17 || b[0] < kindState || b[0] > kindReady {
		return message{}, errMessage
	}
	s := message{query: b[0] == kindQuery, ready: b[0] == kindReady, instance: binary.BigEndian.Uint64(b[1:]), sequence: binary.BigEndian.Uint64(b[9:])}
	for b = b[17:]; len(b) > 0; {
		held, n := b[0]&heldBit != 0, int(b[0]&^heldBit)
		if n != 4 && n != 16 || len(b) < 1+n {
			return message{}, errMessage
		}
		a, _ := netip.AddrFromSlice(b[1 : 1+n])
		if b = b[1+n:]; held {
			s.held = append(s.held, a)
		} else {
			s.released = append(s.released, a)
		}
	}
	return s, nil
}

// reportChanges says to the others what differs between have, for which this node answers now, and
// what it has said before.
func (h *handoverState) reportChanges(have []netip.Addr) {
	h.mu.Lock()
	var begun, ended []netip.Addr
	for _, a := range have {
		if !h.holders[a][h.node].held {
			begun = append(begun, a)
		}
	}
	for a, said := range h.holders {
		if _, still := slices.BinarySearchFunc(have, a, netip.Addr.Compare); said[h.node].held && !still {
			ended = append(ended, a)
		}
	}
	if len(begun)+len(ended) == 0 {
		h.mu.Unlock()
		return
	}
	h.sequence++
	now := time.Now()
	for _, a := range begun {
		h.setHolder(a, h.node, holderState{h.sequence, true, now})
	}
	for _, a := range ended {
		h.setHolder(a, h.node, holderState{h.sequence, false, now})
	}
	say, message := h.broadcast, message{instance: h.instance, sequence: h.sequence, released: ended, held: begun}
	h.mu.Unlock()
	for _, m := range message.encode() {
		say(m)
	}
}

// fullState is all that this node answers for, for somebody who knows nothing. It is in
// one message at least: that an earlier speaker of this node answers for nothing any more.
func (h *handoverState) fullState() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sequence++
	message := message{instance: h.instance, sequence: h.sequence}
	for a, said := range h.holders {
		if w := said[h.node]; w.held {
			message.held = append(message.held, a)
		}
	}
	return message.encode()
}

// query is what a greeting answers.
func (h *handoverState) query() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return message{instance: h.instance, sequence: h.sequence, query: true}.encode()[0]
}

// receive takes one message of another node's speaker.
func (h *handoverState) receive(node string, message []byte) error {
	s, err := parseMessage(message)
	if err != nil {
		return fmt.Errorf("what the speaker of node %s said: %w", node, err)
	}
	if node == h.node {
		return nil
	}
	h.process(node, s)
	if s.query {
		for _, m := range h.fullState() {
			h.send(node, m)
		}
	}
	return nil
}

// process takes down what a node says.
func (h *handoverState) process(node string, s message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.synced[node] {
		h.synced[node] = true
		notify(h.changed)
	}
	if h.instances[node] != s.instance {
		h.instances[node] = s.instance
		h.clearNode(node)
	}
	if s.ready {
		for _, a := range s.held {
			h.ready[a] = readyNode{node, time.Now()}
		}
		notify(h.changed)
		return
	}
	for _, a := range s.held {
		h.recordHolder(a, node, holderState{s.sequence, true, time.Now()})
	}
	for _, a := range s.released {
		h.recordHolder(a, node, holderState{s.sequence, false, time.Now()})
	}
}
