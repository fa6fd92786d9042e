package lab

import (
	"testing"
)

// TestStory plays each step of the story as a test.
func TestStory(t *testing.T) {
	for _, step := range Steps() {
		t.Run(step.Name, func(t *testing.T) {
			s := &Scene{Lab: laboratory(t)}
			err := step.Run(t.Context(), s)
			t.Log(step.Title)
			for _, line := range s.Lines {
				t.Log(line)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}
