package lab

import (
	"context"
	"errors"
)

// otherRouter shows what the router of the other steps hides by holding routes
// back. It is no part of Steps, as it looks at no lab but its own.
var otherRouter = Step{"OtherRouter", "How long it takes to the first answer with BIRD in FRR's place, in a second lab", firstAnswerWithBIRD}

func firstAnswerWithBIRD(ctx context.Context, s *Scene) (err error) {
	l, err := Up(ctx, Options{ID: s.ID + "bird", Topology: s.Topology, Objects: s.Objects, Binary: s.Binary, Software: BIRD, Slack: s.Slack})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	other := &Scene{Lab: l}
	defer func() { s.Lines = append(s.Lines, other.Lines...) }()
	return errors.Join(startSpeakers(ctx, other), firstAnswer(ctx, other), order(ctx, &Scene{Lab: l}))
}
