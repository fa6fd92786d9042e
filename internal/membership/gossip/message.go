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

// An envelope is a message as it is sent. The boot number and seq identify it among those of
// its node, since members pass broadcasts on: each arrives several times.
type envelope struct {
	Message
	kind      kind
	boot, seq uint64
}

// bytes encodes e.
func (e envelope) bytes() []byte {
	b := binary.BigEndian.AppendUint64([]byte{byte(e.kind)}, e.boot)
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
	e := envelope{kind: kind(b[0]), boot: binary.BigEndian.Uint64(b[1:]), seq: binary.BigEndian.Uint64(b[9:])}
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

// queued is an envelope in memberlist's queue, which sends each several times. It has no
// name: no message replaces another one.
type queued []byte

func (queued) Invalidates(memberlist.Broadcast) bool { return false }
func (q queued) Message() []byte                     { return q }
func (queued) Finished()                             {}
func (queued) UniqueBroadcast()                      {}
