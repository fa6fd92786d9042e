package main

import (
	"regexp"
	"slices"
	"strings"
)

// A block is a part of a comment that is wrapped by itself: a paragraph, or an item of a list. A verbatim block
// is left as it is.
type block struct {
	start    int // its first line
	lines    []string
	verbatim bool
}

var (
	// A directive or marker for a program, or C that cgo reads: no text for people.
	directive = regexp.MustCompile(`^(\S| \+|[[:space:]]*$)`)
	indented  = regexp.MustCompile(`^(\t|  )`)
	item      = regexp.MustCompile(`^[[:space:]]*([-*+•]|[0-9]+[.)])[[:space:]]+`)
	// A heading, the target of a link, a row of a table, or columns that blanks align.
	rigid = regexp.MustCompile(`^ (# |\[[^]]+\]: |\|)|\S(   +|\t)\S`)
	// A word with which a line must not begin: it would become an item, a heading, a marker or the target of a link.
	glued = regexp.MustCompile(`^([-*+•#|=]+|[0-9]+[.)]|\+.*|\[.*\]:)$`)
)

// wrap breaks the lines of a comment, given without slashes, that are wider than width. Only a paragraph with such a
// line is filled again.
func wrap(lines []string, width int) []string {
	var all []string
	for _, b := range blocks(lines) {
		tooLong := func(line string) bool { return columns(line) > width }
		if b.verbatim || !slices.ContainsFunc(b.lines, tooLong) {
			all = append(all, b.lines...)
			continue
		}
		all = append(all, fill(b.lines, width)...)
	}
	return all
}

// blocks cuts a comment as go/doc/comment does: indented lines are a list if the first of them begins an item, and code
// otherwise.
func blocks(lines []string) []block {
	var all []block
	var inList, inCode, open bool
	for i, line := range lines {
		verbatim := false
		switch {
		case directive.MatchString(line):
			verbatim = true
			if strings.TrimSpace(line) != "" {
				inList, inCode = false, false
			}
		case indented.MatchString(line):
			inList = inList || !inCode && item.MatchString(line)
			inCode = !inList
			verbatim = inCode
		default:
			inList, inCode = false, false
			verbatim = rigid.MatchString(line)
		}
		if open && !verbatim && !item.MatchString(line) && indented.MatchString(line) == inList {
			last := &all[len(all)-1]
			last.lines = append(last.lines, line)
		} else {
			all = append(all, block{i, []string{line}, verbatim})
		}
		open = !verbatim
	}
	return all
}

// fill puts the words of a block into lines of at most width. Those after the first of an item are indented as its
// text.
func fill(lines []string, width int) []string {
	first, rest := margins(lines[0])
	words := strings.Fields(strings.Join(lines, "\n")[len(first):])
	var all []string
	line := first + words[0]
	for i, word := range words[1:] {
		needed := columns(line) + 1 + columns(word)
		if after := words[i+2:]; len(after) > 0 && glued.MatchString(after[0]) {
			needed += 1 + columns(after[0])
		}
		if needed > width && !glued.MatchString(word) {
			all = append(all, line)
			line = rest + word
		} else {
			line += " " + word
		}
	}
	return append(all, line)
}

// margins returns what the first line of a block begins with, and the others.
func margins(line string) (first, rest string) {
	if !indented.MatchString(line) {
		return " ", " "
	}
	if first = item.FindString(line); first == "" {
		first = line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	}
	return first, strings.Repeat(" ", columns(first))
}
