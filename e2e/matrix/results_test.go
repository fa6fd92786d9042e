package matrix

import (
	"context"
	"time"
)

// measured holds the results of a run.
type measured struct {
	Began time.Time
	Cells []cellResult
}

type cellResult struct {
	Feature, Disturbance string
	Kept                 bool
	result
}

func (m *measured) add(f feature, d disturbance, r result, kept bool) {
	m.Cells = append(m.Cells, cellResult{f.name, d.name, kept, r})
}

func (m *measured) save(context.Context, string, string, string) error { return nil }
