package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/election"
)

// A change is accepted once it has lasted, together with the other pending changes.
func TestDebouncer(t *testing.T) {
	at := time.Unix(0, 0)
	d := debouncer{after: 10 * time.Second}
	node := func(name string, st election.Availability) election.Node {
		return election.Node{Name: name, Availability: st}
	}
	for i, step := range []struct {
		after time.Duration
		seen  []election.Node
		want  string
		wait  time.Duration
	}{
		{0, []election.Node{node("a", election.Fit), node("b", election.Dead)}, "a0 b2", 0},
		{time.Second, []election.Node{node("a", election.Dead), node("b", election.Dead)}, "a0 b2", 10 * time.Second},
		{9 * time.Second, []election.Node{node("a", election.Dead), node("b", election.Dead)}, "a0 b2", time.Second},
		{time.Second, []election.Node{node("a", election.Dead), node("b", election.Dead)}, "a2 b2", 0},
		{time.Second, []election.Node{node("a", election.Fit), node("b", election.Dead)}, "a2 b2", 10 * time.Second},
		{6 * time.Second, []election.Node{node("a", election.Dead), node("b", election.Dead)}, "a2 b2", 0},
		{6 * time.Second, []election.Node{node("a", election.Fit), node("b", election.Dead)}, "a2 b2",
			10 * time.Second},
		{6 * time.Second, []election.Node{node("a", election.Leaving), node("b", election.Dead)}, "a2 b2",
			10 * time.Second},
		{6 * time.Second, []election.Node{node("a", election.Leaving)}, "a2 b2", 10 * time.Second},
		{4 * time.Second, []election.Node{node("a", election.Leaving), node("c", election.Fit)}, "a2 b2",
			10 * time.Second},
		{5 * time.Second, []election.Node{node("a", election.Leaving)}, "a2 b2", time.Second},
		{time.Second, []election.Node{node("a", election.Leaving), node("c", election.Fit)}, "a2 b2", 4 * time.Second},
		{20 * time.Second, []election.Node{node("a", election.Leaving), node("c", election.Fit)}, "a1 c0", 0},
		// A node that flaps holds up the others for a while, and not for ever.
		{time.Second, []election.Node{node("a", election.Fit), node("c", election.Fit)}, "a1 c0", 10 * time.Second},
		{9 * time.Second, []election.Node{node("a", election.Fit), node("c", election.Dead)}, "a1 c0",
			10 * time.Second},
		{9 * time.Second, []election.Node{node("a", election.Fit), node("c", election.Excluded)}, "a1 c0",
			2 * time.Second},
		{2 * time.Second, []election.Node{node("a", election.Fit), node("c", election.Excluded)}, "a0 c0",
			8 * time.Second},
		{8 * time.Second, []election.Node{node("a", election.Fit), node("c", election.Excluded)}, "a0 c4", 0},
	} {
		at = at.Add(step.after)
		nodes, due := d.take(at, step.seen)
		var wait time.Duration
		if !due.IsZero() {
			wait = due.Sub(at)
		}
		var got []string
		for _, n := range nodes {
			got = append(got, fmt.Sprint(n.Name, n.Availability))
		}
		if strings.Join(got, " ") != step.want || wait != step.wait {
			t.Fatalf("step %d: %v and wait for %s, want %s and %s", i, got, wait, step.want, step.wait)
		}
	}
}
