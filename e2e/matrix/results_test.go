package matrix

import (
	"bytes"
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
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A file holds the results that the page shows. A run replaces those of its own cells.
type file struct {
	Machine measure.Machine
	Commit  string // of the last run
	Slack   int    // of the last run
	Cells   []cellResult
}

// A cellResult is the last result of a cell.
type cellResult struct {
	Feature, Disturbance string
	Measured             time.Time
	Fanfare              string // the version
	Code                 string // measure.CodeOf the measured code
	Kept                 bool   // the promise was kept
	Result               result
}

// measured collects the results of a run.
type measured struct {
	cells  []cellResult
	commit string // before the run, which changes the tree by its results
}

// add adds a result, in place of that of an earlier attempt.
func (m *measured) add(f feature, d disturbance, r result, kept bool) {
	m.cells = slices.DeleteFunc(m.cells, func(c cellResult) bool {
		return c.Feature == f.name && c.Disturbance == d.name
	})
	m.cells = append(m.cells, cellResult{
		Feature: f.name, Disturbance: d.name, Measured: time.Now().UTC().Truncate(time.Second), Kept: kept, Result: r,
	})
}

// save adds the results to those in a file, and writes the page if it has a name.
func (m *measured) save(ctx context.Context, fanfare, path, page string) error {
	var all file
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, err)
	}
	if all.Machine, err = measure.Describe(ctx, fanfare, measure.FRR, measure.NFT); err != nil {
		return err
	}
	code, err := measure.CodeOf("matrix", source)
	if err != nil {
		return err
	}
	for i := range m.cells {
		m.cells[i].Fanfare, m.cells[i].Code = all.Machine.Fanfare, code
	}
	all.Commit, all.Slack = m.commit, *slack
	all.merge(m.cells)
	if text, err = all.lines(); err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil || page == "" {
		return err
	}
	files, err := all.files()
	if err != nil {
		return err
	}
	return measure.WriteFiles(filepath.Dir(page), files)
}

// files renders the page with its head, and its figure.
func (all file) files() ([]measure.File, error) {
	present, err := measure.CodeOf("matrix", source)
	if err != nil {
		return nil, err
	}
	text, err := all.render()
	if err == nil {
		text, err = measure.Under(all.heading(present).String(), text)
	}
	files := []measure.File{{Name: "matrix.md", Content: []byte(text)}}
	if err != nil || !all.HasLosses() {
		return files, err
	}
	svg, err := all.losses().SVG()
	return append(files, measure.File{Name: "matrix-losses.svg", Content: svg}), err
}

// heading returns the head of the page, which is old if some cell is.
func (all file) heading(present string) measure.Heading {
	old := slices.ContainsFunc(all.Cells, func(c cellResult) bool { return c.Code != present })
	m := all.Machine
	m.Fanfare = all.Versions()
	return measure.Heading{Command: "make matrix", Date: all.Dates(), Commit: all.Commit, Old: old, Machine: m}
}

// lines returns the file as JSON with a line for each cell.
func (all file) lines() ([]byte, error) {
	machine, err := json.Marshal(all.Machine)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"Machine\": %s,\n\"Commit\": %q,\n\"Slack\": %d,\n\"Cells\": [", machine, all.Commit, all.Slack)
	for i, c := range all.Cells {
		line, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n%s", line)
	}
	b.WriteString("\n]}\n")
	return b.Bytes(), nil
}

// merge replaces results of the same cells, and removes results of cells that no longer
// exist.
func (all *file) merge(fresh []cellResult) {
	var cells []cellResult
	for _, f := range features {
		for _, d := range disturbances {
			for _, list := range [][]cellResult{fresh, all.Cells} {
				i := slices.IndexFunc(list, func(c cellResult) bool {
					return c.Feature == f.name && c.Disturbance == d.name
				})
				if i >= 0 && find(f, d).reason == "" {
					cells = append(cells, list[i])
					break
				}
			}
		}
	}
	all.Cells = cells
}

// source is the root of the repository.
const source = "../.."

//go:embed matrix.md.tmpl
var document string

func (all file) render() (string, error) {
	return measure.Render(document, template.FuncMap{"cell": all.cell, "rate": func() int { return lab.Rate },
		"short": shorten}, all)
}

// cell returns a cell's text in the table of results.
func (all file) cell(f feature, d disturbance) string {
	if find(f, d).reason != "" {
		return "–"
	}
	i := slices.IndexFunc(all.Cells, func(c cellResult) bool { return c.Feature == f.name && c.Disturbance == d.name })
	if i < 0 {
		return "?"
	}
	c := all.Cells[i]
	text := fmt.Sprintf("%d/%d/%d/%.1f", c.Result.Requests.Lost, c.Result.Connections.Lost, c.Result.Flaps,
		c.Result.Back.Seconds())
	if !c.Kept {
		return "**" + text + "**"
	}
	return text
}

// shorten makes a name a heading of a narrow column.
func shorten(name string) string { return strings.ReplaceAll(name, "-", " ") }

// Accessors for the template.

func (all file) Features() []feature         { return features }
func (all file) Disturbances() []disturbance { return disturbances }
func (all file) Connections() int            { return connections }
func (all file) Busy() int                   { return min(all.Slack, busy) }

// Dates returns the first and the last day of the results.
func (all file) Dates() string {
	var days []string
	for _, c := range all.Cells {
		days = append(days, c.Measured.Format(time.DateOnly))
	}
	slices.Sort(days)
	if days = slices.Compact(days); len(days) > 1 {
		return days[0] + " to " + days[len(days)-1]
	}
	return strings.Join(days, "")
}

// Versions returns the versions that were measured.
func (all file) Versions() string {
	var versions []string
	for _, c := range all.Cells {
		versions = append(versions, c.Fanfare)
	}
	slices.Sort(versions)
	return strings.Join(slices.Compact(versions), ", ")
}

// Requests returns the number of all requests.
func (all file) Requests() (n int) {
	for _, c := range all.Cells {
		n += c.Result.Requests.All
	}
	return n
}

// A promiseLine is a line of the table of promises.
type promiseLine struct {
	Disturbance, Features, Requests, Connections, Flaps, Away, Back, Page, Heading, Reason string
}

// Promises returns the table of promises in the order of the disturbances.
func (all file) Promises() (lines []promiseLine) {
	for _, d := range disturbances {
		for i, r := range promises[d.name] {
			l := promiseLine{Disturbance: shorten(d.name), Features: strings.Join(r.features, ", "), Reason: r.reason}
			if l.Features == "*" {
				l.Features = "all"
				if i > 0 {
					l.Features = "all others"
				}
			}
			if r.reason == "" {
				l.Requests, l.Connections = r.requests.String(), r.connections.String()
				l.Flaps, l.Away, l.Back = atMost(r.flaps), bound(r.away), bound(r.back)
				l.Page = r.page
				_, l.Heading, _ = strings.Cut(r.page, "#")
				l.Heading = shorten(l.Heading)
			}
			lines = append(lines, l)
		}
	}
	return lines
}

// bound formats a bound on time.
func bound(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

func atMost(n int) string {
	if n == anyNumber {
		return "–"
	}
	return fmt.Sprint(n)
}

// Accessors of rows and columns for the template.

func (f feature) Name() string      { return f.name }
func (f feature) Title() string     { return f.title }
func (d disturbance) Name() string  { return d.name }
func (d disturbance) Title() string { return d.title }
