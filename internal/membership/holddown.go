package membership

import (
	"slices"
	"time"
)

const (
	// holdDownMin is the hold-down of a node that returns: long enough to show that its
	// processor, link or speaker is still in trouble.
	holdDownMin = 2 * time.Second
	// holdDownMax bounds it. Each failure in the last failureWindow doubles the hold-down,
	// as in route flap damping (RFC 2439), but an operator waits at most this long for a node.
	holdDownMax   = time.Minute
	failureWindow = 10 * time.Minute
	// maxFailures is how many are kept: they give more than holdDownMax.
	maxFailures = 9
)

// A HoldDown is the time after a node's return in which it answers only for addresses that
// no other node can answer for. The node decides it for itself and sends it to the others,
// so that all nodes elect alike. A cluster that starts has none: no node answers for
// anything yet.
type HoldDown struct {
	able     bool        // this node has interfaces to answer by, and the other nodes know
	until    time.Time   // zero before the first hold-down
	failures []time.Time // when other nodes had to take over, also from earlier processes
	failed   bool        // the next hold-down follows a failure
}

// NewHoldDown continues from the failures of earlier processes. If crashed, the last of them
// ended while it answered for addresses.
func NewHoldDown(failures []time.Time, crashed bool) HoldDown {
	return HoldDown{failures: failures, failed: crashed}
}

// Failures are the times at which other nodes had to take over, for the next process.
func (h *HoldDown) Failures() []time.Time { return h.failures }

// End is when the hold-down ends, zero when there is none.
func (h *HoldDown) End(now time.Time) time.Time {
	if !now.Before(h.until) {
		return time.Time{}
	}
	return h.until
}

// Returning reports whether other nodes are preferred to this one: in a hold-down, and
// before the node is able, if there will be one. answered reports whether another node
// answers for any address; it is called only when needed.
func (h *HoldDown) Returning(answered func() bool, now time.Time) bool {
	if h.able {
		return now.Before(h.until)
	}
	return answered()
}

// Update must be called before Tracker.SetMeta; able says whether this node has interfaces to
// answer by. It returns what other nodes receive as Member.Returning. A node that becomes
// able while another one answers for an address begins a hold-down.
func (h *HoldDown) Update(able bool, answered func() bool, now time.Time) (returning bool) {
	if able && !h.able {
		if answered() {
			h.begin(now)
		}
		h.failed = true
	}
	h.able = able
	return now.Before(h.until)
}

// begin starts a hold-down. Leaving on purpose is no failure, and does not lengthen the next one.
func (h *HoldDown) begin(now time.Time) {
	h.failures = slices.DeleteFunc(slices.Clone(h.failures),
		func(f time.Time) bool { return now.Sub(f) > failureWindow })
	length := holdDownMin
	for range h.failures {
		length = min(2*length, holdDownMax)
	}
	h.until = now.Add(length)
	if h.failed {
		h.failures = append(h.failures[max(0, len(h.failures)-maxFailures+1):], now)
	}
}
