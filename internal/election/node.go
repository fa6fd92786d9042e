package election

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A Node is a node as elections see it.
type Node struct {
	Name         string
	Labels       labels.Set
	Availability Availability
	// Returning says that its speaker has returned only recently: others come before it.
	Returning bool
	// Interfaces are the relevant interfaces, sorted by name.
	Interfaces []cluster.Interface
	// Unknown says that the interfaces are unknown, as without communication between
	// speakers. The node then counts as having the right one. The alternative is worse:
	// every node would know only its own interfaces, and all would answer.
	Unknown bool
}

// An Availability says whether a node may answer for addresses at all.
type Availability uint8

const (
	// Fit: it may.
	Fit Availability = iota
	// Leaving: only if no other node can.
	Leaving
	// Dead: its speaker does not respond, or it has none.
	Dead
	// NotReady: the kubelet reports it.
	NotReady
	// Excluded: it has the label node.kubernetes.io/exclude-from-external-load-balancers.
	Excluded
	// NetworkUnavailable: it has this condition.
	NetworkUnavailable
)

// AvailabilityOf returns whether a node may answer; alive says whether its speaker is alive.
func AvailabilityOf(n *cluster.Node, alive bool) Availability {
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
