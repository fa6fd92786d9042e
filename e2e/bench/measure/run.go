package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/figure"
)

// Inputs are the flags that all benchmarks share.
type Inputs struct {
	Binary string // the program to measure
	Source string // the root of the repository
	Quick  bool   // few runs, to check that the benchmark works
}

// A Run is a benchmark whose flags are parsed.
type Run struct {
	// Measure runs the benchmark and returns its results as JSON.
	Measure func(context.Context) ([]byte, error)
	// Render makes the page, its further pages and its figures from such JSON alone, without the
	// head.
	Render func(results []byte) (Page, error)
}

// Steps are the parts of a benchmark whose result is an R. All use the same options. The
// page shows nothing of an R that is not in its JSON.
type Steps[R any] struct {
	Quicken func()       // reduces all sizes
	Check   func() error // checks the flags
	Measure func(context.Context) (R, error)
	Render  func(R) (string, error)
	Further func(R) ([]File, error) // pages that the first one links to; nil: none
	Figures func(R) []figure.Figure // nil: none
}

// Once checks the options, measures and renders.
func (s Steps[R]) Once(ctx context.Context) (r R, text string, err error) {
	if err = s.Check(); err != nil {
		return r, "", err
	}
	if r, err = s.Measure(ctx); err != nil {
		return r, "", err
	}
	p, err := s.page(r)
	return r, p.Text, errors.Join(err, s.complete(r, p))
}

// Run returns the benchmark for after the parsing of flags. It copies the common inputs in
// into the benchmark's own.
func (s Steps[R]) Run(in, own *Inputs) Run {
	measured := func(ctx context.Context) ([]byte, error) {
		*own = *in
		if own.Quick {
			s.Quicken()
		}
		r, _, err := s.Once(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(r)
	}
	return Run{Measure: measured, Render: s.render}
}

func (s Steps[R]) render(results []byte) (Page, error) {
	var r R
	if err := json.Unmarshal(results, &r); err != nil {
		return Page{}, err
	}
	return s.page(r)
}

func (s Steps[R]) page(r R) (p Page, err error) {
	if p.Text, err = s.Render(r); err != nil {
		return p, err
	}
	if s.Further != nil {
		if p.Further, err = s.Further(r); err != nil {
			return p, err
		}
	}
	if s.Figures == nil {
		return p, nil
	}
	for _, f := range s.Figures(r) {
		svg, err := f.SVG()
		if err != nil {
			return p, fmt.Errorf("figure %s: %w", f.Name, err)
		}
		p.Figures = append(p.Figures, File{f.Name + ".svg", svg})
	}
	return p, nil
}

// complete checks that the page from the JSON is the page from the result: unexported
// fields are missing in JSON.
func (s Steps[R]) complete(r R, p Page) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	again, err := s.render(text)
	if err == nil && !reflect.DeepEqual(again, p) {
		err = errors.New("BUG: the page shows something that is not in its JSON")
	}
	return err
}

// writeFile writes a file if its content is another one.
func writeFile(path string, content []byte) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == string(content) {
		return nil
	}
	return os.WriteFile(path, content, 0o644)
}

// Pause waits for a time that is part of the measurement.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
