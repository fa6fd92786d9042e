package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A code is the product's syntax: its files by directory, with slashes, below the root. It is not
// type-checked, which needs all libraries: names are enough to find what has a type of its own.
type code map[string][]*ast.File

// parse reads the product, without tests and tools: what those declare, no user meets. e2e and hack
// are left out for the same reason.
func parse(root string) (code, error) {
	c, fset := code{}, token.NewFileSet()
	for _, top := range []string{"bgp", "cmd", "controller", "internal", "l2", "proxy", "speaker"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(path))
			c[filepath.ToSlash(dir)] = append(c[filepath.ToSlash(dir)], f)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// declared yields the declarations of constants and variables in a directory and below it. The
// order is that of directories and files, so that a page differs only if the code does.
func (c code) declared(top string, yield func(*ast.GenDecl, *ast.ValueSpec) error) error {
	var files []*ast.File
	for _, dir := range slices.Sorted(maps.Keys(c)) {
		if dir == top || strings.HasPrefix(dir, top+"/") {
			files = append(files, c[dir]...)
		}
	}
	for _, f := range files {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					if err := yield(g, v); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// constants are those of a type, in the groups and with the comments that they have in
// the code. A group's comment ends with a colon.
func (c code) constants(dir, kind string) (string, error) {
	var b strings.Builder
	var group *ast.GenDecl // whose table is being written
	err := c.declared(dir, func(g *ast.GenDecl, v *ast.ValueSpec) error {
		if t, ok := v.Type.(*ast.Ident); !ok || t.Name != kind || g.Tok != token.CONST {
			return nil
		}
		// A constant without a remark would be a row without a meaning: the author has to add one.
		values, meaning := literals(v), cmp.Or(remark(v.Comment), remark(v.Doc))
		if len(values) != 1 || meaning == "" {
			return fmt.Errorf("%s: want one string and a comment behind or above it", v.Names[0])
		}
		if g != group {
			group = g
			if about := remark(g.Doc); about != "" {
				b.WriteString("\n" + about + "\n")
			}
			b.WriteString("\n| name | meaning |\n| --- | --- |\n")
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", values[0], meaning)
		return nil
	})
	if err == nil && group == nil {
		err = fmt.Errorf("%s has no constants of type %s", dir, kind)
	}
	return b.String(), err
}

// qualified are the names of annotations, labels and taints: those with a domain. Other strings with
// a slash, such as paths and resources of the API server, have none.
var qualified = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z][A-Za-z0-9-]*$`)

// annotations are the names that users and other programs put on objects.
func (c code) annotations(dir string) (string, error) {
	rows := [][]string{{"name", "meaning"}}
	err := c.declared(dir, func(g *ast.GenDecl, v *ast.ValueSpec) error {
		names := literals(v)
		if !slices.ContainsFunc(names, qualified.MatchString) {
			return nil
		}
		// The comment of a declaration in parentheses is about all of them, and about no name.
		meaning := remark(v.Doc)
		if meaning == "" && !g.Lparen.IsValid() {
			meaning = remark(g.Doc)
		}
		if meaning == "" {
			return fmt.Errorf("%s: %s has no comment", dir, v.Names[0])
		}
		// A Go comment begins with the name that is declared.
		meaning = strings.TrimPrefix(strings.TrimPrefix(meaning, v.Names[0].Name+" "), "is the ")
		rows = append(rows, []string{"`" + strings.Join(names, "`, `") + "`",
			strings.ToUpper(meaning[:1]) + meaning[1:]})
		return nil
	})
	slices.SortFunc(rows[1:], func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return table(rows...), err
}

// literals are the strings in the values of a declaration, those in lists and maps included: a
// variable may have several names in order of precedence.
func literals(v *ast.ValueSpec) (all []string) {
	for _, x := range v.Values {
		ast.Inspect(x, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				s, _ := strconv.Unquote(l.Value) // The parser has checked that it is a string.
				all = append(all, s)
			}
			return true
		})
	}
	return all
}

// remark is the first paragraph of a comment, on one line: what follows is for contributors, and a
// cell has no room for it.
func remark(c *ast.CommentGroup) string {
	text, _, _ := strings.Cut(c.Text(), "\n\n")
	return strings.Join(strings.Fields(text), " ")
}
