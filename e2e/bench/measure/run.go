package measure

import "context"

// Inputs are the flags that all benchmarks share.
type Inputs struct {
	Binary string // the program to measure
	Source string // the root of the repository
	Quick  bool   // few runs, to check that the benchmark works
}

// A Run runs a benchmark, and returns its page.
type Run func(context.Context) (string, error)

// Steps are the parts of a benchmark whose result is an R. All use the same options.
type Steps[R any] struct {
	Quicken func()       // reduces all sizes
	Check   func() error // checks the flags
	Measure func(context.Context) (R, error)
	Render  func(R) (string, error)
}

// Once checks the options, measures and renders.
func (s Steps[R]) Once(ctx context.Context) (r R, text string, err error) {
	if err = s.Check(); err != nil {
		return r, "", err
	}
	if r, err = s.Measure(ctx); err != nil {
		return r, "", err
	}
	text, err = s.Render(r)
	return r, text, err
}

// Run returns the run function for after the parsing of flags. It copies the common inputs
// in into the benchmark's own.
func (s Steps[R]) Run(in, own *Inputs) Run {
	return func(ctx context.Context) (string, error) {
		*own = *in
		if own.Quick {
			s.Quicken()
		}
		_, text, err := s.Once(ctx)
		return text, err
	}
}
