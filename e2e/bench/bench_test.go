package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/figure"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// docs is the folder of the pages.
const docs = "../../docs/benchmarks"

// Each page and figure is what `make generate` makes of the results that are checked in, and
// of the present code: a page whose code has changed says so.
func TestPagesAreOfTheirResults(t *testing.T) {
	b := bench{in: measure.Inputs{Source: "../.."}, folder: docs}
	for _, name := range names {
		files, err := b.files(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, f := range files {
			have, err := os.ReadFile(filepath.Join(docs, f.Name))
			if err != nil || !bytes.Equal(have, f.Content) {
				t.Errorf("%s is not made of %s.json and the present code (%v): run `make generate`", f.Name, name, err)
			}
			if f.Name != name+".md" && (len(f.Content) > 60_000 ||
				!strings.Contains(string(files[0].Content), "]("+f.Name+")")) {
				t.Errorf("%s: %d bytes, want at most 60000; the page must show it", f.Name, len(f.Content))
			}
		}
	}
}

// fake is a benchmark whose result is a number, and which fails with a negative one.
func fake(n int) func(*flag.FlagSet, *measure.Inputs) measure.Run {
	type result struct {
		Began time.Time
		N     int
	}
	return func(_ *flag.FlagSet, in *measure.Inputs) measure.Run {
		return measure.Steps[result]{
			Quicken: func() {},
			Check: func() error {
				if n < 0 {
					return errors.New("negative")
				}
				return nil
			},
			Measure: func(context.Context) (result, error) { return result{time.Unix(0, 0), n}, nil },
			Render: func(r result) (string, error) {
				text, err := json.Marshal(r.N)
				return "# A page\n\nN = " + string(text), err
			},
			Further: func(r result) ([]measure.File, error) {
				return []measure.File{{Name: "further.md", Content: fmt.Appendf(nil, "# Further\n\nN² = %d", r.N*r.N)}},
					nil
			},
			Figures: func(r result) []figure.Figure { return []figure.Figure{{Name: "fake-figure"}} },
		}.Run(in, new(measure.Inputs))
	}
}

// replace replaces the benchmarks for a test.
func replace(t *testing.T, with map[string]func(*flag.FlagSet, *measure.Inputs) measure.Run, order ...string) {
	t.Helper()
	was, wasNames := benchmarks, names
	t.Cleanup(func() { benchmarks, names = was, wasNames })
	benchmarks, names = with, order
}

// All benchmarks run though one fails, and the progress says so. Rendering makes the same page
// from the JSON, and marks it when the code is another one.
func TestAllAndRender(t *testing.T) {
	dir := t.TempDir()
	replace(t, map[string]func(*flag.FlagSet, *measure.Inputs) measure.Run{"bgp": fake(-1), "l2": fake(7)}, "bgp", "l2")
	var progress bytes.Buffer
	b := bench{in: measure.Inputs{Source: "../.."}, folder: dir, progress: &progress}
	if err := b.all(t.Context()); err == nil || err.Error() != "bgp: negative" {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"bgp: 1 of 2, ", "bgp: failed after ", "l2: 2 of 2, ", "l2: done after "} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("no %q in\n%s", want, progress.String())
		}
	}
	page := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	measured := page("l2.md")
	if !strings.Contains(measured, "The measured code is unchanged since.") || !strings.Contains(measured, "N = 7") {
		t.Errorf("the page is\n%s", measured)
	}
	if further := page("further.md"); !strings.Contains(further, "The measured code is unchanged since.") ||
		!strings.Contains(further, "N² = 49") {
		t.Errorf("the further page is\n%s", further)
	}
	if _, err := os.Stat(filepath.Join(dir, "bgp.json")); err == nil {
		t.Error("the failed benchmark has results")
	}
	results := filepath.Join(dir, "l2.json")
	text, err := os.ReadFile(results)
	if err != nil {
		t.Fatal(err)
	}
	r, err := measure.ReadRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.render(nil); err != nil || page("l2.md") != measured {
		t.Errorf("rendered: %v\n%s", err, page("l2.md"))
	}
	if err := os.WriteFile(results, bytes.Replace(text, []byte(r.Code), []byte("another"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := b.render(nil); err != nil ||
		!strings.Contains(page("l2.md"), "**Old: the measured code has changed since.**") {
		t.Errorf("rendered with other code: %v\n%s", err, page("l2.md"))
	}
	if further := page("further.md"); !strings.Contains(further, "**Old: the measured code has changed since.**") {
		t.Errorf("the further page with other code is\n%s", further)
	}
	for _, name := range []string{"bgp", "nothing"} {
		if err := b.render([]string{name}); err == nil {
			t.Errorf("%s was rendered without results", name)
		}
	}
}
