package membership

import (
	"testing"
	"time"
)

// The hold-down of a node that returns to nodes that answer for addresses doubles with each
// failure; a node that starts with the others, or alone, has none.
func TestHoldDown(t *testing.T) {
	now := time.Now()
	expect := func(what string, h *HoldDown, answered bool, want time.Duration) {
		t.Helper()
		others := func() bool { return answered }
		decided := h.Returning(others, now)
		if sent := h.Update(true, others, now); sent != (want > 0) || decided != (want > 0) {
			t.Errorf("%s: hold-down %t, sent as %t, want %t", what, decided, sent, want > 0)
		}
		if got := max(0, h.until.Sub(now)); got != want {
			t.Errorf("%s: hold-down of %s, want %s", what, got, want)
		}
		if end := h.End(now); (want > 0) != end.Equal(now.Add(want)) || want == 0 && !end.IsZero() {
			t.Errorf("%s: ends at %s, want after %s", what, end, want)
		}
		now = now.Add(want)
		if h.Returning(others, now) || h.Update(true, others, now) || !h.End(now).IsZero() {
			t.Errorf("%s: still in hold-down", what)
		}
	}
	flap := func(what string, h *HoldDown, want time.Duration) {
		t.Helper()
		h.Update(false, nil, now)
		expect(what, h, true, want)
	}

	h := NewHoldDown(nil, false)
	expect("no node answers", &h, false, 0)
	expect("nodes answer later", &h, true, 0)

	h = NewHoldDown(nil, false)
	expect("after a farewell", &h, true, 2*time.Second)
	flap("first link loss", &h, 2*time.Second)
	flap("second link loss", &h, 4*time.Second)
	if len(h.Failures()) != 2 {
		t.Errorf("failures %v, want 2", h.Failures())
	}
	h = NewHoldDown(h.Failures(), true)
	expect("next process after a crash", &h, true, 8*time.Second)
	for want := 16 * time.Second; len(h.Failures()) < maxFailures; want *= 2 {
		flap("flapping link", &h, min(want, holdDownMax))
	}
	for range 11 {
		flap("flapping link", &h, holdDownMax)
	}
	now = now.Add(failureWindow)
	flap("after the failure window", &h, 2*time.Second)
}
