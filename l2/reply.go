package l2

import "net/netip"

// A verdict is what became of a packet.
type verdict uint8

const (
	answered  verdict = iota
	limited           // the sender asks too often
	foreign           // about no address of ours: the filter lets a few through
	unheld            // about an address of ours that we do not answer for (yet)
	echoed            // sent by this node
	sibling           // another speaker has the address, or has had it until now
	clashing          // somebody else has the address
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
		return packet{}, echoed // a loop in the network, or another interface on this link
	}
	if x := c.addresses[p.sender]; x != nil {
		return packet{}, c.claimed(x, p)
	}
	x := c.addresses[p.target]
	switch {
	case x == nil, p.op == tell:
		return packet{}, foreign
	case x.phase == Held:
		return answer(p, c.mac), answered
	case x.phase == Probing && p.sender.IsUnspecified() && !c.speakers[p.from]:
		// Another is about to take it at the same time. That neither gets it
		// is RFC 5227 §2.1.1 and RFC 4862 §5.4.3: both try again.
		return packet{}, clashing
	}
	return packet{}, unheld
}

// claimed is about a packet whose sender says that an address of ours is its own.
func (c claims) claimed(x *address, p packet) verdict {
	switch {
	case c.speakers[p.from]:
		return sibling
	case x.phase == Held, x.phase == Probing:
		return clashing
	}
	return unheld
}
