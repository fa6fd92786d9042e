package main

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/scanner"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// A cut is where a line of code may be broken.
type cut struct {
	column int
	rank   int    // of several cuts the one with the lowest rank is taken, and of these the last one
	before string // what is written before the new line, such as `" +`
	after  string // what is written after it
	*braces
}

// braces are a pair of which each gets a line of its own: of a function, a type or a literal with fields.
type braces struct {
	closing int  // the offset of its closing brace
	comma   bool // the last line needs a comma
}

// Ranks grow by nesting for every open bracket. Within that, operators rank by their precedence, and results after
// parameters.
const (
	nesting    = 10
	results    = nesting / 2
	comparison = nesting + results
	afterParen = 2 * nesting
	afterEqual = 3 * nesting
	inString   = 4 * nesting
)

// broken returns a file with its long lines of code broken. A line that has no place for that stays.
func broken(name string, text []byte) ([]byte, error) {
	for {
		s, err := parse(name, text)
		if err != nil || ast.IsGenerated(s.file) {
			return text, err
		}
		edits := s.breaks()
		if len(edits) == 0 {
			return text, nil
		}
		text, err = format.Source(edited(text, edits))
		if err != nil {
			return nil, fmt.Errorf("%s: with broken lines: %w", name, err)
		}
	}
}

// An edit replaces the bytes at an offset by text.
type edit struct {
	offset int
	bytes  int
	text   string
}

func edited(text []byte, edits []edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.offset - b.offset })
	var out []byte
	done := 0
	for _, e := range edits {
		out = append(append(out, text[done:e.offset]...), e.text...)
		done = e.offset + e.bytes
	}
	return append(out, text[done:]...)
}

// breaks returns the edits that break each long line once.
func (s *source) breaks() []edit {
	kinds, n := s.kinds(), s.nodes()
	var edits []edit
	start := 0
	for i, line := range s.lines {
		if columns(line) > limit && kinds[i+1] == code {
			all := n.cuts(line, start)
			if c := best(line, all); c != nil {
				edits = append(edits, c.edits(start)...)
				if continues(all, c, line, s.lines[i+1]) {
					edits = append(edits, edit{start + len(line), 1, " "})
				}
			}
		}
		start += len(line) + 1
	}
	return edits
}

func (c cut) edits(start int) []edit {
	first := edit{start + c.column, 0, c.before + "\n" + c.after}
	switch {
	case c.braces == nil:
		return []edit{first}
	case c.comma:
		return []edit{first, {c.closing, 0, ",\n"}}
	default:
		return []edit{first, {c.closing, 0, "\n"}}
	}
}

// notJoined is a line that does not continue a list: it closes or opens brackets, or has a comment.
var notJoined = regexp.MustCompile(`^\t*[)}\]]|//|[({]$`)

// continues reports whether a list or an expression that a line is broken in fills several lines, and the next of them
// has room for the rest.
func continues(all []cut, c *cut, line, next string) bool {
	last := all[len(all)-1]
	alike := 0
	for _, other := range all {
		if other.rank == c.rank && other.braces == nil {
			alike++
		}
	}
	rest := columns(line[c.column:]) + columns(next) // its indentation is that of the rest
	return c.braces == nil && c.before == "" && alike > 2 && last.rank == c.rank && last.column == len(line) &&
		(rest <= limit || columns(next) > limit) && !notJoined.MatchString(next)
}

// best returns the cut to take; nil if none leaves enough in the first line and not too much.
func best(line string, all []cut) *cut {
	indent := columns(line[:len(line)-len(strings.TrimLeft(line, "\t"))])
	var found *cut
	for i := range all {
		c := &all[i]
		width := columns(line[:c.column] + c.before)
		if width > limit || c.braces == nil && width < indent+(limit-indent)/3 {
			continue
		}
		if found == nil || c.rank < found.rank || c.rank == found.rank && c.braces == nil && found.braces == nil {
			found = c
		}
	}
	return found
}

// nodes is what the tokens of a line do not say: by the offset of its opening bracket.
type nodes struct {
	braces  map[int]braces
	results map[int]bool // the results of a function, in brackets
}

func (s *source) nodes() nodes {
	found := nodes{make(map[int]braces), make(map[int]bool)}
	offset := func(p token.Pos) int { return s.fset.PositionFor(p, false).Offset }
	add := func(opening, closing token.Pos, comma bool) {
		if s.line(opening) == s.line(closing) && closing > opening+1 {
			found.braces[offset(opening)] = braces{offset(closing), comma}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch is := n.(type) {
		case *ast.FuncType:
			if is.Results != nil && is.Results.Opening.IsValid() {
				found.results[offset(is.Results.Opening)] = true
			}
		case *ast.FuncLit:
			add(is.Body.Lbrace, is.Body.Rbrace, false)
		case *ast.FuncDecl:
			if is.Body != nil {
				add(is.Body.Lbrace, is.Body.Rbrace, false)
			}
		case *ast.StructType:
			add(is.Fields.Opening, is.Fields.Closing, false)
		case *ast.InterfaceType:
			add(is.Methods.Opening, is.Methods.Closing, false)
		case *ast.CompositeLit:
			if is.Type != nil && len(is.Elts) > 1 {
				_, fields := is.Elts[0].(*ast.KeyValueExpr)
				if fields {
					add(is.Lbrace, is.Rbrace, true)
				}
			}
		}
		return true
	})
	return found
}

// lastOnLine is what may be after a literal that is broken at its braces.
var lastOnLine = regexp.MustCompile(`^[)}\]]*[,;]?( \{)?$`)

// cuts returns the places where a line may be broken, from left to right.
func (n nodes) cuts(line string, start int) []cut {
	var scan scanner.Scanner
	scan.Init(token.NewFileSet().AddFile("", -1, len(line)), []byte(line), func(token.Position, string) {}, 0)
	var all []cut
	rank, previous := 0, token.ILLEGAL
	var open []int // the offsets of open brackets
	for {
		pos, tok, lit := scan.Scan()
		at := int(pos) - 1
		c := cut{column: at + len(tok.String()), rank: rank}
		switch tok {
		case token.EOF:
			return all
		case token.LPAREN, token.LBRACE, token.LBRACK:
			rank += nesting
			open = append(open, start+at)
			b, ok := n.braces[start+at]
			if ok && (!b.comma || lastOnLine.MatchString(line[b.closing+1-start:])) {
				c.braces = &b
				all = append(all, c)
			} else if tok != token.LBRACK {
				c.rank += afterParen
				all = append(all, c)
			}
		case token.RPAREN, token.RBRACK, token.RBRACE:
			rank -= nesting
			open = open[:max(0, len(open)-1)]
		case token.COMMA:
			if len(open) > 0 && n.results[open[len(open)-1]] {
				c.rank += results
			}
			all = append(all, c)
		case token.PERIOD:
			if previous == token.RPAREN {
				c.rank += afterParen
				all = append(all, c)
			}
		case token.LOR, token.LAND, token.ADD, token.OR, token.QUO:
			c.rank += tok.Precedence()
			all = append(all, c)
		case token.EQL, token.NEQ, token.GTR, token.LEQ, token.GEQ:
			c.rank += comparison
			all = append(all, c)
		case token.ASSIGN, token.DEFINE:
			// What is assigned to stays on one line.
			all = slices.DeleteFunc(all, func(c cut) bool { return c.rank == rank })
			c.rank += afterEqual
			all = append(all, c)
		case token.STRING:
			all = append(all, betweenWords(lit, cut{column: at, rank: rank + inString})...)
		default: // no place for it
		}
		previous = tok
	}
}

// betweenWords returns the places where a string may become two.
func betweenWords(lit string, at cut) []cut {
	const least = 20 // bytes, of each part
	var all []cut
	for i := least; i < len(lit)-least && lit[0] == '"'; i++ {
		if lit[i-1] == ' ' {
			all = append(all, cut{column: at.column + i, rank: at.rank, before: `" +`, after: `"`})
		}
	}
	return all
}
