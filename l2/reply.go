package l2

import "net/netip"

// A verdict is the outcome of a received packet.
type verdict uint8

const (
	answered     verdict = iota
	deferred             // asked a moment too early: answered when the first probe has had its time
	stale                // waited too long in the socket's queue
	rateLimited          // the sender exceeds the rate limit
	otherAddress         // about an address that this node does not have: filters pass a few
	notHeld              // about an address of the State that is not held (yet)
	fromSelf             // sent by this node
	fromSpeaker          // another speaker has the address, or had it until now
	conflicting          // another host has the address
	malformed            // violates the RFCs
	numVerdicts
)

// verdicts are the label values of the metric.
var verdicts = [numVerdicts]string{"answered", "deferred", "stale", "limited", "not-ours", "not-held", "own", "speaker",
	"conflict", "malformed"}

func (v verdict) String() string { return verdicts[v] }

// claims are the addresses of one socket.
type claims struct {
	mac       MAC // the interface's
	addresses map[netip.Addr]*address
	own       map[MAC]bool // of all interfaces of this node
	speakers  map[MAC]bool
}

// reply decides about a received packet: the answer, or why there is none.
func reply(p packet, c claims) (packet, verdict) {
	if p.from == c.mac || c.own[p.from] {
		return packet{}, fromSelf // a loop in the network, or another interface on this link
	}
	if x := c.addresses[p.sender]; x != nil {
		switch {
		case c.speakers[p.from]:
			return packet{}, fromSpeaker
		case x.phase == Held, x.phase == Probing:
			return packet{}, conflicting
		}
		return packet{}, notHeld
	}
	x := c.addresses[p.target]
	switch {
	case x == nil, p.op == opReply:
		return packet{}, otherAddress
	case x.phase == Held:
		return replyTo(p, c.mac), answered
	case x.phase == Probing && p.sender.IsUnspecified() && !c.speakers[p.from]:
		// Another host probes at the same time. Neither gets the address, and both retry
		// (RFC 5227 §2.1.1, RFC 4862 §5.4.3).
		return packet{}, conflicting
	case x.phase == Probing && x.early && !p.sender.IsUnspecified():
		return tentativeReply(p, c.mac), answered
	case x.phase == Probing && x.answersEarly() && !p.sender.IsUnspecified():
		return packet{}, deferred
	}
	return packet{}, notHeld
}
