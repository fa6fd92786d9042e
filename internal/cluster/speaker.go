package cluster

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/l2"
)

// A Speaker is what the speaker of a node reports about the node. It is no sign of life.
type Speaker struct {
	Node string
	// Interfaces are the interfaces on which it may answer for addresses, sorted by name.
	Interfaces []Interface
}

// An Interface is a network interface of a node. Of other nodes only the name, the subnets and
// perhaps the MAC are known.
type Interface = l2.Interface

// parseSpeaker ignores what it cannot read: it was written by a speaker, perhaps of
// another version, and is nothing that a user could correct.
func parseSpeaker(o *v1alpha1.SpeakerStatus) *Speaker {
	s := &Speaker{Node: interned(o.Name)}
	for _, i := range o.Status.Interfaces {
		iface := Interface{Name: interned(i.Name)}
		for _, text := range i.Prefixes {
			if p, err := netip.ParsePrefix(text); err == nil {
				iface.Prefixes = append(iface.Prefixes, p.Masked())
			}
		}
		slices.SortFunc(iface.Prefixes, netip.Prefix.Compare)
		s.Interfaces = append(s.Interfaces, iface)
	}
	slices.SortFunc(s.Interfaces, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	return s
}
