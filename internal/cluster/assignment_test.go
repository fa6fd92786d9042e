package cluster

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// Each version knows whether an address may be announced over Layer 2, as a count of all would say,
// however it came from the version before.
func TestAssignmentsOverLayer2(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func() (list []Assignment) {
		for range r.IntN(4) {
			a := Assignment{
				Addr:    netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(8))}),
				Service: Name{"default", string('a' + rune(r.IntN(2)))},
			}
			if r.IntN(3) == 0 {
				a.From.Announce = AnnounceL2
			}
			list = append(list, a)
		}
		slices.SortFunc(list, Assignment.Compare)
		return slices.CompactFunc(list, func(a, b Assignment) bool { return a.Compare(b) == 0 })
	}
	var now Assignments
	seen := map[bool]int{}
	for i := range 2000 {
		switch list := random(); r.IntN(3) {
		case 0:
			now = now.With(list...)
		case 1:
			now = now.Without(list...)
		case 2:
			if same := now.Keep(AssignmentSet(now.Slice()...)); !same.Same(now) {
				t.Fatalf("step %d: equal assignments are another version", i)
			}
			if r.IntN(10) == 0 {
				now = now.Keep(AssignmentSet(list...))
			}
		}
		want := slices.ContainsFunc(now.Slice(), func(a Assignment) bool { return a.From.Announce == AnnounceL2 })
		if have := (&Snapshot{Assignments: now}).UsesL2(); have != want {
			t.Fatalf("step %d: over Layer 2 %t, want %t: %v", i, have, want, now.Slice())
		}
		seen[want]++
	}
	if seen[true] < 100 || seen[false] < 100 {
		t.Errorf("the steps lead to too few versions with, or without: %v", seen)
	}
}
