package speaker

import (
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/membership"
)

const (
	// probationLeast is for how long a node that is back answers for nothing that another
	// node can answer for. One whose processor, link or program is still in trouble shows it
	// in that time, mostly, and takes nothing along.
	probationLeast = 2 * time.Second
	// probationMost is as long as it gets: it doubles with each death that is not deathKept
	// ago, as route flap damping has it (RFC 2439), but with a bound that an operator who
	// waits for a node bears.
	probationMost = time.Minute
	deathKept     = 10 * time.Minute
)

// A probation is the time in which this node, which is back, answers only for what no other
// node can. It decides that for itself and tells the others, so that all think alike. Who
// begins while nobody answers for anything, as in a cluster that starts, has none.
type probation struct {
	// offered says that the others know by which interfaces this node can answer.
	offered bool
	until   time.Time // zero before the first
	// deaths are when others had to take over, the last ones; those of earlier processes
	// among them.
	deaths []time.Time
	// died says that the next offer is not the first one, or that the process before this
	// one died while it answered for something.
	died bool
}

// begin begins one. Died says that others had to take over: a farewell makes the next one no
// longer.
func (p *probation) begin(now time.Time, died bool) {
	p.deaths = slices.DeleteFunc(slices.Clone(p.deaths), func(d time.Time) bool { return now.Sub(d) > deathKept })
	length := probationLeast
	for range p.deaths {
		length = min(2*length, probationMost)
	}
	p.until = now.Add(length)
	if died {
		p.deaths = append(p.deaths[max(0, len(p.deaths)-8):], now) // which are enough for the longest
	}
}

func (p *probation) under(now time.Time) bool { return now.Before(p.until) }

// next is when it ends, zero when none is under way.
func (p *probation) next(now time.Time) time.Time {
	if !p.under(now) {
		return time.Time{}
	}
	return p.until
}

// returning says whether this node is back so lately that others come before it; before they
// know of it, whether it will be.
func (k *links) returning(m *membership.Members, now time.Time) bool {
	if k.probation.offered {
		return k.probation.under(now)
	}
	return k.holds.others(m)
}

// offer is called when the others are told by which interfaces this node can answer, which
// was decided by decided, and returns what they are told about its return. If somebody
// answers for something already, this node comes back to that, or comes late.
func (k *links) offer(m *membership.Members, decided bool, now time.Time) (returning bool) {
	p := &k.probation
	able := len(k.reach.list) > 0
	if able && !p.offered {
		if k.holds.others(m) {
			p.begin(now, p.died)
		}
		p.died = true
	}
	p.offered = able
	returning = p.under(now)
	if returning != decided {
		k.holds.poke()
	}
	return returning
}
