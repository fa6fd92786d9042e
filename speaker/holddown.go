package speaker

import (
	"time"

	"github.com/fanfare-lb/fanfare/internal/membership"
)

// returning reports whether this node has returned so recently that others are preferred.
func (k *links) returning(m *membership.Members, now time.Time) bool {
	return k.holdDown.Returning(func() bool { return k.holds.others(m) }, now)
}

// offer must be called when the other nodes receive this node's interfaces. If the result
// differs from decided, by which the pass was decided, another pass follows.
func (k *links) offer(m *membership.Members, decided bool, now time.Time) (returning bool) {
	returning = k.holdDown.Update(len(k.reach.list) > 0, func() bool { return k.holds.others(m) }, now)
	if returning != decided {
		k.holds.poke()
	}
	return returning
}
