package cluster

import "cmp"

// problems are those of one object while it is parsed: its name and file are
// filled in when it is done.
type problems []Problem

func (p *problems) add(field, value, message string) {
	*p = append(*p, Problem{Field: field, Value: value, Message: message})
}

// of fills in whose problems they are.
func (p problems) of(object, file string) []Problem {
	for i := range p {
		p[i].Object, p[i].File = object, file
	}
	return p
}

func (p Problem) compare(o Problem) int {
	return cmp.Or(
		cmp.Compare(p.Object, o.Object),
		cmp.Compare(p.File, o.File),
		cmp.Compare(p.Field, o.Field),
		cmp.Compare(p.Value, o.Value),
		cmp.Compare(p.Message, o.Message),
	)
}
