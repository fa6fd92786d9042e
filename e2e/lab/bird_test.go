package lab

import (
	"slices"
	"testing"
)

// BIRD does not delay routes: the first answer comes within the bound, everything included.
func TestBGPFirstAnswerWithBIRD(t *testing.T) { runStep(t, laboratory(t), otherRouter) }

// TestBGPWithBIRD repeats the steps that involve the router with another BGP
// implementation.
func TestBGPWithBIRD(t *testing.T) {
	l := laboratoryWithBIRD(t)
	steps := []string{"FirstService", "NextHops", "Cluster", "IPv6", "OrderlyMove", "AbruptMove", "Kill", "Upgrade",
		"Withdrawal", "Order"}
	for _, step := range Steps() {
		if slices.Contains(steps, step.Name) {
			t.Run(step.Name, func(t *testing.T) { runStep(t, l, step) })
		}
	}
}

func TestBGPRestartOfBIRDRestoresRoutes(t *testing.T) { restartRouter(t, laboratoryWithBIRD(t)) }

// laboratoryWithBIRD builds a lab in addition to the shared one.
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
