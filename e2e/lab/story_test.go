package lab

import (
	"testing"
)

// TestStory plays each step of the story as a test.
func TestStory(t *testing.T) {
	l := laboratory(t)
	for _, step := range Steps() {
		t.Run(step.Name, func(t *testing.T) {
			await(t, l.StartSpeakers(t.Context(), NodeNames...))
			play(t, l, step)
		})
	}
}

// play plays a step and tells it.
func play(t *testing.T, l *Lab, step Step) {
	t.Helper()
	s := &Scene{Lab: l}
	err := step.Run(t.Context(), s)
	t.Log(step.Title)
	for _, line := range s.Lines {
		t.Log(line)
	}
	if err != nil {
		t.Error(err)
	}
}
