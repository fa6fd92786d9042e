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
	_, err := run(os.Stdout, words, []string{filepath.Dir(name)})
	if err == nil || !strings.Contains(err.Error(), "broken.go") {
		t.Errorf("got %v, want an error about broken.go", err)
	}
}

// The prose of each kind of file is checked, and only that.
func TestKindsOfFiles(t *testing.T) {
	const fault, other = "who" + "ever comes", "who" + "ever"
	for name, text := range map[string]string{
		"a.nft":               "# " + fault + "\nset s { comment \"" + fault + "\"; }\nchain " + other + " { }\n",
		"a.conf":              "! " + fault + "\nhostname " + other + "\n# " + fault + "\n",
		"a.c":                 "int x; // " + fault + "\n/* is\n * " + fault + "\n */\nint " + other + ";\n",
		"testdata/a.txtar":    fault + "\n-- a.yaml --\n" + other + "\n# " + fault + "\n",
		"testdata/b.txtar":    "Cases.\n-- " + fault + ".yaml --\nname: " + other + "   # " + fault + "\n",
		"a.h":                 "// " + fault + "\nint " + other + "; // " + fault + "\n",
		"a.tpl":               "{{/* " + fault + " */}}\n{{/*\n" + fault + "\n*/}}\n{{ " + other + " }}\n",
		"testdata/unread.go":  "// " + fault + "\n",
		"testdata/unread.nft": "# " + fault + "\n",
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		want := 2
		if strings.Contains(name, "unread") {
			want = 0
		}
		if found, err := run(&out, words, []string{dir}); err != nil || found != want {
			t.Errorf("%s: %d findings, want %d: %v\n%s", name, found, want, err, out.String())
		}
	}
}
