package election

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A Node is what an election needs to know of one.
type Node struct {
	Name     string
	Labels   labels.Set
	Standing Standing
	// Returning says that its speaker is back so lately that others come before it.
	Returning bool
	// Interfaces are those that are relevant, sorted by name.
	Interfaces []cluster.Interface
	// Unknown says that nobody knows the interfaces, as where speakers do not talk to one
	// another. The node counts as having the right one then: better that nobody answers
	// than that every node does which knows only its own.
	Unknown bool
}

// A Standing is whether a node may answer for addresses at all.
type Standing uint8

const (
	// Fit nodes may.
	Fit Standing = iota
	// Leaving nodes do only where no other can.
	Leaving
	// Dead nodes are not heard of, or run no speaker.
	Dead
	// NotReady nodes are, by what their kubelet says.
	NotReady
	// Excluded nodes have the label node.kubernetes.io/exclude-from-external-load-balancers.
	Excluded
	// NetworkUnavailable nodes have the condition of that name.
	NetworkUnavailable
)

// StandingOf is the standing of a node. Alive says that its speaker is.
func StandingOf(n *cluster.Node, alive bool) Standing {
	switch {
	case !alive:
		return Dead
	case n.NotReady:
		return NotReady
	case n.Excluded:
		return Excluded
	case n.NetworkUnavailable:
		return NetworkUnavailable
	case n.Leaving != "":
		return Leaving
	}
	return Fit
}
