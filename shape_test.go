package fanfare

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"testing"
)

// A type with more methods, or with methods in more files, is several that share one name and one lock.
const (
	maxMethods       = 40
	maxFiles         = 8
	maxFunctionLines = 60
)

// A shape is how many methods a type has, in how many files.
type shape struct{ methods, files int }

func TestShapeOfTypes(t *testing.T) {
	all := shapes(product(t))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if s := all[name]; s.methods > maxMethods || s.files > maxFiles {
			t.Errorf("%s has %d methods in %d files; at most %d in %d: split it by what it decides",
				name, s.methods, s.files, maxMethods, maxFiles)
		}
	}
}

// product is the Go files of the product, without tests, tools of tests and generated files.
func product(t *testing.T) []source {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(sources(t)), func(s source) bool {
		tools := []string{"e2e", "hack", "internal/testing"}
		return s.test() || ast.IsGenerated(s.file) ||
			slices.ContainsFunc(tools, func(dir string) bool { return within(s.path, dir) })
	})
}

// shapes counts the methods of each type, and the files that have some.
func shapes(all []source) map[string]shape {
	files := make(map[string]map[string]int) // methods, by type and file
	for _, s := range all {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			name := s.dir() + "." + receiver(f)
			if files[name] == nil {
				files[name] = make(map[string]int)
			}
			files[name][s.path]++
		}
	}
	found := make(map[string]shape)
	for name, in := range files {
		for _, n := range in {
			found[name] = shape{found[name].methods + n, len(in)}
		}
	}
	return found
}

// receiver is the name of a method's type.
func receiver(f *ast.FuncDecl) string {
	x := f.Recv.List[0].Type
	for {
		switch is := x.(type) {
		case *ast.StarExpr:
			x = is.X
		case *ast.IndexExpr:
			x = is.X
		case *ast.IndexListExpr:
			x = is.X
		case *ast.Ident:
			return is.Name
		default:
			return fmt.Sprintf("%T", x)
		}
	}
}

func TestLengthOfFunctions(t *testing.T) {
	for _, s := range product(t) {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1; n > maxFunctionLines {
				t.Errorf("%s: %s has %d lines; at most %d", s.line(f), f.Name.Name, n, maxFunctionLines)
			}
		}
	}
}
