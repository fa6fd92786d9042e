package bgp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

// A notification is a BGP NOTIFICATION (RFC 4271 §4.5).
type notification struct {
	code, subcode byte
	message       string // the text of the other side's operator (RFC 9003)
}

// Codes and subcodes with a text of our own.
const (
	codeHeader           = 1
	codeOpen             = 2
	codeHoldTimerExpired = 4
	codeCease            = 6

	openBadPeerAS      = 2
	openBadIdentifier  = 3
	ceaseShutdown      = 2
	ceaseReset         = 4
	ceaseConfiguration = 6
	ceaseBFDDown       = 10 // RFC 9384
)

// notificationNames are IANA's names of the codes and, by index, subcodes.
var notificationNames = map[byte][]string{
	1: {"Message Header Error", "Connection Not Synchronized", "Bad Message Length", "Bad Message Type"},
	2: {"OPEN Message Error", "Unsupported Version Number", "Bad Peer AS", "Bad BGP Identifier",
		"Unsupported Optional Parameter", "", "Unacceptable Hold Time", "Unsupported Capability", "", "", "",
		"Role Mismatch"},
	3: {"UPDATE Message Error", "Malformed Attribute List", "Unrecognized Well-known Attribute",
		"Missing Well-known Attribute", "Attribute Flags Error", "Attribute Length Error", "Invalid ORIGIN Attribute",
		"", "Invalid NEXT_HOP Attribute", "Optional Attribute Error", "Invalid Network Field", "Malformed AS_PATH"},
	4: {"Hold Timer Expired"},
	5: {"Finite State Machine Error", "Unexpected Message in OpenSent", "Unexpected Message in OpenConfirm",
		"Unexpected Message in Established"},
	6: {"Cease", "Maximum Number of Prefixes Reached", "Administrative Shutdown", "Peer De-configured",
		"Administrative Reset", "Connection Rejected", "Other Configuration Change", "Connection Collision Resolution",
		"Out of Resources", "Hard Reset", "BFD Down"},
	7: {"ROUTE-REFRESH Message Error", "Invalid Message Length"},
	8: {"Send Hold Timer Expired"},
}

func parseNotification(body []byte) *notification {
	if len(body) < 2 {
		return &notification{}
	}
	n := &notification{code: body[0], subcode: body[1]}
	if n.code == codeCease && (n.subcode == ceaseShutdown || n.subcode == ceaseReset) {
		n.message = shutdownMessage(body[2:])
	}
	return n
}

// shutdownMessage reads the text of RFC 9003. It comes from outside and is shown in logs and
// terminals, so only printable characters remain.
func shutdownMessage(data []byte) string {
	if len(data) == 0 || int(data[0]) > len(data)-1 || !utf8.Valid(data[1:1+data[0]]) {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, string(data[1:1+data[0]]))
}

// String is such as "Cease/Administrative Shutdown".
func (n notification) String() string {
	names, ok := notificationNames[n.code]
	if !ok {
		return fmt.Sprintf("code %d subcode %d", n.code, n.subcode)
	}
	text := names[0]
	switch {
	case n.subcode == 0:
	case int(n.subcode) < len(names) && names[n.subcode] != "":
		text += "/" + names[n.subcode]
	default:
		text += fmt.Sprintf("/subcode %d", n.subcode)
	}
	if n.message != "" {
		text += fmt.Sprintf(" (%q)", n.message)
	}
	return text
}

// endReason explains to an operator why a session on a wire ended. The first cause in time counts:
// a wrong AS number causes a NOTIFICATION, and that the end of the connection.
func endReason(s Session, f wireFacts) string {
	switch {
	case f.refusal != "":
		return f.refusal
	case f.badMessage != nil:
		return "router's OPEN cannot be read: " + f.badMessage.Error()
	case f.open != nil && !s.External && f.open.asn != s.PeerASN:
		return fmt.Sprintf("wrong AS number: router says AS%d, BGPPeer says AS%d", f.open.asn, s.PeerASN)
	case f.received != nil:
		return receivedReason(*f.received, s.LocalASN)
	case f.sent != nil:
		return sentReason(s, f)
	case errors.Is(f.readErr, net.ErrClosed), errors.Is(f.writeErr, net.ErrClosed):
		return "this node closed the connection"
	case f.writeErr != nil:
		return "connection lost while sending: " + cause(f.writeErr)
	case f.readErr != nil && f.open == nil:
		return "router closed the connection before its OPEN: it may not know this node as a neighbour"
	case errors.Is(f.readErr, io.EOF):
		return "router closed the connection without a NOTIFICATION"
	case f.readErr != nil:
		return "connection lost: " + cause(f.readErr)
	case f.open != nil && f.established.IsZero(): // GoBGP reports nothing then
		return "this node ended the session: after its OPEN the router sent something else than a KEEPALIVE"
	}
	return "session ended"
}

func receivedReason(n notification, localASN uint32) string {
	if n.code == codeOpen && n.subcode == openBadPeerAS {
		return fmt.Sprintf("router refuses our AS%d: it expects another AS number (%s received)", localASN, n)
	}
	return fmt.Sprintf("router ended the session: %s received", n)
}

func sentReason(s Session, f wireFacts) string {
	switch n := *f.sent; {
	case n.code == codeHoldTimerExpired:
		return fmt.Sprintf("hold timer expired: nothing received from the router for %s", negotiatedHoldTime(s, f.open))
	case n.code == codeHeader && f.open == nil:
		return fmt.Sprintf("what answers at %s port %d does not speak BGP (%s)", s.PeerAddress, s.port(), n)
	default:
		return fmt.Sprintf("this node ended the session: %s sent", n)
	}
}

// negotiatedHoldTime is the smaller of both sides' hold times (RFC 4271 §4.2).
func negotiatedHoldTime(s Session, o *open) time.Duration {
	if o == nil {
		return s.holdTime()
	}
	return min(s.holdTime(), o.holdTime)
}

// cause removes what package net adds to an error: both addresses are known.
func cause(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
