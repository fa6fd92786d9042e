package l2

import (
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A request waits for its answer.
type request struct {
	socket *packetSocket
	in     packet
	when   time.Time // the kernel received it
}

const (
	// maxAsked bounds the requests that wait for one address, maxHeard what a socket remembers.
	// Hosts repeat the others.
	maxAsked = 64
	maxHeard = 256
)

// remember records a request for an address that this node may get.
func (p *packetSocket) remember(in packet, when time.Time) {
	if in.op == opRequest && in.sender.IsValid() && !in.sender.IsUnspecified() &&
		sortedset.ContainsAddr(p.pools, in.target) {
		p.heard = append(p.heard[max(0, len(p.heard)-maxHeard+1):], request{p, in, when})
	}
}

// recall makes the requests wait that came before the address was this node's.
func (s *phases) recall(x *address, now time.Time) {
	for _, c := range x.claims {
		for _, q := range c.socket.heard {
			if q.in.target == x.want.Addr && !s.isStale(q.when, now) {
				x.wait(q)
			}
		}
	}
}

// wait reports whether there is room for one more request. A host that repeats itself waits once.
func (a *address) wait(q request) bool {
	if slices.ContainsFunc(a.asked, func(o request) bool { return o.socket == q.socket && o.in.from == q.in.from }) {
		return true
	}
	if len(a.asked) == maxAsked {
		return false
	}
	a.asked = append(a.asked, q)
	return true
}

// answersEarly reports whether an address is answered for before all probes are over. An address
// that was in use is not: its host may be slow again.
func (a *address) answersEarly() bool { return a.strikes == 0 }

// answerEarly begins to answer for an address while it is still probed, with the requests that
// wait. It announces nothing that overrides what hosts know: IPv6 has a form for that, and ARP
// has none.
func (s *phases) answerEarly(x *address, now time.Time) (frames int) {
	if !x.answersEarly() {
		return 0
	}
	x.early = true
	for _, q := range x.asked {
		if !s.isStale(q.when, now) && slices.Contains(x.sockets(), q.socket) && q.socket.limiter.allow(q.in.from, now) {
			s.send(q.socket, tentativeReply(q.in, q.socket.claims.mac))
			frames++
		}
	}
	x.asked = nil
	if x.want.Addr.Is6() {
		for _, c := range x.claims {
			frames += s.gratuitous(c.socket, tentativeAnnouncement(x.want.Addr, c.socket.claims.mac))
		}
	}
	return frames
}
