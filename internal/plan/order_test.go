package plan

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Calls run downward through the files, in the order of doc.go: a function calls only functions of
// its own file and of later ones.
func TestCallsRunDownward(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	order := regexp.MustCompile(`\w+\.go`).FindAllString(string(doc), -1)
	at := func(set *token.FileSet, p token.Pos) (name string, index int) {
		name = path.Base(set.Position(p).Filename)
		return name, slices.Index(order, name)
	}
	set, uses := parsePackage(t)
	calls := 0
	for id, of := range uses {
		f, ok := of.(*types.Func)
		if !ok || !f.Pos().IsValid() {
			continue
		}
		name, from := at(set, id.Pos())
		callee, to := at(set, f.Pos())
		if calls++; from < 0 || to < from {
			t.Errorf("%s (%d in doc.go) uses %s of %s (%d)", name, from, f.Name(), callee, to)
		}
	}
	if calls < 200 {
		t.Errorf("only %d calls were found", calls)
	}
}

// parsePackage returns what the identifiers of this package mean. Other packages count as empty:
// only calls within this one matter.
func parsePackage(t *testing.T) (*token.FileSet, map[*ast.Ident]types.Object) {
	t.Helper()
	set := token.NewFileSet()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(set, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	c := types.Config{Importer: emptyImporter{}, Error: func(error) {}}
	_, _ = c.Check("plan", set, files, &info) // other packages being empty, there are errors
	return set, info.Uses
}

type emptyImporter struct{}

func (emptyImporter) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}
