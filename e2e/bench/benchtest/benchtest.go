package benchtest

import (
	"path/filepath"
	"testing"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/binary"
)

// Inputs returns the inputs of a quick run, of the current source. The test's package is a folder of e2e/bench.
func Inputs(t *testing.T) measure.Inputs {
	t.Helper()
	in := measure.Inputs{Binary: filepath.Join(t.TempDir(), "fanfare"), Source: "../../.."}
	if err := binary.Build(t.Context(), in.Binary); err != nil {
		t.Fatal(err)
	}
	return in
}

// Once measures once, and logs the page.
func Once[R any](t *testing.T, s measure.Steps[R]) (r R, text string) {
	t.Helper()
	r, text, err := s.Once(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(text)
	return r, text
}
