package bgp

import (
	"strings"
	"testing"
	"time"
)

var (
	fastBFD = BFD{Transmit: 50 * time.Millisecond, Receive: 50 * time.Millisecond, Multiplier: 3}
	fast    = bfdIntervals{50 * time.Millisecond, 50 * time.Millisecond}
	// bfdStart is the time at which tests of machines begin.
	bfdStart = time.Unix(0, 0)
)

// upBFD is a machine that has been up for a while, with a router whose discriminator is 7 and
// whose last packet came at bfdStart.
func upBFD(conf BFD) bfdMachine {
	m := newBFDMachine(conf, 1)
	m.state, m.sent, m.jitter = bfdUp, bfdStart, 0.8
	m.announced = bfdIntervals{conf.Transmit, conf.Receive}
	m.confirmed = m.announced
	m.router = bfdRouter{discriminator: 7, multiplier: 3, bfdIntervals: fast, pace: fast.transmit, heard: bfdStart}
	return m
}

// from7 is a packet of that router.
func from7(m bfdMachine, state bfdState) bfdPacket {
	return bfdPacket{state: state, multiplier: 3, local: 7, remote: m.local, bfdIntervals: fast}
}

func TestBFDComesUp(t *testing.T) {
	for _, passive := range []bool{false, true} {
		b := fastBFD
		b.Passive = passive
		ends := [2]bfdMachine{newBFDMachine(fastBFD, 1), newBFDMachine(b, 2)}
		if _, r := ends[1].timer(bfdStart); passive != (len(r.send) == 0) {
			t.Errorf("passive %v, and the first packets are %v", passive, r.send)
		}
		exchange(&ends, 3)
		for i, m := range ends {
			if m.state != bfdUp || m.polling || m.transmitInterval() != fast.transmit ||
				m.detection() != 150*time.Millisecond {
				t.Errorf("end %d: %s, polling %v, interval %s, detection %s", i, m.state, m.polling,
					m.transmitInterval(), m.detection())
			}
		}
	}
}

// exchange lets each end in turn send a packet that is due, and lets both answer until both
// are silent.
func exchange(ends *[2]bfdMachine, rounds int) {
	now := bfdStart
	for range rounds {
		for from := range ends {
			now = now.Add(bfdSlow)
			m := &ends[from]
			m.sent = time.Time{}
			m.router.heard, ends[1-from].router.heard = now, now // the detection time is not tested here
			var r bfdResult
			*m, r = m.timer(now)
			carry(ends, from, now, r.send)
		}
	}
}

func carry(ends *[2]bfdMachine, from int, now time.Time, packets []bfdPacket) {
	for _, p := range packets {
		var r bfdResult
		ends[1-from], r = ends[1-from].receive(now, p)
		carry(ends, 1-from, now, r.send)
	}
}

// RFC 5880 section 6.8.6: the state after each packet, and what is lost.
func TestBFDStates(t *testing.T) {
	const (
		silent = " BFD: the router says that it does not hear this node"
		off    = bfdAdministratively
	)
	for _, c := range []struct {
		from, packet bfdState
		diagnostic   bfdDiagnostic
		want         string
	}{
		{bfdDown, bfdAdminDown, off, "Down"},
		{bfdDown, bfdDown, 0, "Init"},
		{bfdDown, bfdDown, off, "Down"},
		{bfdDown, bfdInit, 0, "Up"},
		{bfdDown, bfdUp, 0, "Down"},
		{bfdInit, bfdAdminDown, off, "Down"},
		{bfdInit, bfdDown, 0, "Init"},
		{bfdInit, bfdDown, off, "Down"},
		{bfdInit, bfdInit, 0, "Up"},
		{bfdInit, bfdUp, 0, "Up"},
		{bfdUp, bfdAdminDown, off, "Down"},
		{bfdUp, bfdDown, bfdDetectionExpired, "Down" + silent},
		{bfdUp, bfdDown, off, "Down"},
		{bfdUp, bfdInit, 0, "Up"},
		{bfdUp, bfdUp, 0, "Up"},
	} {
		m := upBFD(fastBFD)
		m.state = c.from
		p := from7(m, c.packet)
		p.diagnostic = c.diagnostic
		got, r := m.receive(bfdStart, p)
		if s := strings.TrimSpace(got.state.String() + " " + r.lost); s != c.want {
			t.Errorf("%s receives %s with diagnostic %d: %q, want %q", c.from, c.packet, c.diagnostic, s, c.want)
		}
		if sent := len(r.send) > 0; sent != (got.state != c.from) {
			t.Errorf("%s receives %s: now %s, and sends %v", c.from, c.packet, got.state, r.send)
		}
		if (got.reason == "the router has switched it off") != (c.packet == bfdAdminDown || c.diagnostic == off) {
			t.Errorf("%s receives %s with diagnostic %d: reason %q", c.from, c.packet, c.diagnostic, got.reason)
		}
	}
}

// A router that has restarted has another discriminator, and does not know this node's: like a host
// that spoofs the router's address. The machine ignores it until the detection time ends.
func TestBFDDiscriminators(t *testing.T) {
	m := upBFD(fastBFD)
	forgot := from7(m, bfdDown)
	forgot.local, forgot.remote = 8, 0
	if got, r := m.receive(bfdStart, forgot); got != m || r.discarded == "" {
		t.Errorf("a router that has forgotten this node, or another host: %s, %q", got.state, r.discarded)
	}
	lost := forgot
	lost.local = 7
	if got, r := m.receive(bfdStart, lost); got.state != bfdDown || r.lost == "" || got.packet(false).remote != 7 {
		t.Errorf("a router that has lost this node: %s, %q, to %d", got.state, r.lost, got.packet(false).remote)
	}
	down, _ := m.timer(m.expiry())
	if got, r := down.receive(m.expiry(), forgot); got.state != bfdInit || r.discarded != "" ||
		got.packet(false).remote != 8 {
		t.Errorf("it goes on after the detection time: %s, %q, to %d", got.state, r.discarded, got.packet(false).remote)
	}
	other := from7(m, bfdDown)
	other.remote = m.local + 1
	if got, r := m.receive(bfdStart.Add(time.Millisecond), other); got != m || r.discarded == "" {
		t.Errorf("a packet of another session: %+v, %q", got, r.discarded)
	}
	// A passive router that has restarted answers only packets to discriminator 0.
	for _, state := range []bfdState{bfdDown, bfdInit, bfdUp} {
		m.state = state
		m, r := m.timer(m.expiry())
		if m.state != bfdDown || m.packet(false).remote != 0 || (r.lost != "") != (state == bfdUp) {
			t.Errorf("%s, and silence: %s, to %d, lost %q", state, m.state, m.packet(false).remote, r.lost)
		}
	}
}

func TestBFDExpires(t *testing.T) {
	m := upBFD(fastBFD)
	at := bfdStart.Add(150 * time.Millisecond)
	if got, r := m.timer(at.Add(-1)); got.state != bfdUp || r.lost != "" {
		t.Errorf("before the detection time: %s, %q", got.state, r.lost)
	}
	got, r := m.timer(at)
	if got.state != bfdDown || r.lost != "BFD: nothing received from the router for 150ms" {
		t.Errorf("after the detection time: %s, %q", got.state, r.lost)
	}
	if len(r.send) != 1 || r.send[0].state != bfdDown || r.send[0].diagnostic != bfdDetectionExpired ||
		r.send[0].transmit != bfdSlow {
		t.Errorf("after the detection time it sends %+v", r.send)
	}
	// A timer that is late by a packet or more says that this node was stopped.
	got, r = m.timer(at.Add(51 * time.Millisecond))
	if got.state != bfdUp || r.lost != "" {
		t.Errorf("late: %s, %q", got.state, r.lost)
	}
	if got, r = got.timer(at.Add(51*time.Millisecond + 150*time.Millisecond)); got.state != bfdDown {
		t.Errorf("late, and then a detection time in silence: %s, %q", got.state, r.lost)
	}
	// The router's multiplier counts, and may change at any time.
	p := from7(m, bfdUp)
	p.multiplier = 10
	if got, _ := m.receive(bfdStart, p); got.detection() != 500*time.Millisecond {
		t.Errorf("multiplier 10: detection after %s", got.detection())
	}
}

// A change of an interval moves the deadline of the next packet, and of the detection, at once.
func TestBFDRouterChangesIntervals(t *testing.T) {
	for _, c := range []struct {
		name                string
		before, after       bfdIntervals
		poll                bool
		transmit, detection time.Duration // afterwards
	}{
		{"it takes packets faster", bfdIntervals{fast.transmit, bfdSlow}, fast, true, 50 * time.Millisecond,
			150 * time.Millisecond},
		{"it takes packets slower", fast, bfdIntervals{fast.transmit, bfdSlow}, true, bfdSlow, 150 * time.Millisecond},
		{"it sends faster", bfdIntervals{fast.transmit, fast.receive},
			bfdIntervals{20 * time.Millisecond, fast.receive}, true,
			50 * time.Millisecond, 150 * time.Millisecond}, // this node's own interval is longer
		{"it will send faster, after the Final", bfdIntervals{bfdSlow, fast.receive}, fast, true, 50 * time.Millisecond,
			3 * bfdSlow},
		{"it sends faster now", bfdIntervals{bfdSlow, fast.receive}, fast, false, 50 * time.Millisecond,
			150 * time.Millisecond},
		{"it sends slower", fast, bfdIntervals{bfdSlow, fast.receive}, true, 50 * time.Millisecond, 3 * bfdSlow},
	} {
		m := upBFD(fastBFD)
		m.router.bfdIntervals, m.router.pace = c.before, c.before.transmit
		now := bfdStart.Add(10 * time.Millisecond)
		p := from7(m, bfdUp)
		p.bfdIntervals, p.poll = c.after, c.poll
		got, r := m.receive(now, p)
		if got.transmitInterval() != c.transmit || got.detection() != c.detection {
			t.Errorf("%s: interval %s, detection %s; want %s and %s", c.name, got.transmitInterval(), got.detection(),
				c.transmit, c.detection)
		}
		want := bfdStart.Add(time.Duration(0.8 * float64(c.transmit)))
		if expiry := now.Add(c.detection); expiry.Before(want) {
			want = expiry
		}
		if r.next != want {
			t.Errorf("%s: next deadline after %s, want %s", c.name, r.next.Sub(bfdStart), want.Sub(bfdStart))
		}
		if c.poll != (len(r.send) == 1 && r.send[0].final) {
			t.Errorf("%s: answer %+v", c.name, r.send)
		}
	}
}

// A router that is not up sends once a second, whatever it announces.
func TestBFDRouterNotUp(t *testing.T) {
	m := newBFDMachine(fastBFD, 1)
	p := from7(m, bfdDown)
	if m, _ = m.receive(bfdStart, p); m.state != bfdInit || m.detection() != 3*bfdSlow {
		t.Errorf("%s, detection %s", m.state, m.detection())
	}
}

// A router that polls for ever, and sends faster, is detected faster.
func TestBFDRouterPollsForEver(t *testing.T) {
	m := upBFD(fastBFD)
	m.router.pace = bfdSlow
	p := from7(m, bfdUp)
	p.poll = true
	for i, want := range []time.Duration{3 * bfdSlow, 3 * bfdSlow, 150 * time.Millisecond, 150 * time.Millisecond} {
		if m, _ = m.receive(bfdStart.Add(time.Duration(i)*fast.transmit), p); m.detection() != want {
			t.Errorf("after %d Polls: detection %s, want %s", i+1, m.detection(), want)
		}
	}
}

// This node changes its intervals while the session is up. Until the router's Final the faster
// pace counts for what is sent, and the slower one for what is received (RFC 5880 section
// 6.8.3).
func TestBFDConfigure(t *testing.T) {
	const short, long = 50 * time.Millisecond, 400 * time.Millisecond
	for _, c := range []struct {
		name          string
		before, after bfdIntervals
		polling       bfdIntervals // in force until the Final
	}{
		{"send slower", bfdIntervals{short, short}, bfdIntervals{long, short}, bfdIntervals{short, short}},
		{"send faster", bfdIntervals{long, short}, bfdIntervals{short, short}, bfdIntervals{short, short}},
		{"receive slower", bfdIntervals{short, short}, bfdIntervals{short, long}, bfdIntervals{short, long}},
		{"receive faster", bfdIntervals{short, long}, bfdIntervals{short, short}, bfdIntervals{short, long}},
		{"both slower", bfdIntervals{short, short}, bfdIntervals{long, long}, bfdIntervals{short, long}},
		{"both faster", bfdIntervals{long, long}, bfdIntervals{short, short}, bfdIntervals{short, long}},
	} {
		conf := func(i bfdIntervals) BFD { return BFD{Transmit: i.transmit, Receive: i.receive, Multiplier: 3} }
		inForce := func(m bfdMachine) bfdIntervals { return bfdIntervals{m.transmitInterval(), m.detection() / 3} }
		m := upBFD(conf(c.before))
		m, r := m.configure(bfdStart, conf(c.after))
		if len(r.send) != 0 {
			t.Errorf("%s: a Poll sequence sends extra packets: %+v", c.name, r.send)
		}
		// Without a Final the sequence goes on, and the session stays.
		for range 100 {
			if m, r = m.timer(m.due()); len(r.send) != 1 || !r.send[0].poll || r.send[0].bfdIntervals != c.after {
				t.Fatalf("%s: the next periodic packet: %+v", c.name, r.send)
			}
			m, _ = m.receive(m.sent, from7(m, bfdUp))
			if got := inForce(m); got != c.polling || m.state != bfdUp {
				t.Fatalf("%s: before the Final %+v, want %+v; %s", c.name, got, c.polling, m.state)
			}
		}
		// Another change waits until this one is confirmed.
		m, _ = m.configure(m.sent, conf(c.before))
		if got := m.packet(false); got.bfdIntervals != c.after {
			t.Errorf("%s: a change during a Poll sequence: %+v", c.name, got)
		}
		m, _ = m.configure(m.sent, conf(c.after))
		p := from7(m, bfdUp)
		p.final = true
		if m, _ = m.receive(m.sent, p); m.polling || inForce(m) != c.after {
			t.Errorf("%s: after the Final: polling %v, %+v", c.name, m.polling, inForce(m))
		}
		if m, _ = m.configure(m.sent, conf(c.before)); !m.polling {
			t.Errorf("%s: the next change needs no Poll", c.name)
		}
	}
	// The multiplier is in the next packet, and needs no Poll.
	m := upBFD(fastBFD)
	slower := fastBFD
	slower.Multiplier = 9
	if m, _ = m.configure(bfdStart, slower); m.polling || m.packet(false).multiplier != 9 {
		t.Errorf("multiplier: %+v", m.packet(false))
	}
}

// configure changes the configuration, as Server.Set never does. While the session is up, the router confirms other
// intervals by a Poll sequence; the multiplier needs none.
func (m bfdMachine) configure(now time.Time, conf BFD) (bfdMachine, bfdResult) {
	m.conf = conf
	m.propose()
	return m, m.result(now)
}

// Packets of one session are neither in step nor later than 90 % of the interval.
func TestBFDJitter(t *testing.T) {
	m := upBFD(fastBFD)
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		before := m.sent
		m.router.heard = m.due()
		m, _ = m.timer(m.due())
		least, most = min(least, m.sent.Sub(before)), max(most, m.sent.Sub(before))
	}
	if least < 37500*time.Microsecond || most > 45*time.Millisecond || most-least < 7*time.Millisecond {
		t.Errorf("at 50ms the pauses are %s to %s", least, most)
	}
}

// A router that receives no packets gets none, but answers to its Polls.
func TestBFDQuiet(t *testing.T) {
	m := upBFD(fastBFD)
	p := from7(m, bfdUp)
	p.receive, p.poll = 0, true
	m, r := m.receive(bfdStart.Add(time.Hour), p)
	if len(r.send) != 1 || !r.send[0].final || r.next != m.expiry() {
		t.Errorf("it sends %+v, and next after %s", r.send, r.next.Sub(m.router.heard))
	}
}

func TestBFDAdminDown(t *testing.T) {
	m := upBFD(fastBFD)
	want := bfdPacket{state: bfdAdminDown, diagnostic: bfdAdministratively, multiplier: 3, local: m.local, remote: 7,
		bfdIntervals: bfdIntervals{bfdSlow, 50 * time.Millisecond}}
	if got := m.adminDown(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
