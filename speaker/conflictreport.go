package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/l2"
)

// conflictLifetime is how long a conflict is reported after this node has stopped probing the
// address: when a Service gets another address, nothing is probed, and the next Service
// should not get the address meanwhile.
const conflictLifetime = 10 * time.Minute

// A conflictReport has the addresses that other hosts use. It is bounded: a host that answers for
// all addresses blocks only some of them.
type conflictReport map[netip.Addr]reportedConflict

// A reportedConflict is a conflict, and when it was last known to exist.
type reportedConflict struct {
	v1alpha1.SpeakerConflict
	at time.Time
}

// next returns the report after the given states. A conflict ends once the address is held,
// or conflictLifetime after the node last waited for the other host to release it.
func (r conflictReport) next(addresses []AddressStatus, now time.Time) conflictReport {
	next := maps.Clone(r)
	if next == nil {
		next = conflictReport{}
	}
	maps.DeleteFunc(next, func(_ netip.Addr, c reportedConflict) bool { return now.Sub(c.at) > conflictLifetime })
	for _, a := range addresses {
		s := a.L2
		if s == nil {
			continue
		}
		known, reported := next[s.Addr]
		switch {
		case s.Phase == l2.Held:
			delete(next, s.Addr)
		case s.Phase == l2.Conflicting && s.Conflict != nil && (reported || len(next) < v1alpha1.MaxSpeakerConflicts):
			next[s.Addr] = reportedConflict{v1alpha1.SpeakerConflict{
				Address: s.Addr.String(), MAC: s.Conflict.MAC.String(), Interface: s.Conflict.Interface,
				Held: s.WasHeld,
			}, now}
		case s.Phase == l2.Probing && reported:
			known.at = now
			next[s.Addr] = known
		}
	}
	return next
}

// list returns the report for the API server, sorted by address.
func (r conflictReport) list() (all []v1alpha1.SpeakerConflict) {
	for _, a := range slices.SortedFunc(maps.Keys(r), netip.Addr.Compare) {
		all = append(all, r[a].SpeakerConflict)
	}
	return all
}
