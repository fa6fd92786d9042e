package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"
)

// MaxMessage is the most bytes of a message: it has to fit into a packet beside others.
const MaxMessage = 512

// A Message is what another node has said, to all or to this one.
type Message struct {
	Node string
	Data []byte
}

// A kind says what is in an envelope.
type kind byte

const (
	word    kind = 1 + iota // what somebody has to say
	knock                   // the sender misses the receiver
	goodbye                 // the sender is about to leave
	whisper                 // what somebody has to say to the receiver alone
	here                    // the answer to a knock, with its seq
)

// envelope is a message under way. Boot and seq tell it from all others of its node.
type envelope struct {
	Message
	kind      kind
	boot, seq uint64
}

// bytes is what is sent.
func (e envelope) bytes() []byte {
	b := binary.BigEndian.AppendUint64([]byte{byte(e.kind)}, e.boot)
	b = binary.BigEndian.AppendUint64(b, e.seq)
	b = append(b, byte(len(e.Node)))
	b = append(b, e.Node...)
	return append(b, e.Data...)
}

var errMessage = errors.New("is no message of ours")

// parse reads what bytes wrote. Nothing of b is kept.
func parse(b []byte) (envelope, error) {
	if len(b) < 18 || kind(b[0]) < word || kind(b[0]) > here {
		return envelope{}, errMessage
	}
	e := envelope{kind: kind(b[0]), boot: binary.BigEndian.Uint64(b[1:]), seq: binary.BigEndian.Uint64(b[9:])}
	n := int(b[17])
	if b = b[18:]; n == 0 || len(b) < n || len(b)-n > MaxMessage {
		return envelope{}, errMessage
	}
	e.Node, e.Data = string(b[:n]), append([]byte{}, b[n:]...)
	return e, nil
}

// check says whether a message can be sent.
func check(node string, data []byte) error {
	if len(node) > 255 {
		return fmt.Errorf("node name of %d bytes; want 255 at most", len(node))
	}
	if len(data) > MaxMessage {
		return fmt.Errorf("message of %d bytes; want %d at most", len(data), MaxMessage)
	}
	return nil
}

// seen are the messages of one node that have arrived: each comes several times.
type seen struct {
	boot   uint64 // of the process, at random
	past   uint64 // of the one before
	newest uint64
	recent uint64 // bit i: newest-i has arrived
}

// first says whether a message is new, and takes it down. One that is older than the
// 64 before the newest counts as known. So does what an earlier process of the node
// has sent, as far as we have met the later one.
func (s *seen) first(e envelope) bool {
	switch {
	case e.boot == s.past:
		return false
	case e.boot != s.boot:
		*s = seen{boot: e.boot, past: s.boot, newest: e.seq, recent: 1}
		return true
	case e.seq > s.newest:
		s.recent = s.recent<<min(e.seq-s.newest, 64) | 1
		s.newest = e.seq
		return true
	case s.newest-e.seq >= 64 || s.recent&(1<<(s.newest-e.seq)) != 0:
		return false
	default:
		s.recent |= 1 << (s.newest - e.seq)
		return true
	}
}

// rumour is an envelope in memberlist's queue, which sends each several times. It has
// no name: no message replaces another.
type rumour []byte

func (rumour) Invalidates(memberlist.Broadcast) bool { return false }
func (r rumour) Message() []byte                     { return r }
func (rumour) Finished()                             {}
func (rumour) UniqueBroadcast()                      {}
