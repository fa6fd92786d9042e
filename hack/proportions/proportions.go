package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// A proportions value is the measurements of a package.
type proportions struct {
	lines, comments int
	broken          int   // lines at 120 columns
	functions       []int // lengths in lines, braces and signature included
	longest         string
}

// add counts a file, unless it is generated.
func (p *proportions) add(fset *token.FileSet, f *ast.File, text string) {
	if ast.IsGenerated(f) {
		return
	}
	length := func(n ast.Node) int { return fset.Position(n.End()).Line - fset.Position(n.Pos()).Line + 1 }
	p.lines += strings.Count(text, "\n")
	p.broken += linesAt(text, columns)
	for _, group := range f.Comments {
		p.comments += length(group)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := length(fn); len(p.functions) == 0 || n > slices.Max(p.functions) {
			p.longest = fn.Name.Name
		}
		p.functions = append(p.functions, length(fn))
	}
}

func (p *proportions) merge(o *proportions) {
	if len(o.functions) > 0 && (len(p.functions) == 0 || slices.Max(o.functions) > slices.Max(p.functions)) {
		p.longest = o.longest
	}
	p.lines += o.lines
	p.broken += o.broken
	p.comments += o.comments
	p.functions = append(p.functions, o.functions...)
}

// quantile is the length that a share q of the functions does not exceed.
func (p *proportions) quantile(q float64) int {
	if len(p.functions) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(p.functions))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func (p *proportions) String() string {
	return fmt.Sprintf("%d\t%d %%\t%d\t%d\t%d\t%d %s\t", p.lines, 100*p.comments/max(1, p.lines),
		len(p.functions), p.quantile(0.5), p.quantile(0.95), p.quantile(1), p.longest)
}
