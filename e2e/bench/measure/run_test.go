package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A page that shows something that is not in the JSON could not be made again: it is an error
// when it is measured.
func TestPageShowsOnlyItsResults(t *testing.T) {
	type result struct{ Stored, hidden int }
	once := func(shown func(result) int) error {
		s := Steps[result]{
			Check:   func() error { return nil },
			Measure: func(context.Context) (result, error) { return result{1, 2}, nil },
			Render:  func(r result) (string, error) { return fmt.Sprint("# A page\n\n", shown(r)), nil },
		}
		_, _, err := s.Once(t.Context())
		return err
	}
	if err := once(func(r result) int { return r.Stored }); err != nil {
		t.Error(err)
	}
	if err := once(func(r result) int { return r.hidden }); err == nil ||
		!strings.Contains(err.Error(), "not in its JSON") {
		t.Errorf("error %v: want one about the JSON", err)
	}
}

// Wrong flags are found before anything is measured.
func TestCheckComesFirst(t *testing.T) {
	wrong := errors.New("wrong")
	s := Steps[int]{
		Check:   func() error { return wrong },
		Measure: func(context.Context) (int, error) { t.Error("it was measured"); return 0, nil },
	}
	if _, _, err := s.Once(t.Context()); !errors.Is(err, wrong) {
		t.Errorf("error %v, want %v", err, wrong)
	}
}
