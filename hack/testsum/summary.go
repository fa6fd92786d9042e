package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// An event is a line of `go test -json`; see `go doc test2json` and, for the
// build events, `go help buildjson`.
type event struct {
	Action      string
	Package     string
	Test        string // empty: the package itself
	Elapsed     float64
	Output      string
	ImportPath  string // of build events, instead of Package
	FailedBuild string // the ImportPath whose build kept the package from running
}

// A test is one test or subtest, or, without a Name, what a package did outside
// its tests.
type test struct {
	Package, Name string
	verdict       string // "pass", "fail", "skip"; empty while it runs
	output        strings.Builder
}

// A summary is what came of all tests.
type summary struct {
	tests    []*test // in the order in which they began
	index    map[[2]string]*test
	builds   map[string]*strings.Builder // compiler output by import path
	packages int                         // with tests
}

// read reads events until the end of r. For every package that is done it writes a line to
// progress, and the output of its failed tests. It writes whatever is not JSON as it is.
func read(r io.Reader, progress io.Writer) (*summary, error) {
	s := &summary{index: map[[2]string]*test{}, builds: map[string]*strings.Builder{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20) // one line of output is one event, however long
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			fmt.Fprintln(progress, lines.Text())
			continue
		}
		s.add(e)
		if line := s.packageLine(e); line != "" {
			fmt.Fprintln(progress, line)
			s.reportFailed(progress, e.Package)
		}
	}
	return s, lines.Err()
}

func (s *summary) add(e event) {
	if e.ImportPath != "" {
		s.addBuild(e)
		return
	}
	t := s.test(e.Package, e.Test)
	switch e.Action {
	case "output":
		t.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		t.verdict = e.Action
		if b := s.builds[e.FailedBuild]; b != nil {
			t.output.WriteString(b.String())
		}
		if e.Test == "" && e.Action != "skip" {
			s.packages++
		}
	}
}

func (s *summary) addBuild(e event) {
	b := s.builds[e.ImportPath]
	if b == nil {
		b = &strings.Builder{}
		s.builds[e.ImportPath] = b
	}
	b.WriteString(e.Output)
}

func (s *summary) test(pkg, name string) *test {
	key := [2]string{pkg, name}
	if s.index[key] == nil {
		s.index[key] = &test{Package: pkg, Name: name}
		s.tests = append(s.tests, s.index[key])
	}
	return s.index[key]
}

// packageLine is what there is to say when a package is done.
func (s *summary) packageLine(e event) string {
	if e.Test != "" || e.Package == "" {
		return ""
	}
	switch e.Action {
	case "pass", "fail":
		word := map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action]
		return fmt.Sprintf("%-4s  %7.1f s  %s  %s", word, e.Elapsed, e.Package, s.count(e.Package))
	case "skip":
		return fmt.Sprintf("%-4s  %9s  %s  no tests", "-", "", e.Package)
	default:
		return ""
	}
}

// A count says how many tests, subtests included, came to which end.
type count struct{ passed, failed, skipped int }

func (c count) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

// count counts the tests of a package, or of all when pkg is empty.
func (s *summary) count(pkg string) count {
	var c count
	for _, t := range s.tests {
		if pkg != "" && t.Package != pkg {
			continue
		}
		switch {
		case s.failed(t):
			c.failed++
		case t.Name == "":
		case t.verdict == "pass":
			c.passed++
		case t.verdict == "skip":
			c.skipped++
		}
	}
	return c
}

// failed reports whether t counts as a failure. A test that began and never ended
// does: its process died. A package does when none of its tests explains why it
// failed: it did not build, or it exited, or a race was found outside a test.
func (s *summary) failed(t *test) bool {
	if t.Name != "" {
		return t.verdict != "pass" && t.verdict != "skip"
	}
	explained := func(o *test) bool { return o.Name != "" && o.Package == t.Package && s.failed(o) }
	return t.verdict != "pass" && t.verdict != "skip" && !slices.ContainsFunc(s.tests, explained)
}

// report writes which tests were skipped and why, the full output of failed
// tests, which may be far above, and last the counts.
func (s *summary) report(w io.Writer) {
	for _, t := range s.tests {
		if t.Name != "" && t.verdict == "skip" {
			fmt.Fprintf(w, "skipped: %s %s: %s\n", t.Package, t.Name, t.reason())
		}
	}
	s.reportFailed(w, "")
	fmt.Fprintf(w, "\n%d packages with tests\n%s\n", s.packages, s.count(""))
}

// reportFailed writes the output of the failed tests of a package, or of all when pkg is empty.
func (s *summary) reportFailed(w io.Writer, pkg string) {
	for _, t := range s.tests {
		if s.failed(t) && (pkg == "" || t.Package == pkg) {
			fmt.Fprintf(w, "\n=== FAILED: %s\n%s", strings.TrimSpace(t.Package+" "+t.Name), t.output.String())
		}
	}
}

// reason is what a skipped test said, without what the testing package adds.
func (t *test) reason() string {
	var said []string
	for line := range strings.Lines(t.output.String()) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	return strings.Join(said, " ")
}

// verdict is why the run as a whole counts as failed, nil when it does not.
func (s *summary) verdict(ci bool) error {
	c := s.count("")
	switch {
	case c.failed > 0:
		return fmt.Errorf("%d failed", c.failed)
	case c.passed+c.skipped == 0:
		return errors.New("no test was run")
	case ci && c.skipped > 0:
		return fmt.Errorf("%d skipped, and CI=true allows none", c.skipped)
	default:
		return nil
	}
}
