package speaker

import (
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/membership"
)

// returning reports whether this node has returned so recently that others are preferred.
func (l *layer2) returning(m *membership.Members, now time.Time) bool {
	return l.holdDown.Returning(func() bool { return l.handover.othersHold(m) }, now)
}

// updateHoldDown must be called when the other nodes receive this node's interfaces. If the
// result differs from decided, by which the pass was decided, another pass follows.
func (l *layer2) updateHoldDown(m *membership.Members, decided bool, now time.Time) (returning bool) {
	returning = l.holdDown.Update(len(l.offer.list) > 0, func() bool { return l.handover.othersHold(m) }, now)
	if returning != decided {
		notify.Changed(l.handover.changed)
	}
	return returning
}
