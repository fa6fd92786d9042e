package main

import (
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	limit = 120
	tab   = 4
)

// The kinds of long lines.
const (
	code     = "code"
	trailing = "a comment after code"
	comment  = "a comment"
)

// A long line.
type long struct {
	number, columns int
	kind            string
}

// columns is the width of a line. Tabs are where gofmt writes them: at its beginning, and in comments.
func columns(line string) int {
	return utf8.RuneCountInString(line) + (tab-1)*strings.Count(line, "\t")
}

// A source is a parsed file and its lines.
type source struct {
	fset  *token.FileSet
	file  *ast.File
	lines []string
}

func parse(name string, text []byte) (*source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	return &source{fset, file, strings.Split(string(text), "\n")}, err
}

// line is the number of a position's line, whatever a line directive says.
func (s *source) line(at token.Pos) int { return s.fset.PositionFor(at, false).Line }

// ownLines reports whether nothing but comments is in the lines of a group.
func (s *source) ownLines(g *ast.CommentGroup) bool {
	before, _, _ := strings.Cut(s.lines[s.line(g.Pos())-1], "//")
	return strings.HasPrefix(g.List[0].Text, "//") && strings.TrimSpace(before) == ""
}

// check returns the lines of a file that are too long and need not be.
func check(name string, text []byte) ([]long, error) {
	s, err := parse(name, text)
	if err != nil || ast.IsGenerated(s.file) {
		return nil, err
	}
	kinds := s.kinds()
	var found []long
	for i, line := range s.lines {
		if width := columns(line); width > limit && kinds[i+1] != "" {
			found = append(found, long{i + 1, width, kinds[i+1]})
		}
	}
	return found, nil
}

// kinds returns what is in each line; empty for one that may be long.
func (s *source) kinds() []string {
	kinds := slices.Repeat([]string{code}, len(s.lines)+1)
	for _, g := range s.file.Comments {
		first := s.line(g.Pos())
		if !s.ownLines(g) {
			kinds[first] = trailing
			before := s.lines[first-1][:s.fset.PositionFor(g.Pos(), false).Column-1]
			if columns(strings.TrimRight(before, " ")) > limit {
				kinds[first] = code
			}
			continue
		}
		for _, b := range blocks(s.texts(g)) {
			for n := range b.lines {
				kinds[first+b.start+n] = comment
				if b.verbatim || len(strings.Fields(b.lines[n])) == 1 {
					kinds[first+b.start+n] = ""
				}
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if first, last := s.line(literal.Pos()), s.line(literal.End()); first < last {
				for n := first; n <= last; n++ {
					kinds[n] = ""
				}
			}
		}
		return true
	})
	return kinds
}

// texts returns the lines of a group of comments without their slashes.
func (s *source) texts(g *ast.CommentGroup) []string {
	var texts []string
	for _, c := range g.List {
		texts = append(texts, strings.TrimPrefix(c.Text, "//"))
	}
	return texts
}

// output is the beginning of a comment that `go test` compares with what an example prints.
var output = regexp.MustCompile(`(?i)^[[:space:]]*(unordered )?output:`)

// fixed returns a file with its long comments wrapped.
func fixed(name string, text []byte) ([]byte, error) {
	s, err := parse(name, text)
	if err != nil || ast.IsGenerated(s.file) {
		return text, err
	}
	for _, g := range slices.Backward(s.file.Comments) {
		texts, first := s.texts(g), s.line(g.Pos())
		if !s.ownLines(g) || s.isPreamble(g) || output.MatchString(texts[0]) {
			continue
		}
		indent, _, _ := strings.Cut(s.lines[first-1], "//")
		wrapped := wrap(texts, limit-columns(indent+"//"))
		for i := range wrapped {
			wrapped[i] = indent + "//" + wrapped[i]
		}
		s.lines = slices.Replace(s.lines, first-1, first-1+len(texts), wrapped...)
	}
	return format.Source([]byte(strings.Join(s.lines, "\n")))
}

// isPreamble reports whether a comment is C, for cgo.
func (s *source) isPreamble(g *ast.CommentGroup) bool {
	return slices.ContainsFunc(s.file.Decls, func(d ast.Decl) bool {
		imports, ok := d.(*ast.GenDecl)
		return ok && imports.Tok == token.IMPORT && imports.Doc == g
	})
}
