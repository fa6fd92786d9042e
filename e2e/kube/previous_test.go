package kube

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/fanfare-lb/fanfare/e2e/binary"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// The controller and a speaker of an earlier commit work with those of this version, in all
// combinations, on the way there and back, with the CRDs and roles of this version. Services keep their
// addresses.
func TestSkewOfControllerAndSpeaker(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		now, previous := f.binary, previousBuilt(t)
		must(t, f.Admin().Apply(t.Context(), oneNode))

		f.binary = previous
		controller, speaker := f.run("controller"), f.speaker()
		had := map[string]string{}
		for i, step := range []struct {
			program string
			replace **program
		}{{previous, &controller}, {now, &controller}, {now, &speaker}, {previous, &controller}, {previous, &speaker}} {
			(*step.replace).stop()
			f.binary = step.program
			if step.replace == &controller {
				controller = f.run("controller")
			} else {
				speaker = f.speaker()
			}
			name := fmt.Sprintf("web%d", i)
			must(t, f.Admin().Apply(t.Context(), oneService(name, fmt.Sprintf("10.244.1.%d", 5+i))))
			have := map[string]string{}
			for j := range i + 1 {
				other := fmt.Sprintf("web%d", j)
				f.awaitForwarded(other)
				addr, err := f.assigned(other)
				must(t, err)
				have[other] = addr
			}
			had[name] = have[name]
			if !maps.Equal(had, have) {
				t.Fatalf("step %d: the Services had %v, and have %v", i, had, have)
			}
		}
		for _, p := range []*program{controller, speaker} {
			if p.logged("level=ERROR") || p.alive() != nil {
				t.Errorf("%s: %v\n%s", p.name, p.alive(), p.tail())
			}
		}
	}, func(t *testing.T) { previousBuilt(t) })
}

// previousBuilt returns the path of the earlier program.
func previousBuilt(t *testing.T) string {
	t.Helper()
	path, err := buildPrevious()
	if errors.Is(err, binary.ErrNoCommit) {
		nstest.Missing(t, err.Error())
	}
	must(t, err)
	return path
}
