package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The next lab removes what a crashed lab left, and nothing else.
func TestLabSweepRemovesOnlyCrashedLabs(t *testing.T) {
	l, ctx := labWithoutSpeakers(t), t.Context()
	o := l.Options
	o.ID += "crashed"
	crashed, err := Up(ctx, o)
	await(t, err)
	zebra := crashed.Router.procs[0]
	// Its owner is a process that has ended: process 1 has another start time.
	await(t, os.WriteFile(crashed.path("owner"), []byte("1 1\n"), 0o644))
	crashed.closeHandles()

	removed, err := Sweep(false)
	if err != nil || slices.Contains(removed, l.ID) {
		t.Fatalf("removed %v (%v): want %s and not %s", removed, err, o.ID, l.ID)
	}
	// A lab in another process may sweep at the same time.
	await(t, Await(ctx, Settle, "the end of "+o.ID, func() error {
		if _, err := os.Stat(crashed.path()); !os.IsNotExist(err) {
			return fmt.Errorf("removed %v, but %s still exists (%v)", removed, crashed.path(), err)
		}
		return nil
	}))
	<-zebra.done
	left, err := filepath.Glob("/run/netns/" + prefix + o.ID + "-*")
	if err != nil || len(left) > 0 {
		t.Errorf("namespaces left: %v (%v)", left, err)
	}
	if _, err := l.Router.Ask(ctx, "show version"); err != nil {
		t.Errorf("the sweep damaged another lab: %v", err)
	}
}

// Two labs of one name would share namespaces.
func TestLabNameIsExclusive(t *testing.T) {
	l := labWithoutSpeakers(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := Up(ctx, l.Options); err == nil || !strings.Contains(err.Error(), "make lab-down") {
		t.Errorf("a second lab %s: %v: want an error that names make lab-down", l.ID, err)
	}
	if _, err := l.Router.Ask(ctx, "show version"); err != nil {
		t.Errorf("the first lab was damaged: %v", err)
	}
}
