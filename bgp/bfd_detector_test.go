package bgp

import (
	"testing"
	"time"
)

// A detector that is behind forgets the oldest packets: the newest has the router's state.
func TestBFDDeliversNewest(t *testing.T) {
	d := &detector{in: make(chan bfdPacket, 2)}
	for i := range uint32(5) {
		d.deliver(bfdPacket{local: i + 1})
	}
	if first, second := <-d.in, <-d.in; first.local != 4 || second.local != 5 {
		t.Errorf("delivered %d and %d, want 4 and 5", first.local, second.local)
	}
}

// At the end of the detection time, a packet that waits to be read saves the router. Packets of
// another session do not.
func TestBFDReadsBeforeExpiry(t *testing.T) {
	m := upBFD(fastBFD)
	m.router.heard = time.Now().Add(-m.detection())
	m.conf.Receive = time.Hour // the timer is not late, however slow this machine is
	m.announced.receive, m.confirmed.receive = 0, 0
	d := &detector{in: make(chan bfdPacket, 2)}
	other := from7(m, bfdUp)
	other.remote++
	d.in <- other
	if got, r := d.tick(m); got.state != bfdDown || r.lost == "" {
		t.Errorf("a packet of another session: %s, %q", got.state, r.lost)
	}
	d.in <- other
	d.in <- from7(m, bfdUp)
	if got, r := d.tick(m); got.state != bfdUp || r.lost != "" || len(d.in) != 0 {
		t.Errorf("a packet of the router: %s, %q", got.state, r.lost)
	}
}
