package l2

import (
	"slices"
	"time"
)

// startAnnouncing schedules the announcements of x on sockets.
func (s *phases) startAnnouncing(x *address, sockets []*packetSocket, now time.Time) {
	for i, c := range x.claims {
		if slices.Contains(sockets, c.socket) {
			t := &timer{address: x, socket: c.socket, stage: announce}
			x.claims[i].timer = t
			s.schedule.add(t, now)
		}
	}
}

// announceOn announces an address on a socket, in the forms of its stage.
func (s *phases) announceOn(t *timer) (frames int) {
	addr, mac := t.address.want.Addr, t.socket.claims.mac
	if t.stage != confirm {
		frames += s.gratuitous(t.socket, announcement(addr, mac))
	}
	if t.stage != announce && addr.Is4() {
		frames += s.gratuitous(t.socket, confirmation(addr, mac))
	}
	if t.stage == refresh {
		frames *= refreshCost
	}
	return frames
}

func (s *phases) gratuitous(p *packetSocket, out packet) int {
	if s.send(p, out) {
		s.metrics.gratuitous.WithLabelValues(p.key.protocol.name).Inc()
	}
	return 1
}
