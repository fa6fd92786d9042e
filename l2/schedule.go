package l2

import "time"

// A stage is what is to be done next for an address. Of several that are due, those of
// the lowest stage come first: when a thousand addresses are taken at once, the link hears
// of each before it hears of any a second time.
type stage uint8

const (
	announce stage = iota // tell everybody, at once
	confirm               // in ARP's other form
	probe1                // ask whether somebody has it
	probe2
	probe3
	passed // nobody has answered
	again1 // tell again: one that got lost matters little
	again2
	again3
	again4
	again5
	refresh // for ever
	retry1  // ask again after a conflict
	retry2
	retry3
	retry4
	retry5
	numStages
)

// A schedule is how long after the one before each stage comes.
type delays [numStages]time.Duration

// usual is the schedule of all but tests.
//
// An announcement is repeated after 0.1, 0.5, 1.5, 3.5 and 7.5 s. The second is for a
// frame that got lost; the third and fourth for Linux before 4.12, which believes no second
// word within a second (locktime); the last for switches that have just seen a port come
// up.
//
// RFC 5227 §1.1 has probing begin after up to a second, three probes 1 to 2 s apart and 2 s
// of silence after the last: up to 7 s, in which a Service would have no address. Its §2.2
// leaves shorter times to faster networks, without numbers; these are ours. Hosts answer
// within milliseconds, those that save power within a few beacons of 0.1 s, and one that was
// slower is noticed when it first says something. IPv6 has the same times (RFC 4862 §5.1
// would have one probe and a second).
func defaultDelays(period time.Duration) delays {
	const ms = time.Millisecond
	return delays{
		probe2: 200 * ms, probe3: 200 * ms, passed: 300 * ms,
		again1: 100 * ms, again2: 400 * ms, again3: time.Second, again4: 2 * time.Second, again5: 4 * time.Second,
		refresh: period,
		retry1:  30 * time.Second, retry2: time.Minute, retry3: 2 * time.Minute, retry4: 4 * time.Minute, retry5: 5 * time.Minute,
	}
}

// next is the stage after s in the life of an address of a protocol, or none.
func (s delays) next(at stage, p *protocol) (stage, bool) {
	switch at {
	case announce:
		if p == ndpProtocol {
			return again1, true // which has one form
		}
		return confirm, true
	case confirm:
		return again1, true
	case again5, refresh:
		return refresh, s[refresh] > 0
	case passed, retry1, retry2, retry3, retry4, retry5:
		return 0, false // the address goes on to another phase
	default:
		return at + 1, true
	}
}

// A turn is one address's place in the schedule.
type timer struct {
	address *address
	port    *port // nil: on all of the address's ports
	stage   stage
	due     time.Time
}

// An schedule has the turns of all addresses. As every stage comes a constant time after the
// one before, those of one stage become due in the order in which they were added.
type schedule struct {
	delays delays
	queues   [numStages][]*timer
}

// add puts t where its stage says.
func (a *schedule) add(t *timer, now time.Time) {
	t.due = now.Add(a.delays[t.stage])
	a.queues[t.stage] = append(a.queues[t.stage], t)
}

// follow puts t into the stage after its own.
func (a *schedule) follow(t *timer, now time.Time) {
	p := protocolOf(t.address.want.Addr)
	if next, ok := a.delays.next(t.stage, p); ok {
		t.stage = next
		a.add(t, now)
	}
}

// pop takes the most urgent of the turns that are due. If there is none it says how long
// to wait, or, with nothing to wait for, that there is nothing.
func (a *schedule) pop(now time.Time) (t *timer, wait time.Duration, ok bool) {
	for s, q := range a.queues {
		if len(q) == 0 {
			continue
		}
		left := q[0].due.Sub(now)
		if left <= 0 {
			t, q[0] = q[0], nil // the array outlives it
			a.queues[s] = q[1:]
			return t, 0, true
		}
		if !ok || left < wait {
			wait, ok = left, true
		}
	}
	return nil, wait, ok
}
