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

// The first byte of a message: the sender's state, a query for the receiver's state, or
// addresses that the sender waits for. Other values belong to other releases.
const (
	kindState = 1
	kindQuery = 2
	kindReady = 3
)

// A message is what speakers send each other about addresses.
type message struct {
	instance uint64 // random, of the process; replaces the state of earlier processes
	sequence uint64 // a higher number is newer
	query    bool   // the receiver must send its state
	ready    bool   // the sender waits for the receiver to release held
	// released are addresses that the sender stopped answering for, held addresses that it
	// answers for.
	released, held []netip.Addr
}

// encode returns the packets of a message, at least one.
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
	// Other nodes wait for released addresses, so these come first.
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

// heldBit is set in the length byte of held addresses.
const heldBit = 0x80

var errMessage = errors.New("message about addresses is invalid, or of another release")

// parseMessage decodes one packet.
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

// reportChanges broadcasts the differences between have, the addresses that this node
// answers for now, and its last report.
func (h *handoverState) reportChanges(have []netip.Addr) {
	h.mu.Lock()
	var begun, ended []netip.Addr
	for _, a := range have {
		if !h.holders[a][h.node].held {
			begun = append(begun, a)
		}
	}
	for a, byNode := range h.holders {
		if _, still := slices.BinarySearchFunc(have, a, netip.Addr.Compare); byNode[h.node].held && !still {
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

// fullState returns all addresses that this node answers for. Also with none there is one
// packet, which replaces the state of an earlier process.
func (h *handoverState) fullState() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sequence++
	message := message{instance: h.instance, sequence: h.sequence}
	for a, byNode := range h.holders {
		if w := byNode[h.node]; w.held {
			message.held = append(message.held, a)
		}
	}
	return message.encode()
}

// query asks for the full state of a node.
func (h *handoverState) query() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return message{instance: h.instance, sequence: h.sequence, query: true}.encode()[0]
}

// receive handles one packet of another node's speaker.
func (h *handoverState) receive(node string, message []byte) error {
	s, err := parseMessage(message)
	if err != nil {
		return fmt.Errorf("speaker of node %s: %w", node, err)
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

// process records the content of a message.
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
