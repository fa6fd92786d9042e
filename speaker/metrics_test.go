package speaker

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// Each pass is in the histogram, with a bucket that ends at the 20 ms that a pass may take, and each
// of its phases in that of phases.
func TestPassesAreInMetrics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		m := newMetrics(registry)
		trial := newTrial(1)
		trial.failing, trial.pass.metrics = false, m
		trial.decide()
		if err := trial.pass.run(t.Context(), trial.desired); err != nil {
			t.Fatal(err)
		}
		m.observe(15*time.Millisecond, nil)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var phases []string
		below := map[float64]uint64{}
		for _, f := range families {
			for _, x := range f.GetMetric() {
				switch f.GetName() {
				case "fanfare_speaker_pass_phase_duration_seconds":
					phases = append(phases, x.GetLabel()[0].GetValue())
				case "fanfare_speaker_pass_duration_seconds":
					for _, b := range x.GetHistogram().GetBucket() {
						below[b.GetUpperBound()] = b.GetCumulativeCount()
					}
				}
			}
		}
		if want := []string{phaseForward, phaseGrow, phaseShrink}; !slices.Equal(phases, want) {
			t.Errorf("phases: %q, want %q", phases, want)
		}
		if below[0.01] != 0 || below[0.02] != 1 {
			t.Errorf("a pass of 15 ms: %v", below)
		}
	})
}
