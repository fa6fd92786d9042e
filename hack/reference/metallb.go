package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"strconv"
	"strings"
)

// metallbFields returns a table for each kind of MetalLB's objects, from the variable Fields of
// internal/metallb: kind, version, path, counterpart, how.
func (c code) metallbFields() (string, error) {
	var b strings.Builder
	var kind string
	var rows [][]string
	flush := func() {
		if len(rows) > 0 {
			fmt.Fprintf(&b, "### %s\n\n%s\n", kind, table(append([][]string{{"field", "in Fanfare", "how"}}, rows...)...))
		}
		rows = nil
	}
	err := c.declared("internal/metallb", func(_ *ast.GenDecl, v *ast.ValueSpec) error {
		if v.Names[0].Name != "Fields" {
			return nil
		}
		for _, e := range v.Values[0].(*ast.CompositeLit).Elts {
			f, err := texts(e.(*ast.CompositeLit))
			if err != nil {
				return err
			}
			if now := f[0] + " " + f[1]; now != kind {
				flush()
				kind = now
			}
			rows = append(rows, []string{"`" + f[2] + "`", counterpart(f[3]), f[4]})
		}
		return nil
	})
	flush()
	if err == nil && b.Len() == 0 {
		err = fmt.Errorf("internal/metallb has no Fields")
	}
	return b.String(), err
}

// counterpart sets the field in code, and leaves the kind before it as text.
func counterpart(text string) string {
	kind, field, ok := strings.Cut(text, " ")
	if !ok {
		return "none"
	}
	return kind + " `" + field + "`"
}

// texts returns the string literals of a composite literal.
func texts(l *ast.CompositeLit) (all []string, err error) {
	for _, e := range l.Elts {
		lit, ok := e.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return nil, fmt.Errorf("a field of internal/metallb's Fields is no text")
		}
		s, err := strconv.Unquote(lit.Value)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
