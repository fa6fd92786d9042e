package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A Problem is a mistake in an object that a user wrote, in words that say what to change. It
// affects nothing that does not use the object.
type Problem struct {
	Object  Key
	File    string // the file that contains the object, empty with an API server
	Field   string // such as "spec.addresses[1]", empty for the whole object
	Value   string // the field's value, empty if it has none
	Message string // what is wrong and what would be right
	// Code is why the object is not Ready, empty if the object itself is wrong. Each of Spec.Problems has one.
	Code Code
	// Warning: the object works as written, but perhaps not as its author intended.
	Warning bool
}

func (p Problem) String() string {
	object := p.Object.String()
	if p.File != "" {
		object += " (" + p.File + ")"
	}
	if p.Field == "" && p.Value == "" {
		return object + ": " + p.Message
	}
	return object + ": " + p.Clause()
}

// Clause returns the text without the object, for the object's own condition.
func (p Problem) Clause() string {
	text := p.Field
	if p.Value != "" {
		text += fmt.Sprintf(" %q", p.Value)
	}
	return text + ": " + p.Message
}

// Problems are the problems of one object while it is parsed. Of adds its name and file.
type Problems []Problem

// Add adds a mistake in a field.
func (p *Problems) Add(field, value, message string) { p.add("", field, value, message) }

func (p *Problems) add(code Code, field, value, message string) {
	*p = append(*p, Problem{
		Code: code, Field: field, Value: shorten(value, maxValue), Message: shorten(message, maxMessage),
	})
}

// ofService returns what a Spec keeps of the Problems of a Service. The object and its file are left out, so that a
// Spec that is parsed again is equal.
func (p Problems) ofService() Problems {
	for i := range p {
		p[i].Code = cmp.Or(p[i].Code, FieldIgnored)
	}
	// Only maxProblems are kept, and the allocation must find a refused request however many ports are invalid.
	slices.SortStableFunc(p, func(a, b Problem) int {
		return trueFirst(a.Code != FieldIgnored, b.Code != FieldIgnored)
	})
	return slices.Clone(p[:min(len(p), maxProblems)])
}

// An annotation may have 256 KiB, and Problems are shown on every node.
const maxValue, maxMessage = 200, 1000

func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// bound reports a list with more entries than the CRD allows, which keeps the cost of
// its rules within the API server's budget.
func (p *Problems) bound(field string, have, most int) {
	if have > most {
		p.Add(field, "", fmt.Sprintf("has %d entries, and may have %d; remove some, or divide them between two objects",
			have, most))
	}
}

// parseWord returns v if it is one of the known words. Any other word is a Problem, and parseWord
// returns otherwise.
func parseWord[S ~string](field string, v, otherwise S, p *Problems, known ...S) S {
	if slices.Contains(known, v) {
		return v
	}
	last := len(known) - 1
	words := make([]string, last)
	for i := range words {
		words[i] = string(known[i])
	}
	p.Add(field, string(v), fmt.Sprintf("must be %s or %s; taken for %s", strings.Join(words, ", "), known[last],
		otherwise))
	return otherwise
}

// once reports duplicate entries of a list. The API server refuses them where the CRD declares a
// set.
func (p *Problems) once(field string, list []string) {
	for i, s := range list {
		if slices.Contains(list[:i], s) {
			p.Add(fmt.Sprintf("%s[%d]", field, i), s, "is listed twice; remove one of the two")
		}
	}
}

// maxProblems is how many problems of one object are kept: a list in an annotation may contain tens
// of thousands of mistakes.
const maxProblems = 20

// Of adds the object's name and file.
func (p Problems) Of(object Key, file string) []Problem {
	if more := len(p) - maxProblems; more > 0 {
		p = append(p[:maxProblems:maxProblems],
			Problem{Message: fmt.Sprintf("has %d more problems, which follow when these are corrected", more)})
	}
	for i := range p {
		p[i].Object, p[i].File = object, file
	}
	return p
}

// reports are the Problems of a Builder by their cause.
type reports struct {
	causes map[string][]Problem // never an empty list
	former map[string][]Problem // of the causes whose Problems changed since the last snapshot
	came   []Problem            // see NewProblems
}

// Report replaces the Problems of a cause. An empty list ends them.
func (r *reports) Report(cause string, p []Problem) {
	old := r.causes[cause]
	if slices.Equal(old, p) {
		return
	}
	if _, ok := r.former[cause]; !ok {
		r.former[cause] = old
	}
	if len(p) == 0 {
		delete(r.causes, cause)
	} else {
		r.causes[cause] = p
	}
}

// NewProblems returns the Problems that the last Snapshot has and the one before it had not.
func (r *reports) NewProblems() []Problem { return r.came }

// sorted returns all Problems. It sorts only those of causes that have changed since the last ones: the
// objects of one tenant may have tens of thousands.
func (r *reports) sorted(last []Problem) []Problem {
	var gone, came []Problem
	for cause, old := range r.former {
		gone, came = append(gone, old...), append(came, r.causes[cause]...)
	}
	slices.SortFunc(gone, Problem.Compare)
	slices.SortFunc(came, Problem.Compare)
	came = slices.Compact(came)
	r.came = sortedset.MinusFunc(came, gone, Problem.Compare)
	return sortedset.UnionFunc(sortedset.MinusFunc(last, gone, Problem.Compare), came, Problem.Compare)
}

// Compare orders by object, and then by the other fields.
func (p Problem) Compare(o Problem) int {
	return cmp.Or(
		p.Object.Compare(o.Object),
		cmp.Compare(p.File, o.File),
		cmp.Compare(p.Field, o.Field),
		cmp.Compare(p.Value, o.Value),
		cmp.Compare(p.Message, o.Message),
	)
}
