package measure

import "context"

// Inputs are the flags that all benchmarks share.
type Inputs struct {
	Binary string // the program to measure
	Source string // the root of the repository
	Quick  bool   // few runs, to check that the benchmark works
}

// A Run runs a benchmark, and returns its section of the document.
type Run func(context.Context) (string, error)
