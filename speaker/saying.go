package speaker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// maxSaying is the most bytes of one message between speakers.
const maxSaying = 512

// sayingVersion begins each message, sayingAsks in its place one whose receiver is to say
// what it answers for, sayingWants one with addresses that the sender waits for. What begins
// otherwise is another release's.
const (
	sayingVersion = 1
	sayingAsks    = 2
	sayingWants   = 3
)

// A saying is what speakers tell one another about addresses.
type saying struct {
	boot  uint64 // of the speaker's process, at random: what earlier ones said is void
	count uint64 // later words of one process have higher ones
	asks  bool   // what the receiver answers for
	wants bool   // held is what the sender shall answer for, and waits for the receiver to stop
	// released is what the speaker has stopped to answer for, held what it answers for.
	released, held []netip.Addr
}

// messages is the saying in as many messages as it takes, one at least.
func (s saying) messages() (all [][]byte) {
	begin := func() []byte {
		b := binary.BigEndian.AppendUint64([]byte{s.version()}, s.boot)
		return binary.BigEndian.AppendUint64(b, s.count)
	}
	b := begin()
	add := func(held byte, list []netip.Addr) {
		for _, a := range list {
			raw := a.AsSlice()
			if len(b)+1+len(raw) > maxSaying {
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

func (s saying) version() byte {
	switch {
	case s.asks:
		return sayingAsks
	case s.wants:
		return sayingWants
	default:
		return sayingVersion
	}
}

// heldBit is set in the length of addresses that are held.
const heldBit = 0x80

var errSaying = errors.New("is no message about addresses, or one of another release")

// parseSaying reads one message.
func parseSaying(b []byte) (saying, error) {
	if len(b) < 17 || b[0] < sayingVersion || b[0] > sayingWants {
		return saying{}, errSaying
	}
	s := saying{asks: b[0] == sayingAsks, wants: b[0] == sayingWants, boot: binary.BigEndian.Uint64(b[1:]), count: binary.BigEndian.Uint64(b[9:])}
	for b = b[17:]; len(b) > 0; {
		held, n := b[0]&heldBit != 0, int(b[0]&^heldBit)
		if n != 4 && n != 16 || len(b) < 1+n {
			return saying{}, errSaying
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

// tell says to the others what differs between have, for which this node answers now, and
// what it has said before.
func (h *holdings) tell(have []netip.Addr) {
	h.mu.Lock()
	var begun, ended []netip.Addr
	for _, a := range have {
		if !h.words[a][h.node].held {
			begun = append(begun, a)
		}
	}
	for a, said := range h.words {
		if _, still := slices.BinarySearchFunc(have, a, netip.Addr.Compare); said[h.node].held && !still {
			ended = append(ended, a)
		}
	}
	if len(begun)+len(ended) == 0 {
		h.mu.Unlock()
		return
	}
	h.count++
	now := time.Now()
	for _, a := range begun {
		h.put(a, h.node, word{h.count, true, now})
	}
	for _, a := range ended {
		h.put(a, h.node, word{h.count, false, now})
	}
	say, message := h.say, saying{boot: h.boot, count: h.count, released: ended, held: begun}
	h.mu.Unlock()
	for _, m := range message.messages() {
		say(m)
	}
}

// greeting is all that this node answers for, for somebody who knows nothing. It is in
// one message at least: that an earlier speaker of this node answers for nothing any more.
func (h *holdings) greeting() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	message := saying{boot: h.boot, count: h.count}
	for a, said := range h.words {
		if w := said[h.node]; w.held {
			message.held = append(message.held, a)
		}
	}
	return message.messages()
}

// question is what a greeting answers.
func (h *holdings) question() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return saying{boot: h.boot, count: h.count, asks: true}.messages()[0]
}

// hear takes one message of another node's speaker.
func (h *holdings) hear(node string, message []byte) error {
	s, err := parseSaying(message)
	if err != nil {
		return fmt.Errorf("what the speaker of node %s said: %w", node, err)
	}
	if node == h.node {
		return nil
	}
	h.take(node, s)
	if s.asks {
		for _, m := range h.greeting() {
			h.whisper(node, m)
		}
	}
	return nil
}

// take takes down what a node says.
func (h *holdings) take(node string, s saying) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.met[node] {
		h.met[node] = true
		h.poke()
	}
	if h.boots[node] != s.boot {
		h.boots[node] = s.boot
		h.void(node)
	}
	if s.wants {
		for _, a := range s.held {
			h.demands[a] = demand{node, time.Now()}
		}
		h.poke()
		return
	}
	for _, a := range s.held {
		h.note(a, node, word{s.count, true, time.Now()})
	}
	for _, a := range s.released {
		h.note(a, node, word{s.count, false, time.Now()})
	}
}
