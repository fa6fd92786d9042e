package speaker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// maxMessage is the most bytes of one message between speakers.
const maxMessage = 512

// A messageKind is the first byte of a packet, less one. Other values belong to other
// releases.
type messageKind byte

const (
	stateMessage messageKind = iota // the sender's state or its changes
	queryMessage                    // the receiver must send its state
	readyMessage                    // the sender waits for the receiver to release held
)

// A message is what speakers send each other about addresses.
type message struct {
	kind     messageKind
	instance uint64 // random, of the process; replaces the state of earlier processes
	sequence uint64 // a higher number is newer
	// released are addresses that the sender stopped answering for, held addresses that it
	// answers for.
	released, held []netip.Addr
}

// encode returns the packets of a message, at least one.
func (m message) encode() (all [][]byte) {
	begin := func() []byte {
		b := binary.BigEndian.AppendUint64([]byte{byte(m.kind) + 1}, m.instance)
		return binary.BigEndian.AppendUint64(b, m.sequence)
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
	add(0, m.released)
	add(heldBit, m.held)
	return append(all, b)
}

// heldBit is set in the length byte of held addresses.
const heldBit = 0x80

var errMessage = errors.New("message about addresses is invalid, or of another release")

// parseMessage decodes one packet.
func parseMessage(b []byte) (message, error) {
	if len(b) < 17 || b[0] < 1 || b[0]-1 > byte(readyMessage) {
		return message{}, errMessage
	}
	m := message{
		kind: messageKind(b[0] - 1), instance: binary.BigEndian.Uint64(b[1:]), sequence: binary.BigEndian.Uint64(b[9:]),
	}
	for b = b[17:]; len(b) > 0; {
		held, n := b[0]&heldBit != 0, int(b[0]&^heldBit)
		if n != 4 && n != 16 || len(b) < 1+n {
			return message{}, errMessage
		}
		a, _ := netip.AddrFromSlice(b[1 : 1+n])
		if b = b[1+n:]; held {
			m.held = append(m.held, a)
		} else {
			m.released = append(m.released, a)
		}
	}
	return m, nil
}

// reportChanges broadcasts the differences between have, the addresses that this node
// answers for now, and its last report.
func (h *handoverState) reportChanges(have []netip.Addr) {
	h.mu.Lock()
	begun, ended := sortedset.Minus(have, h.reported), sortedset.Minus(h.reported, have)
	h.reported = have
	if len(begun)+len(ended) == 0 {
		h.mu.Unlock()
		return
	}
	h.sequence++
	now := time.Now()
	for _, a := range begun {
		h.setHolder(a, h.node, holderState{h.sequence, true, now})
		h.history.Begin(a)
	}
	for _, a := range ended {
		h.setHolder(a, h.node, holderState{h.sequence, false, now})
		h.history.End(a, h.holder(a))
	}
	broadcast := h.broadcast
	changes := message{instance: h.instance, sequence: h.sequence, released: ended, held: begun}
	h.mu.Unlock() // broadcast may call back
	for _, packet := range changes.encode() {
		broadcast(packet)
	}
}

// fullState returns all addresses that this node answers for. Also with none there is one
// packet, which replaces the state of an earlier process.
func (h *handoverState) fullState() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sequence++
	return message{instance: h.instance, sequence: h.sequence, held: h.reported}.encode()
}

// query asks for the full state of a node.
func (h *handoverState) query() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return message{instance: h.instance, sequence: h.sequence, kind: queryMessage}.encode()[0]
}

// receive handles one packet of another node's speaker.
func (h *handoverState) receive(node string, packet []byte) error {
	m, err := parseMessage(packet)
	if err != nil {
		return fmt.Errorf("speaker of node %s: %w", node, err)
	}
	if node == h.node {
		return nil
	}
	h.process(node, m)
	if m.kind == queryMessage {
		for _, m := range h.fullState() {
			h.send(node, m)
		}
	}
	return nil
}

// process records the content of a message. Gossip delivers none of a node's earlier process
// after one of a later process, so that another instance is a newer one.
func (h *handoverState) process(node string, m message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.synced[node] {
		h.synced[node] = true
		notify.Changed(h.changed)
	}
	if h.instances[node] != m.instance {
		h.instances[node] = m.instance
		h.clearNode(node)
	}
	if m.kind == readyMessage {
		for _, a := range m.held {
			h.ready[a] = readyNode{node, time.Now()}
		}
		notify.Changed(h.changed)
		return
	}
	for _, a := range m.held {
		h.recordHolder(a, node, holderState{m.sequence, true, time.Now()})
	}
	for _, a := range m.released {
		h.recordHolder(a, node, holderState{m.sequence, false, time.Now()})
	}
}
