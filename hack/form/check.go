package main

import (
	"fmt"
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

// What is in a line.
const (
	code     = "code"
	trailing = "a comment after code"
	comment  = "a comment"
)

// A finding is what a line has that is not in form.
type finding struct {
	line int
	what string
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

// raw is a string that cannot be broken.
var raw = regexp.MustCompile("`[^`]*`")

// check returns the lines of a file that are too long and need not be, and imports that are not in their groups.
func check(name string, text []byte) ([]finding, error) {
	s, err := parse(name, text)
	if err != nil || ast.IsGenerated(s.file) {
		return nil, err
	}
	kinds := s.kinds()
	var found []finding
	if line := s.mixed(); line != 0 {
		found = append(found, finding{line, "not in the groups of imports: standard library, others, this module"})
	}
	for i, line := range s.lines {
		if width := columns(raw.ReplaceAllString(line, "")); width > limit && kinds[i+1] != "" {
			found = append(found, finding{i + 1, fmt.Sprintf("%d columns of %s", width, kinds[i+1])})
		}
	}
	return found, nil
}

// kinds returns what is in each line; empty for one that may be long.
func (s *source) kinds() []string {
	kinds := slices.Repeat([]string{code}, len(s.lines)+1)
	for _, g := range s.file.Comments {
		first := s.line(g.Pos())
		if strings.HasPrefix(g.List[0].Text, "/*") {
			continue
		}
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
	kinds := s.kinds()
	for _, g := range slices.Backward(s.file.Comments) {
		texts, first := s.texts(g), s.line(g.Pos())
		if kinds[first] == trailing && columns(s.lines[first-1]) > limit && s.file.Package < g.Pos() {
			s.raise(g)
			continue
		}
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
	s.grouped() // above all other lines that have changed
	wrapped, err := format.Source([]byte(strings.Join(s.lines, "\n")))
	if err != nil {
		return nil, err
	}
	return broken(name, wrapped)
}

// raise puts a comment after code on lines of its own, above it.
func (s *source) raise(g *ast.CommentGroup) {
	at := s.fset.PositionFor(g.Pos(), false)
	line := s.lines[at.Line-1]
	indent := line[:len(line)-len(strings.TrimLeft(line, "\t"))]
	var raised []string
	for _, text := range wrap(s.texts(g)[:1], limit-columns(indent+"//")) {
		raised = append(raised, indent+"//"+text)
	}
	s.lines = slices.Replace(s.lines, at.Line-1, at.Line,
		append(raised, strings.TrimRight(line[:at.Column-1], " \t"))...)
}

// isPreamble reports whether a comment is C, for cgo.
func (s *source) isPreamble(g *ast.CommentGroup) bool {
	return slices.ContainsFunc(s.file.Decls, func(d ast.Decl) bool {
		imports, ok := d.(*ast.GenDecl)
		return ok && imports.Tok == token.IMPORT && imports.Doc == g
	})
}
