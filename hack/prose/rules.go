package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A rule is a line of words.txt.
type rule struct {
	pattern *regexp.Regexp
	instead string
}

// parseRules reads lines of the form "pattern -> instead"; # begins a comment.
func parseRules(list string) ([]rule, error) {
	var rules []rule
	for i, line := range strings.Split(list, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		pattern, instead, ok := strings.Cut(line, " -> ")
		if !ok {
			return nil, fmt.Errorf("words.txt:%d: %q has no \" -> \": write pattern -> replacement", i+1, line)
		}
		re, err := regexp.Compile(bounded(pattern))
		if err != nil {
			return nil, fmt.Errorf("words.txt:%d: %w", i+1, err)
		}
		rules = append(rules, rule{re, instead})
	}
	return rules, nil
}

// bounded lets a pattern match whole words only, in any case and over line breaks.
// A pattern that begins or ends with an anchor or punctuation has borders of its own.
func bounded(pattern string) string {
	begin, end := `\b`, `\b`
	if strings.HasPrefix(pattern, "(?:^") {
		begin = ""
	}
	if last := pattern[len(pattern)-1]; last == ']' || last == '$' {
		end = ""
	}
	return `(?i)` + begin + `(?:` + strings.ReplaceAll(pattern, " ", `\s+`) + `)` + end
}

// A finding is a match of a rule.
type finding struct {
	line          int
	text, instead string
}

// check returns what the rules find, by line.
func check(rules []rule, passages []passage) []finding {
	var found []finding
	for _, p := range passages {
		for _, r := range rules {
			for _, at := range r.pattern.FindAllStringIndex(p.text, -1) {
				text := strings.TrimLeft(p.text[at[0]:at[1]], " .:;\n\t")
				start := at[1] - len(text)
				line := p.line + strings.Count(p.text[:start], "\n")
				found = append(found, finding{line, short(text), r.instead})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b finding) int { return cmp.Compare(a.line, b.line) })
	return found
}

// short is the first words of a match, on one line.
func short(text string) string {
	fields := strings.Fields(text)
	return strings.Join(fields[:min(len(fields), 6)], " ")
}
