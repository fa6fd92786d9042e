package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// testdata/module has a package for every way in which go test can end. The real
// go test runs it, so that this test notices when a new Go says it differently.
func goTest(t *testing.T, packages ...string) (*summary, string) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"test", "-json"}, packages...)...)
	cmd.Dir = "testdata/module"
	// Exit code 1 is expected here: what matters is what was written.
	events, err := cmd.Output()
	if len(events) == 0 {
		t.Fatalf("go test wrote nothing: %v", err)
	}
	var text strings.Builder
	s, err := read(bytes.NewReader(events), &text)
	if err != nil {
		t.Fatal(err)
	}
	s.report(&text)
	return s, text.String()
}

func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		pkg     string
		count   count
		want    []string // parts of the report
		not     string   // no part of it, unless empty
		err, ci string   // the verdict elsewhere and on CI
	}{
		{"./good", count{3, 0, 1}, []string{
			"example.org/m/good  3 passed, 0 failed, 1 skipped",
			"skipped: example.org/m/good TestSkips: good_test.go:11: looked for it good_test.go:12: " +
				"there is no router\n",
		}, "FAILED", "", "1 skipped, and CI=true allows none"},
		{"./bad", count{2, 2, 0}, []string{
			"FAILED: example.org/m/bad TestFails/one\n",
			"bad_test.go:8: got 1, want 2",
		}, "TestPasses", "2 failed", "2 failed"},
		{"./broken", count{0, 1, 0}, []string{
			"FAILED: example.org/m/broken\n",
			`broken_test.go:3:15: cannot use "1"`,
		}, "", "1 failed", "1 failed"},
		{"./vetted", count{0, 1, 0}, []string{
			`vetted_test.go:5:40: (*testing.common).Errorf format %d has arg "one" of wrong type`,
		}, "", "1 failed", "1 failed"},
		{"./dead", count{0, 2, 0}, []string{
			"FAILED: example.org/m/dead TestPanics/deep\n",
			"panic: out of luck",
			"dead_test.go:6",
		}, "TestNeverBegins", "2 failed", "2 failed"},
		{"./exits", count{1, 1, 0}, []string{
			"FAILED: example.org/m/exits\n",
			"the tests left something behind",
		}, "", "1 failed", "1 failed"},
		{"./empty", count{}, []string{
			"example.org/m/empty  no tests",
		}, "", "no test was run", "no test was run"},
		{"./nowhere", count{0, 1, 0}, []string{
			"nowhere",
		}, "", "1 failed", "1 failed"},
	} {
		t.Run(tt.pkg, func(t *testing.T) {
			s, text := goTest(t, tt.pkg)
			if got := s.count(""); got != tt.count {
				t.Errorf("counted %v, want %v", got, tt.count)
			}
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("the report lacks %q:\n%s", want, text)
				}
			}
			if tt.not != "" && strings.Contains(text, tt.not) {
				t.Errorf("the report has %q:\n%s", tt.not, text)
			}
			if got := message(s.verdict(false)); got != tt.err {
				t.Errorf("verdict %q, want %q", got, tt.err)
			}
			if got := message(s.verdict(true)); got != tt.ci {
				t.Errorf("verdict on CI %q, want %q", got, tt.ci)
			}
			if last := text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:]; last != tt.count.String()+"\n" {
				t.Errorf("the last line is %q, want %q", last, tt.count)
			}
		})
	}
}

// A test that never says how it ended, as when its process is killed, has not
// passed.
func TestUnfinished(t *testing.T) {
	const events = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"so far so good\n"}
not JSON
`
	var text strings.Builder
	s, err := read(strings.NewReader(events), &text)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.count(""), (count{failed: 1}); got != want {
		t.Errorf("counted %v, want %v", got, want)
	}
	if got := text.String(); got != "not JSON\n" {
		t.Errorf("passed on %q, want what was not JSON", got)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// The output of a failed test is shown when its package is done, and again at the end.
func TestFailuresAreShownAtOnce(t *testing.T) {
	_, text := goTest(t, "./bad")
	first, rest, _ := strings.Cut(text, "example.org/m/bad  2 passed")
	if strings.Contains(first, "FAILED") || strings.Count(rest, "=== FAILED: example.org/m/bad TestFails/one\n") != 2 {
		t.Errorf("the failure is not shown after its package and at the end:\n%s", text)
	}
}
