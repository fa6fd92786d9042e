package cluster

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// The texts of the CRDs' rules for the parts of a selector.
const (
	mustBeLabelName = "must be a label's name of at most 63 letters, digits, '-', '_' and '.', such as " +
		"app or example.com/app"
	mustBeLabelValue = "must be a label's value: at most 63 letters, digits, '-', '_' and '.', with a letter " +
		"or digit at both ends"
	mustHaveValues   = "must have at least one value, because the operator is In or NotIn; for any value use Exists"
	mustHaveNoValues = "must be empty, because the operator is Exists or DoesNotExist; to compare " +
		"values use In or NotIn"
)

// A Selector selects objects by their labels. The zero value selects all objects.
type Selector struct{ requirements labels.Selector } // nil: all

// Selecting returns the Selector of requirements.
func Selecting(requirements labels.Selector) Selector {
	if requirements.Empty() {
		return Selector{}
	}
	return Selector{requirements}
}

// Nothing returns the Selector that selects no object.
func Nothing() Selector { return Selector{labels.Nothing()} }

// Matches reports whether an object with these labels is selected.
func (s Selector) Matches(l labels.Set) bool { return s.Empty() || s.requirements.Matches(l) }

// Empty reports whether all objects are selected.
func (s Selector) Empty() bool { return s.requirements == nil }

// nothing is the text of [Nothing]. No other selector has it.
const nothing = "!"

// String writes the selector in the syntax of kubectl's --selector.
func (s Selector) String() string {
	if s.Empty() {
		return ""
	}
	if _, selectable := s.requirements.Requirements(); !selectable {
		return nothing
	}
	return s.requirements.String()
}

// MarshalText returns the same text as String.
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the text of MarshalText.
func (s *Selector) UnmarshalText(text []byte) error {
	if string(text) == nothing {
		*s = Nothing()
		return nil
	}
	parsed, err := labels.Parse(string(text))
	if err != nil {
		return err
	}
	*s = Selecting(parsed)
	return nil
}

// parseSelector returns a selector of everything for nil, and of nothing for a mistake.
func parseSelector(field string, s *v1alpha1.LabelSelector, p *Problems) Selector {
	if s == nil {
		return Selector{}
	}
	before := len(*p)
	checkLabels(field+".matchLabels", s.MatchLabels, p)
	p.bound(field+".matchExpressions", len(s.MatchExpressions), 8)
	for i, e := range s.MatchExpressions {
		checkRequirement(fmt.Sprintf("%s.matchExpressions[%d]", field, i), e, p)
	}
	if len(*p) != before {
		return Nothing()
	}
	sel, err := metav1.LabelSelectorAsSelector(s.Meta())
	if err != nil {
		p.Add(field, "", err.Error())
		return Nothing()
	}
	return Selecting(sel)
}

func checkLabels(field string, set map[string]v1alpha1.LabelValue, p *Problems) {
	p.bound(field, len(set), 16)
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if len(validation.IsQualifiedName(key)) != 0 {
			p.Add(field, key, "each key "+mustBeLabelName)
		}
		if value := string(set[key]); len(validation.IsValidLabelValue(value)) != 0 {
			p.Add(field, value, "each value "+mustBeLabelValue)
		}
	}
}

func checkRequirement(field string, e v1alpha1.LabelSelectorRequirement, p *Problems) {
	if len(validation.IsQualifiedName(e.Key)) != 0 {
		p.Add(field+".key", e.Key, mustBeLabelName)
	}
	p.bound(field+".values", len(e.Values), 64)
	for i, v := range e.Values {
		if len(validation.IsValidLabelValue(v)) != 0 {
			p.Add(fmt.Sprintf("%s.values[%d]", field, i), v, "each "+mustBeLabelValue)
		}
	}
	switch e.Operator {
	case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
		if len(e.Values) == 0 {
			p.Add(field+".values", "", mustHaveValues)
		}
	case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		if len(e.Values) != 0 {
			p.Add(field+".values", e.Values[0], mustHaveNoValues)
		}
	default:
		p.Add(field+".operator", string(e.Operator), "must be In, NotIn, Exists or DoesNotExist")
	}
}
