package lab

import (
	"testing"
)

// TestScenario runs each step of the scenario as a test.
func TestScenario(t *testing.T) {
	l := laboratory(t)
	for _, step := range Steps() {
		t.Run(step.Name, func(t *testing.T) {
			await(t, l.StartSpeakers(t.Context(), NodeNames...))
			runStep(t, l, step)
		})
	}
}

func runStep(t *testing.T, l *Lab, step Step) {
	t.Helper()
	s := &StepRun{Lab: l}
	err := step.Run(t.Context(), s)
	t.Log(step.Title + "\n" + s.Report())
	if err != nil {
		t.Error(err)
	}
}
