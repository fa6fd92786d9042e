package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files of testdata/tree have what is banned next to what is not; want.txt is what
// must be found in them, and nothing else.
func TestFindings(t *testing.T) {
	var got strings.Builder
	found, err := run(&got, words, []string{"testdata/tree"})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/want.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
	if lines := strings.Count(got.String(), "\n"); found != lines {
		t.Errorf("counted %d, printed %d", found, lines)
	}
}

func TestRuleErrors(t *testing.T) {
	for _, tt := range []struct{ list, want string }{
		{"# only a comment\n", ""},
		{"\nword again\n", `words.txt:2: "word again" has no " -> "`},
		{"( -> x\n", "words.txt:1: error parsing regexp"},
	} {
		_, err := parseRules(tt.list)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: %v, want %q", tt.list, err, tt.want)
		}
	}
}

// A file that does not parse is an error, not a file without findings.
func TestBrokenGoFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "broken.go")
	if err := os.WriteFile(name, []byte("package"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := run(os.Stdout, words, []string{filepath.Dir(name)}); err == nil || !strings.Contains(err.Error(), "broken.go") {
		t.Errorf("got %v, want an error about broken.go", err)
	}
}
