package main

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// module is the prefix of this module's packages.
const module = "github.com/fanfare-lb/fanfare"

// The groups of imports, in their order.
const (
	standard = iota
	others
	ours
	groups
)

func groupOf(spec *ast.ImportSpec) int {
	path := strings.Trim(spec.Path.Value, `"`)
	first, _, _ := strings.Cut(path, "/")
	switch {
	case path == module || strings.HasPrefix(path, module+"/"):
		return ours
	case strings.Contains(first, "."):
		return others
	default:
		return standard
	}
}

// grouped writes a file's imports in their groups, one blank line between two. It leaves imports that have comments or
// several declarations.
func (s *source) grouped() {
	d := s.imports()
	if d == nil {
		return
	}
	var lines [groups][]string
	for _, spec := range d.Specs {
		g := groupOf(spec.(*ast.ImportSpec))
		lines[g] = append(lines[g], s.lines[s.line(spec.Pos())-1])
	}
	var all []string
	for _, group := range lines {
		if len(group) > 0 && len(all) > 0 {
			all = append(all, "")
		}
		all = append(all, group...)
	}
	s.lines = slices.Replace(s.lines, s.line(d.Lparen), s.line(d.Rparen)-1, all...)
}

// imports returns the declaration of several imports; nil if there is none that grouped can write.
func (s *source) imports() *ast.GenDecl {
	if len(s.file.Decls) == 0 {
		return nil
	}
	d, ok := s.file.Decls[0].(*ast.GenDecl)
	if !ok || d.Tok != token.IMPORT || !d.Lparen.IsValid() || len(s.file.Imports) != len(d.Specs) {
		return nil
	}
	commented := func(g *ast.CommentGroup) bool { return d.Lparen < g.Pos() && g.Pos() < d.Rparen }
	if slices.ContainsFunc(s.file.Comments, commented) {
		return nil
	}
	return d
}

// mixed returns the first line of imports that is not in the order of the groups, or not apart from another group;
// 0 if there is none.
func (s *source) mixed() int {
	d := s.imports()
	if d == nil {
		return 0
	}
	for i, spec := range d.Specs[1:] {
		line, before := s.line(spec.Pos()), s.line(d.Specs[i].Pos())
		g, previous := groupOf(spec.(*ast.ImportSpec)), groupOf(d.Specs[i].(*ast.ImportSpec))
		if g < previous || (g > previous) != (line > before+1) {
			return line
		}
	}
	return 0
}
