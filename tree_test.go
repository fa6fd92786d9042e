package fanfare

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/fanfare-lb/fanfare"

// A source is a Go file of this module.
type source struct {
	path    string // below the root, with slashes: "bgp/state.go"
	imports []string
	file    *ast.File
	fset    *token.FileSet
}

func (s source) dir() string { return path.Dir(s.path) }
func (s source) test() bool  { return strings.HasSuffix(s.path, "_test.go") }
func (s source) main() bool  { return s.file.Name.Name == "main" }
func (s source) line(n ast.Node) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// sources parses every Go file below the root, whatever its build constraints.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// parsed parses once for all tests: with the race detector that takes seconds.
var parsed = sync.OnceValues(func() (all []source, err error) {
	names, err := find(".go")
	fset := token.NewFileSet()
	for _, name := range names {
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		s := source{path: name, file: f, fset: fset}
		for _, i := range f.Imports {
			// The parser has checked that it is a string.
			p, _ := strconv.Unquote(i.Path.Value)
			s.imports = append(s.imports, p)
		}
		all = append(all, s)
	}
	return all, err
})

// files lists the files below the root that end in suffix.
func files(t *testing.T, suffix string) []string {
	t.Helper()
	names, err := find(suffix)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// find is files without a test. Like the go command it ignores testdata and names that begin with
// a dot.
func find(suffix string) (names []string, err error) {
	err = filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (d.Name() == "testdata" || d.Name() == "bin" || d.Name()[0] == '.') {
			return fs.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(p, suffix) {
			names = append(names, filepath.ToSlash(p))
		}
		return nil
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no file ends in %s", suffix)
	}
	return names, err
}
