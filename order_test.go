package fanfare

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// orderly is how the doc.go of a package begins that gives the order of its files.
const orderly = "The files are in this order"

// Calls run downward through the files of a package whose doc.go gives their order: a function calls only functions
// of its own file and of later ones.
func TestCallsRunDownward(t *testing.T) {
	packages := make(map[string][]source)
	for _, s := range product(t) {
		packages[s.dir()] = append(packages[s.dir()], s)
	}
	ordered := 0
	for dir, files := range packages {
		order := orderOf(files)
		if order == nil {
			continue
		}
		ordered++
		for _, s := range files {
			if n := countOf(order, path.Base(s.path)); n != 1 {
				t.Errorf("%s: doc.go gives %s %d places, want 1", dir, path.Base(s.path), n)
			}
		}
		for _, up := range callsUp(dir, files, order) {
			t.Error(up)
		}
	}
	if ordered < 2 {
		t.Errorf("%d packages give the order of their files", ordered)
	}
}

// orderOf returns the files of a package from top to bottom, as its doc.go says; nil if it does not say it.
func orderOf(files []source) []string {
	for _, s := range files {
		if _, order, found := strings.Cut(s.file.Doc.Text(), orderly); found && path.Base(s.path) == "doc.go" {
			return append(regexp.MustCompile(`\w+\.go`).FindAllString(order, -1), "doc.go")
		}
	}
	return nil
}

func countOf(list []string, s string) (n int) {
	for _, one := range list {
		if one == s {
			n++
		}
	}
	return n
}

// callsUp returns the uses of functions and methods of earlier files, sorted. Other packages count as empty: only
// calls within this one matter.
func callsUp(dir string, files []source, order []string) (all []string) {
	var trees []*ast.File
	for _, s := range files {
		trees = append(trees, s.file)
	}
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	c := types.Config{Importer: emptyImporter{}, Error: func(error) {}}
	set := files[0].fset
	_, _ = c.Check(dir, set, trees, &info) // since other packages are empty, there are errors
	for id, of := range info.Uses {
		f, ok := of.(*types.Func)
		if !ok || !f.Pos().IsValid() {
			continue
		}
		caller, callee := path.Base(set.Position(id.Pos()).Filename), path.Base(set.Position(f.Pos()).Filename)
		if slices.Index(order, callee) < slices.Index(order, caller) {
			all = append(all, dir+": "+caller+" calls "+f.Name()+" of "+callee+", which doc.go has before it")
		}
	}
	slices.Sort(all)
	return all
}

type emptyImporter struct{}

func (emptyImporter) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

func TestCallsUp(t *testing.T) {
	set := token.NewFileSet()
	var files []source
	for name, text := range map[string]string{
		"a.go": "package p\n\ntype T struct{}\n\nfunc a() { b() }\n\nfunc (T) m() {}",
		"b.go": "package p\n\nfunc b() { T{}.m(); c(a) }\n\nfunc c(func()) {}",
	} {
		f, err := parser.ParseFile(set, name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, source{path: name, file: f, fset: set})
	}
	want := []string{
		"p: b.go calls a of a.go, which doc.go has before it",
		"p: b.go calls m of a.go, which doc.go has before it",
	}
	if got := callsUp("p", files, []string{"a.go", "b.go"}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
