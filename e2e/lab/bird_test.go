package lab

import (
	"slices"
	"testing"
)

// BIRD holds no route back: the first answer is there in less than the bound,
// all included.
func TestBGPFirstAnswerWithBIRD(t *testing.T) { runStep(t, laboratory(t), otherRouter) }

// TestBGPWithBIRD runs those steps of the scenario in which the router has a part
// once more, with another implementation of BGP.
func TestBGPWithBIRD(t *testing.T) {
	l := laboratoryWithBIRD(t)
	steps := []string{"FirstService", "NextHops", "Cluster", "IPv6", "OrderlyMove", "AbruptMove", "Kill", "Upgrade", "Withdrawal", "Order"}
	for _, step := range Steps() {
		if slices.Contains(steps, step.Name) {
			t.Run(step.Name, func(t *testing.T) { runStep(t, l, step) })
		}
	}
}

// A router that was restarted gets everything again.
func TestBGPRestartOfBIRDRestoresRoutes(t *testing.T) { restartRouter(t, laboratoryWithBIRD(t)) }

// laboratoryWithBIRD builds a lab beside the shared one.
func laboratoryWithBIRD(t *testing.T) *Lab {
	t.Helper()
	with := laboratory(t).Options
	with.ID, with.Software = with.ID+"b", BIRD
	l, err := Up(t.Context(), with)
	await(t, err)
	t.Cleanup(func() { await(t, l.Down()) })
	await(t, l.StartSpeakers(t.Context(), NodeNames...))
	return l
}
