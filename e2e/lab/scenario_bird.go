package lab

import (
	"context"
	"errors"
)

// otherRouter repeats the first answer with a router that does not delay routes. It is not
// one of Steps, because it builds its own lab.
var otherRouter = Step{"OtherRouter", "Time to the first answer with BIRD as the router, in a second lab",
	"median under the bound, including the router", firstAnswerWithBIRD}

func firstAnswerWithBIRD(ctx context.Context, s *StepRun) (err error) {
	l, err := Up(ctx, Options{
		ID: s.ID + "bird", Topology: s.Topology, Objects: s.Objects, Binary: s.Binary, Software: BIRD, Slack: s.Slack,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	other := &StepRun{Lab: l}
	defer s.addReport(other)
	return errors.Join(startSpeakers(ctx, other), firstAnswer(ctx, other), order(ctx, &StepRun{Lab: l}))
}
