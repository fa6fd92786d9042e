package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// A part goes between its comments, once.
func TestFill(t *testing.T) {
	const page = "# T\n\n<!-- generated: flags -->\nold\n<!-- end -->\nrest\n"
	parts := map[string]string{"flags": "\nnew\n", "other": "x"}
	got, err := fill(page, parts)
	if want := "# T\n\n<!-- generated: flags -->\n\nnew\n\n<!-- end -->\nrest\n"; got != want || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if len(parts) != 1 {
		t.Errorf("left are %v", parts)
	}
	if _, err := fill(page, parts); err == nil {
		t.Error("the part is on two pages")
	}
}

func syntax(t *testing.T, text string) code {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a\n"+text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return code{"a": []*ast.File{f}}
}

// Constants have their group's comment and their own; one without a comment is an error.
func TestConstants(t *testing.T) {
	got, err := syntax(t, "// Yes:\nconst (\n\tA Code = \"Aa\" // An a.\n\t// A b.\n\tB Code "+
		"= \"Bb\"\n)\nconst other = \"no\"\n").constants("a", "Code")
	if want := "\nYes:\n\n| name | meaning |\n| --- | --- |\n| `Aa` | An a. |\n| `Bb` | A b. |\n"; got != want ||
		err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"const A Code = \"Aa\"\n", "const a = 1\n"} {
		if got, err := syntax(t, bad).constants("a", "Code"); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestAnnotations(t *testing.T) {
	got, err := syntax(t, "// keys of a Service: what.\n//\n// More.\nvar keys = []string{\"fanfare.io/a\", "+
		"\"metallb.io/a\"}\nconst other = \"a/b\"\n").annotations("a")
	if want := "| `fanfare.io/a`, `metallb.io/a` | Of a Service: what. |\n"; !strings.HasSuffix(got, want) ||
		err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := syntax(t, "const key = \"fanfare.io/a\"\n").annotations("a"); err == nil {
		t.Errorf("a name without a comment became %q", got)
	}
}

// Metrics are found where they are made, and by each call of a closure that makes one; what
// cannot be read is an error, so that none is missing.
func TestMetrics(t *testing.T) {
	got, err := syntax(t, `
func f() {
	const ns = "fanfare"
	counter := func(name, help string, labels ...string) any {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: "x", Name: name, Help: help}, append([]string{"first"}, labels...))
	}
	desc := func(name string) any { return prometheus.NewDesc(ns + "_" + name, "D.", nil, nil) }
	g(counter("b_total", "B."), counter("a_total", "A.", "second"), desc("c"), desc("d_total"))
	prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "e", Help: "E."}, nil)
	prometheus.NewRegistry()
}
`).metrics()
	if err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(got, "--- |\n")
	want := "| `e` | gauge |  | E. |\n| `fanfare_c` | gauge |  | D. |\n| `fanfare_d_total` | counter |  | D. |\n" +
		"| `fanfare_x_a_total` | counter | first, second | A. |\n| `fanfare_x_b_total` | counter | first | B. |\n"
	if rows != want {
		t.Errorf("got\n%s\nwant\n%s", rows, want)
	}
	if got, err := syntax(t, "func f(o prometheus.CounterOpts, n string) { "+
		"prometheus.NewCounter(prometheus.CounterOpts{Name: n}) }").metrics(); err == nil {
		t.Errorf("an unknown name became %q", got)
	}
}

func TestDescribe(t *testing.T) {
	got := describe("Does it.\n\nUsage:\n  fanfare it [flags]\n\nFlags:\n  -h, --help         help for it\n      " +
		"--all          everything\n      --dir string   a folder (default \"/run\")\n")
	want := "Does it.\n\n```\nfanfare it [flags]\n```\n\n| flag | type | default | meaning |\n| --- " +
		"| --- | --- | --- |\n" +
		"| `--all` | bool |  | everything |\n| `--dir` | string | `/run` | a folder |\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestSentence(t *testing.T) {
	for _, tt := range []struct{ description, field, want string }{
		{"PeerASN is\nthe number.", "peerASN", "`peerASN` is the number."},
		{"Conditions: Ready.", "conditions", "`conditions`: Ready."},
		{"Where it is.", "peerASN", "Where it is."},
	} {
		if got := sentence(tt.description, tt.field); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
