package fanfare

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// Code waits for a condition, not for a time. time.Sleep is allowed only in tests: in a loop
// that polls until a deadline, and in a bubble of testing/synctest, where time is virtual.
func TestNoSleeps(t *testing.T) {
	for _, s := range sources(t) {
		for _, n := range sleeps(s.file, s.test() || within(s.path, "e2e") ||
			within(s.path, "internal/testing/nstest")) {
			t.Errorf("%s: time.Sleep; wait for the condition, or use a timer that ctx can end", s.line(n))
		}
	}
}

// sleeps finds the calls of time.Sleep that the rule forbids in f.
func sleeps(f *ast.File, test bool) []ast.Node {
	const bubble = `"` + module + `/internal/testing/bubble"`
	if test && (f.Name.Name == "bubble" ||
		slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == bubble })) {
		return nil
	}
	var found []ast.Node
	ast.PreorderStack(f, nil, func(n ast.Node, stack []ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Sleep" {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); !ok || x.Name != "time" {
			return true
		}
		inLoop := slices.ContainsFunc(stack, func(n ast.Node) bool { _, ok := n.(*ast.ForStmt); return ok })
		if !test || !inLoop {
			found = append(found, n)
		}
		return true
	})
	return found
}

func TestSleeps(t *testing.T) {
	const head = "package p\nimport \"time\"\n"
	for _, tt := range []struct {
		name, src string
		test      bool
		want      int
	}{
		{"product", head + "func f() { time.Sleep(1) }", false, 1},
		{"product, in a loop", head + "func f() { for { time.Sleep(1) } }", false, 1},
		{"product, as a value", head + "var wait = time.Sleep", false, 1},
		{"test", head + "func f() { time.Sleep(1) }", true, 1},
		{"test, until a deadline", head + "func f() { for !done() { time.Sleep(1) } }", true, 0},
		{"test, in a bubble", head + "import \"" + module +
			"/internal/testing/bubble\"\nfunc f() { bubble.Test(nil, func() { time.Sleep(1) }) }", true, 0},
		{"another Sleep", head + "func f() { sheep.Sleep(time.Second) }", false, 0},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p.go", tt.src, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(sleeps(f, tt.test)); got != tt.want {
			t.Errorf("%s: %d found, want %d", tt.name, got, tt.want)
		}
	}
}
