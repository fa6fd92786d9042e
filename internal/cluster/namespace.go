package cluster

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A Namespace has the labels by which pools select it.
type Namespace struct {
	Name   string
	Labels labels.Set
	// Terminating: it is being deleted, and no Service can be created in it.
	Terminating bool
}

// parseNamespace adds the label by which every Namespace of an API server can be selected, because
// a Namespace in a file lacks it.
func parseNamespace(o *corev1.Namespace) (*Namespace, Problems) {
	n := &Namespace{Name: o.Name, Labels: labels.Set(maps.Clone(o.Labels)), Terminating: o.DeletionTimestamp != nil}
	if n.Labels == nil {
		n.Labels = labels.Set{}
	}
	n.Labels[corev1.LabelMetadataName] = o.Name
	return n, nil
}

func findNamespace(sorted []*Namespace, name string) *Namespace {
	return find(sorted, name, func(n *Namespace, name string) int { return cmp.Compare(n.Name, name) })
}

// NamespaceGone reports whether a namespace is deleted or being deleted. If no Namespace was read,
// none counts as gone.
func (s *Snapshot) NamespaceGone(name string) bool {
	n := findNamespace(s.Namespaces, name)
	return len(s.Namespaces) != 0 && (n == nil || n.Terminating)
}

func has(sorted []string, s string) bool {
	_, found := slices.BinarySearch(sorted, s)
	return found
}
