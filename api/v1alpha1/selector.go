package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelSelector selects objects by their labels. All of matchLabels and
// matchExpressions must match. An empty selector selects everything.
//
// The format is that of Kubernetes' own LabelSelector. That type has no bounds, so CEL
// rules about its fields exceed the API server's cost limit, and only the speaker would
// detect a mistake.
type LabelSelector struct {
	// MatchLabels are labels and the value that each must have.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && !format.qualifiedName().validate(k).hasValue())",message="each key must be a label's name of at most 63 letters, digits, '-', '_' and '.', such as app or example.com/app"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.labelValue().validate(self[k]).hasValue())",message="each value must be a label's value: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// MatchExpressions are requirements on labels.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelValue is the value of a label. The type has a bound, without which a CEL rule about
// a map's values exceeds the API server's cost limit.
//
// +kubebuilder:validation:MaxLength=63
type LabelValue string

// LabelSelectorRequirement is a requirement on one label.
//
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['In', 'NotIn']) || has(self.values) && size(self.values) > 0",message="must have at least one value, because the operator is In or NotIn; for any value use Exists",fieldPath=".values"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0",message="must be empty, because the operator is Exists or DoesNotExist; to compare values use In or NotIn",fieldPath=".values"
type LabelSelectorRequirement struct {
	// Key is the name of the label.
	//
	// +required
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="must be a label's name of at most 63 letters, digits, '-', '_' and '.', such as app or example.com/app"
	Key string `json:"key"`

	// Operator is In or NotIn, which compare the label with values, or Exists or
	// DoesNotExist.
	//
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// Values to compare the label with: at least one for In and NotIn, none for Exists
	// and DoesNotExist.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(v, !format.labelValue().validate(v).hasValue())",message="each must be a label's value: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	Values []string `json:"values,omitempty"`
}

// Meta returns the selector as Kubernetes' own type, nil for nil.
func (s *LabelSelector) Meta() *metav1.LabelSelector {
	if s == nil {
		return nil
	}
	var m metav1.LabelSelector
	for key, value := range s.MatchLabels {
		metav1.AddLabelToSelector(&m, key, string(value))
	}
	for _, e := range s.MatchExpressions {
		m.MatchExpressions = append(m.MatchExpressions, metav1.LabelSelectorRequirement(e))
	}
	return &m
}
