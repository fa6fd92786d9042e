package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
)

// A passage is prose of a file, with the line breaks that it has there.
type passage struct {
	line int // of its beginning
	text string
}

// extract returns the prose of a file, by its name. Other kinds of files have none.
func extract(name string, text []byte) ([]passage, error) {
	switch ext := filepath.Ext(name); {
	case ext == ".go":
		return goProse(name, text)
	case ext == ".md" || ext == ".tmpl":
		return paragraphs(string(text)), nil
	case ext == ".sh" || ext == ".yaml" || ext == ".yml" || ext == ".ipt" || filepath.Base(name) == "Makefile":
		return hashComments(string(text)), nil
	case ext == ".nft":
		return append(hashComments(string(text)), nftComments(string(text))...), nil
	case ext == ".conf":
		return append(hashComments(string(text)), lineComments(string(text), "! ")...), nil
	case ext == ".c" || ext == ".h" || ext == ".tpl":
		return cComments(string(text)), nil
	case ext == ".txtar":
		return caseProse(string(text)), nil
	}
	return nil, nil
}

// goProse returns comments and strings; not imports, nor generated code.
func goProse(name string, text []byte) ([]passage, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil || ast.IsGenerated(f) {
		return nil, err
	}
	var all []passage
	line := func(n ast.Node) int { return fset.Position(n.Pos()).Line }
	for _, g := range f.Comments {
		var b strings.Builder
		for _, c := range g.List {
			b.WriteString(strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), " ") + "\n")
		}
		all = append(all, passage{line(g), b.String()})
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				all = append(all, passage{line(n), n.Value[1 : len(n.Value)-1]})
			}
		}
		return true
	})
	return all, nil
}

// paragraphs returns a document's text without its code blocks. Sentences do not run
// over an empty line.
func paragraphs(text string) []passage {
	code := false
	return group(text, func(line string) (string, bool) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
			return "", false
		}
		return line, !code && strings.TrimSpace(line) != ""
	})
}

// hashComments returns comments that begin with # and have a line for themselves.
func hashComments(text string) []passage { return lineComments(text, "# ") }

// lineComments returns comments that begin with a mark and have a line for themselves.
func lineComments(text, mark string) []passage {
	return group(text, func(line string) (string, bool) {
		return strings.CutPrefix(strings.TrimSpace(line), mark)
	})
}

// nftComment is the comment of a table, set, chain, rule or element.
var nftComment = regexp.MustCompile(`\bcomment "([^"]*)"`)

// nftComments returns the comments that the kernel keeps.
func nftComments(text string) (all []passage) {
	for i, line := range strings.Split(text, "\n") {
		for _, found := range nftComment.FindAllStringSubmatch(line, -1) {
			all = append(all, passage{i + 1, found[1]})
		}
	}
	return all
}

// cComments returns the comments of C, which may follow code in a line.
func cComments(text string) []passage {
	inside := false // of a comment that ends with */
	return group(text, func(line string) (string, bool) {
		if !inside {
			if _, comment, found := strings.Cut(line, "//"); found {
				return comment, true
			}
			_, comment, found := strings.Cut(line, "/*")
			if !found {
				return "", false
			}
			line = comment
		}
		comment, _, ends := strings.Cut(line, "*/")
		inside = !ends
		return strings.TrimLeft(comment, " *"), true
	})
}

// caseComment is a comment in a file of a test case, which may follow a value.
var caseComment = regexp.MustCompile(`(?:^|\s)# (.*)`)

// caseProse returns what a test case says before its files, the names of these, which are those of cases too,
// and the comments in them.
func caseProse(text string) []passage {
	head := true
	return group(text, func(line string) (string, bool) {
		if name, ok := strings.CutPrefix(line, "-- "); ok {
			head = false
			name = strings.TrimSuffix(name, " --")
			return strings.TrimSuffix(name, filepath.Ext(name)) + ".", true
		}
		if head {
			return strings.TrimPrefix(line, "# "), strings.TrimSpace(line) != ""
		}
		if found := caseComment.FindStringSubmatch(line); found != nil {
			return found[1], true
		}
		return "", false
	})
}

// group makes a passage of consecutive lines that pick accepts.
func group(text string, pick func(string) (string, bool)) []passage {
	var all []passage
	open := false
	for i, line := range strings.Split(text, "\n") {
		prose, ok := pick(line)
		switch {
		case ok && open:
			all[len(all)-1].text += "\n" + prose
		case ok:
			all = append(all, passage{i + 1, prose})
		}
		open = ok
	}
	return all
}
