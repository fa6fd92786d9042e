package conformance

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// page is the name of the page, and of the file of results, without their ends.
const page = "conformance"

// A file holds the results that the page shows. A run replaces those of its own tests.
type file struct {
	Machine measure.Machine
	Commit  string // of the last run
	Results []Result
}

// Source is what was tested.
type Source struct {
	Root, Fanfare, Tools string // the repository; programs
	Commit               string // before the run, which changes the tree by its results
}

// Save adds results to those in a folder of pages, and writes the page.
func Save(ctx context.Context, s Source, folder string, results []Result) error {
	all, err := read(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if all.Machine, err = measure.Describe(ctx, s.Fanfare, measure.Kubernetes(s.Tools, "kubelet"), measure.FRR,
		measure.NFT); err != nil {
		return err
	}
	code, err := measure.CodeOf(page, s.Root)
	if err != nil {
		return err
	}
	for i := range results {
		results[i].Fanfare, results[i].Code = all.Machine.Fanfare, code
	}
	all.Commit = s.Commit
	all.merge(results)
	text, err := all.lines()
	if err != nil {
		return err
	}
	files, err := all.files(s.Root)
	if err != nil {
		return err
	}
	return measure.WriteFiles(folder, append(files, measure.File{Name: page + ".json", Content: text}))
}

func read(folder string) (all file, err error) {
	path := filepath.Join(folder, page+".json")
	text, err := os.ReadFile(path)
	if err != nil {
		return all, err
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return all, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// merge replaces results of the same test and set-up, and removes those of tests that no longer run.
func (all *file) merge(fresh []Result) {
	var results []Result
	for _, t := range Tests {
		for _, s := range Setups {
			for _, list := range [][]Result{fresh, all.Results} {
				if r, ok := find(list, s, t); ok && LeftOut(s, t) == "" {
					results = append(results, r)
					break
				}
			}
		}
	}
	all.Results = results
}

func find(list []Result, s Setup, t Test) (Result, bool) {
	i := slices.IndexFunc(list, func(r Result) bool { return r.Setup == s.Name && r.Test == t.Name })
	if i < 0 {
		return Result{}, false
	}
	return list[i], true
}

// lines returns the file as JSON with a line for each result.
func (all file) lines() ([]byte, error) {
	machine, err := json.Marshal(all.Machine)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, r := range all.Results {
		line, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		lines = append(lines, string(line))
	}
	return fmt.Appendf(nil, "{\"Machine\": %s,\n\"Commit\": %q,\n\"Results\": [\n%s\n]}\n", machine, all.Commit,
		strings.Join(lines, ",\n")), nil
}

// files renders the page with its head. root is that of the present code.
func (all file) files(root string) ([]measure.File, error) {
	present, err := measure.CodeOf(page, root)
	if err != nil {
		return nil, err
	}
	text, err := all.render()
	if err == nil {
		text, err = measure.Under(all.heading(present).String(), text)
	}
	return []measure.File{{Name: page + ".md", Content: []byte(text)}}, err
}

// heading returns the head of the page, which is old if some result is.
func (all file) heading(present string) measure.Heading {
	old := slices.ContainsFunc(all.Results, func(r Result) bool { return r.Code != present })
	m := all.Machine
	m.Fanfare = strings.Join(all.each(func(r Result) string { return r.Fanfare }), ", ")
	days := all.each(func(r Result) string { return r.Measured.Format(time.DateOnly) })
	if len(days) > 1 {
		days = []string{days[0] + " to " + days[len(days)-1]}
	}
	return measure.Heading{
		Command: "make conformance", Date: strings.Join(days, ""), Commit: all.Commit, Old: old, Machine: m,
	}
}

// each returns the different values that results have, sorted.
func (all file) each(value func(Result) string) (values []string) {
	for _, r := range all.Results {
		values = append(values, value(r))
	}
	slices.Sort(values)
	return slices.Compact(values)
}

//go:embed conformance.md.tmpl
var document string

func (all file) render() (string, error) {
	return measure.Render(document, template.FuncMap{"cell": all.cell, "first": firstLine}, all)
}

// cell returns a cell's text in the table of results.
func (all file) cell(s Setup, t Test) string {
	if LeftOut(s, t) != "" {
		return "–"
	}
	switch r, ok := find(all.Results, s, t); {
	case !ok:
		return "?"
	case r.Outcome == Passed:
		return string(Passed)
	default:
		return "**" + string(r.Outcome) + "**"
	}
}

// firstLine returns the beginning of a message, for a cell of a table.
func firstLine(message string) string {
	const limit = 180
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	line = strings.NewReplacer("|", "/", "<", "&lt;").Replace(line)
	if text := []rune(line); len(text) > limit {
		return string(text[:limit]) + " …"
	}
	return line
}

// Accessors for the template.

func (all file) Setups() []Setup         { return Setups }
func (all file) Tests() []Test           { return Tests }
func (all file) Exclusions() []exclusion { return exclusions }

// Quick returns how many tests are part of `make test`.
func (all file) Quick() int { return len(Quick().Tests) }

// NotPassed returns the results that need an explanation.
func (all file) NotPassed() (list []Result) {
	for _, r := range all.Results {
		if r.Outcome != Passed {
			list = append(list, r)
		}
	}
	return list
}

// Count returns the number of results with an outcome.
func (all file) Count(o Outcome) (n int) {
	for _, r := range all.Results {
		if r.Outcome == o {
			n++
		}
	}
	return n
}

// Title returns the test's name without its labels.
func (r Result) Title() string { return Test{Name: r.Test}.Title() }

func (e exclusion) Title() string { return Test{Name: e.Test}.Title() }

// Where names the set-ups of an exclusion.
func (e exclusion) Where() string {
	if len(e.Setups) == 0 {
		return "all"
	}
	return strings.Join(e.Setups, ", ")
}
