package cluster

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A Namespace is what pools select it by.
type Namespace struct {
	Name   string
	Labels labels.Set
}

// parseNamespace adds the label by which every Namespace of an API server can be
// selected, which one in a file lacks.
func parseNamespace(o *corev1.Namespace) *Namespace {
	n := &Namespace{Name: o.Name, Labels: labels.Set(maps.Clone(o.Labels))}
	if n.Labels == nil {
		n.Labels = labels.Set{}
	}
	n.Labels[corev1.LabelMetadataName] = o.Name
	return n
}

func findNamespace(sorted []*Namespace, name string) *Namespace {
	return find(sorted, name, func(n *Namespace, name string) int { return cmp.Compare(n.Name, name) })
}

func has(sorted []string, s string) bool {
	_, found := slices.BinarySearch(sorted, s)
	return found
}
