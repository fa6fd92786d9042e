package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"
)

// MaxMessage is the maximum length of a message in bytes: it shares a packet with others.
const MaxMessage = 512

// A Message is from another node, to all nodes or to this one.
type Message struct {
	Node string
	Data []byte
}

// A kind is the kind of an envelope.
type kind byte

const (
	kindBroadcast kind = 1 + iota // a message to all
	kindPing                      // the sender takes the receiver for dead
	kindLeave                     // the sender's speaker stops
	kindUnicast                   // a message to the receiver alone
	kindAck                       // the answer to a ping, with its seq
)

// An envelope is a message as it is sent. The processID and seq identify it among those of
// its node.
type envelope struct {
	Message
	kind           kind
	processID, seq uint64
}

// bytes encodes e.
func (e envelope) bytes() []byte {
	b := binary.BigEndian.AppendUint64([]byte{byte(e.kind)}, e.processID)
	b = binary.BigEndian.AppendUint64(b, e.seq)
	b = append(b, byte(len(e.Node)))
	b = append(b, e.Node...)
	return append(b, e.Data...)
}

var errMessage = errors.New("is not a message of Fanfare")

// parse decodes an envelope. It keeps nothing of b.
func parse(b []byte) (envelope, error) {
	if len(b) < 18 || kind(b[0]) < kindBroadcast || kind(b[0]) > kindAck {
		return envelope{}, errMessage
	}
	e := envelope{kind: kind(b[0]), processID: binary.BigEndian.Uint64(b[1:]), seq: binary.BigEndian.Uint64(b[9:])}
	n := int(b[17])
	if b = b[18:]; n == 0 || len(b) < n || len(b)-n > MaxMessage {
		return envelope{}, errMessage
	}
	e.Node, e.Data = string(b[:n]), append([]byte{}, b[n:]...)
	return e, nil
}

// checkSize checks that a message fits into an envelope.
func checkSize(node string, data []byte) error {
	if len(node) > 255 {
		return fmt.Errorf("node name of %d bytes; want 255 at most", len(node))
	}
	if len(data) > MaxMessage {
		return fmt.Errorf("message of %d bytes; want %d at most", len(data), MaxMessage)
	}
	return nil
}

// A replayWindow detects copies of one node's messages: each arrives several times. It is
// that of IPsec (RFC 4303 §3.4.3).
type replayWindow struct {
	processID  uint64
	previousID uint64 // of the process before
	newest     uint64
	recent     uint64 // bit i: newest-i has arrived
}

// accept reports whether a message is new, and records it. A message more than 63 older than
// the newest is taken for a copy, and so are those of the node's previous process.
func (w *replayWindow) accept(e envelope) bool {
	switch {
	case e.processID == w.previousID:
		return false
	case e.processID != w.processID:
		*w = replayWindow{processID: e.processID, previousID: w.processID, newest: e.seq, recent: 1}
		return true
	case e.seq > w.newest:
		w.recent = w.recent<<min(e.seq-w.newest, 64) | 1
		w.newest = e.seq
		return true
	case w.newest-e.seq >= 64 || w.recent&(1<<(w.newest-e.seq)) != 0:
		return false
	default:
		w.recent |= 1 << (w.newest - e.seq)
		return true
	}
}

// queued is an envelope in memberlist's queue, which sends each several times. It has no
// name: no message replaces another one.
type queued []byte

func (queued) Invalidates(memberlist.Broadcast) bool { return false }
func (q queued) Message() []byte                     { return q }
func (queued) Finished()                             {}
func (queued) UniqueBroadcast()                      {}
