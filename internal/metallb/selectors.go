package metallb

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// MetalLB has lists of selectors, any of which may match. A selector of Fanfare's is one: all its
// requirements must match. So a list becomes one selector where it can, and else several objects.

// maxValues is the limit of Fanfare's CRDs for the values of one requirement.
const maxValues = 64

// A conjunction is the requirements of one selector, sorted; empty: it selects everything.
type conjunction []metav1.LabelSelectorRequirement

// conjunctionOf returns a selector's requirements. An entry of matchLabels is an In with one value.
func conjunctionOf(s metav1.LabelSelector) conjunction {
	var c conjunction
	for key, value := range s.MatchLabels {
		c = append(c, metav1.LabelSelectorRequirement{
			Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value},
		})
	}
	for _, r := range s.MatchExpressions {
		r.Values = slices.Sorted(slices.Values(r.Values))
		c = append(c, r)
	}
	return c.sorted()
}

func (c conjunction) sorted() conjunction {
	c = slices.Clone(c)
	slices.SortFunc(c, func(a, b metav1.LabelSelectorRequirement) int { return strings.Compare(text(a), text(b)) })
	return slices.CompactFunc(c, equalRequirement)
}

func text(r metav1.LabelSelectorRequirement) string {
	return r.Key + " " + string(r.Operator) + " " + strings.Join(r.Values, ",")
}

func equalRequirement(a, b metav1.LabelSelectorRequirement) bool { return text(a) == text(b) }

// unite returns the fewest selectors it finds that together select what any of list selects. One
// empty conjunction: everything, as an empty list does.
func unite(list []metav1.LabelSelector) []conjunction {
	var out []conjunction
	for _, s := range list {
		out = append(out, conjunctionOf(s))
	}
	// A selector without requirements selects everything, and the others add nothing to that.
	if len(out) == 0 || slices.ContainsFunc(out, func(c conjunction) bool { return len(c) == 0 }) {
		return []conjunction{nil}
	}
	// From the start after each merge: the result may now fit one that was compared before. Lists are
	// short, since people write them.
	for i := 0; i < len(out); i++ {
		for j := i + 1; j < len(out); j++ {
			if merged, ok := merge(out[i], out[j]); ok {
				out[i], out = merged, slices.Delete(out, j, j+1)
				i, j = -1, len(out) // the merged one may merge with any other
			}
		}
	}
	return out
}

// merge returns the conjunction that selects what a or b selects, if there is one of a known form:
// they differ only in the values of one In. That is the most frequent list: the names of nodes. Both
// are sorted, so that equal requirements are at the same place, unless the operator or the key
// differs, and then there is no such form.
func merge(a, b conjunction) (conjunction, bool) {
	if len(a) != len(b) {
		return nil, false
	}
	var differs []int
	for i := range a {
		if !equalRequirement(a[i], b[i]) {
			differs = append(differs, i)
		}
	}
	if len(differs) == 0 {
		return a, true
	}
	i := differs[0]
	if len(differs) > 1 || a[i].Key != b[i].Key || a[i].Operator != metav1.LabelSelectorOpIn ||
		b[i].Operator != metav1.LabelSelectorOpIn {
		return nil, false
	}
	out := slices.Clone(a)
	values := slices.Concat(a[i].Values, b[i].Values)
	slices.Sort(values)
	if out[i].Values = slices.Compact(values); len(out[i].Values) > maxValues {
		return nil, false // two objects are longer, but the API server accepts them
	}
	return out.sorted(), true
}

// disjoint returns conjunctions of which no object matches two, and that together select what list
// selects: a node must not have two sessions with one router. Advertisements need no such thing, since
// a route that two of them announce is one route.
func disjoint(list []conjunction) []conjunction {
	var out []conjunction
	for i, c := range list {
		parts := []conjunction{c}
		for _, before := range list[:i] {
			var rest []conjunction
			for _, p := range parts {
				rest = append(rest, p.without(before)...)
			}
			parts = rest
		}
		out = append(out, parts...)
	}
	return out
}

// without returns what c selects and d does not: for each requirement of d, what fulfils those before it
// and not this one.
func (c conjunction) without(d conjunction) (out []conjunction) {
	// Nothing is in both: c stays as its user wrote it.
	if slices.Concat(c, d).contradicts() {
		return []conjunction{c}
	}
	part := c
	for _, r := range d {
		if p := append(slices.Clone(part), not(r)).sorted(); !p.contradicts() {
			out = append(out, p)
		}
		part = append(slices.Clone(part), r)
	}
	return out
}

// not is the opposite of a requirement. NotIn and DoesNotExist are fulfilled by objects without the
// label, as Kubernetes defines them.
func not(r metav1.LabelSelectorRequirement) metav1.LabelSelectorRequirement {
	opposite := map[metav1.LabelSelectorOperator]metav1.LabelSelectorOperator{
		metav1.LabelSelectorOpIn: metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpNotIn: metav1.LabelSelectorOpIn,
		metav1.LabelSelectorOpExists:       metav1.LabelSelectorOpDoesNotExist,
		metav1.LabelSelectorOpDoesNotExist: metav1.LabelSelectorOpExists,
	}
	r.Operator = opposite[r.Operator]
	return r
}

// contradicts reports whether no object can fulfil c, since no value of some label does. It may miss
// one without an In, such as Exists with DoesNotExist: the extra object then selects no node, which
// is harmless.
func (c conjunction) contradicts() bool {
	for _, r := range c {
		if r.Operator == metav1.LabelSelectorOpIn &&
			!slices.ContainsFunc(r.Values, func(v string) bool { return c.allows(r.Key, v) }) {
			return true
		}
	}
	return false
}

// allows reports whether the requirements on one label allow a value.
func (c conjunction) allows(key, value string) bool {
	about := slices.DeleteFunc(slices.Clone(c), func(r metav1.LabelSelectorRequirement) bool { return r.Key != key })
	return matchesAny([]metav1.LabelSelector{{MatchExpressions: about}}, map[string]string{key: value})
}

// selector returns a selector of Fanfare's, nil for one that selects everything.
func (c conjunction) selector() *v1alpha1.LabelSelector {
	if len(c) == 0 {
		return nil
	}
	s := &v1alpha1.LabelSelector{}
	for _, r := range c {
		// matchLabels reads better, and has room for one value of a label.
		if _, taken := s.MatchLabels[r.Key]; !taken && r.Operator == metav1.LabelSelectorOpIn && len(r.Values) == 1 {
			if s.MatchLabels == nil {
				s.MatchLabels = map[string]v1alpha1.LabelValue{}
			}
			s.MatchLabels[r.Key] = v1alpha1.LabelValue(r.Values[0])
			continue
		}
		s.MatchExpressions = append(s.MatchExpressions, v1alpha1.LabelSelectorRequirement(r))
	}
	return s
}

// matchesAny reports whether any selector of list matches; an empty list matches everything. A
// selector that is invalid matches nothing: Convert reports it.
func matchesAny(list []metav1.LabelSelector, set map[string]string) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(s metav1.LabelSelector) bool {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		return err == nil && selector.Matches(labels.Set(set))
	})
}
