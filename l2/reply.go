package l2

import "net/netip"

// A verdict is what became of a packet.
type verdict uint8

const (
	answered  verdict = iota
	rateLimited           // the sender asks too often
	otherAddress           // about no address of ours: the filter lets a few through
	notHeld            // about an address of ours that we do not answer for (yet)
	fromSelf            // sent by this node
	fromSpeaker           // another speaker has the address, or has had it until now
	conflicting          // somebody else has the address
	malformed         // not as the RFCs want it
	numVerdicts
)

// verdicts are the metrics' words.
var verdicts = [numVerdicts]string{"answered", "limited", "not-ours", "not-held", "own", "speaker", "conflict", "malformed"}

func (v verdict) String() string { return verdicts[v] }

// claims are what one interface is answered on for, of one protocol.
type claims struct {
	mac       MAC // the interface's
	addresses map[netip.Addr]*address
	own       map[MAC]bool // of all interfaces of this node
	speakers  map[MAC]bool
}

// reply decides about a packet that came in: whether to answer it and with what, or why
// not.
func reply(p packet, c claims) (packet, verdict) {
	if p.from == c.mac || c.own[p.from] {
		return packet{}, fromSelf // a loop in the network, or another interface on this link
	}
	if x := c.addresses[p.sender]; x != nil {
		return packet{}, c.senderClaims(x, p)
	}
	x := c.addresses[p.target]
	switch {
	case x == nil, p.op == opReply:
		return packet{}, otherAddress
	case x.phase == Held:
		return replyTo(p, c.mac), answered
	case x.phase == Probing && p.sender.IsUnspecified() && !c.speakers[p.from]:
		// Another is about to take it at the same time. That neither gets it
		// is RFC 5227 §2.1.1 and RFC 4862 §5.4.3: both try again.
		return packet{}, conflicting
	}
	return packet{}, notHeld
}

// claimed is about a packet whose sender says that an address of ours is its own.
func (c claims) senderClaims(x *address, p packet) verdict {
	switch {
	case c.speakers[p.from]:
		return fromSpeaker
	case x.phase == Held, x.phase == Probing:
		return conflicting
	}
	return notHeld
}
