package cluster

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/l2"
)

// A Speaker is the report of a node's speaker about the node. It does not show that the speaker is
// alive.
type Speaker struct {
	Node string
	// Interfaces are the interfaces on which it may answer for addresses, sorted by name.
	Interfaces []Interface
	// Conflicts are addresses that other hosts use, as this node detected. Node is not set.
	Conflicts []Conflict
}

// A Conflict is an address that a host without a speaker uses, as a node reports.
type Conflict struct {
	Addr           netip.Addr
	Node           string
	MAC, Interface string // of the host; the interface that received its packet
	Held           bool   // a reporting node answered for the address before
}

func (c Conflict) compareAddr(a netip.Addr) int { return c.Addr.Compare(a) }

// conflicts merges the reports of all speakers: one Conflict for each address, from the first node
// by name; sorted.
func conflicts(speakers []*Speaker) (all []Conflict) {
	for _, s := range speakers {
		for _, c := range s.Conflicts {
			c.Node = s.Node
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b Conflict) int { return a.Addr.Compare(b.Addr) })
	for i := len(all) - 1; i > 0; i-- {
		if all[i].Addr == all[i-1].Addr {
			all[i-1].Held = all[i-1].Held || all[i].Held
		}
	}
	return slices.CompactFunc(all, func(a, b Conflict) bool { return a.Addr == b.Addr })
}

// An Interface is a network interface of a node. Of other nodes only the name, the subnets and
// perhaps the MAC are known.
type Interface = l2.Interface

// parseSpeaker ignores what it cannot read: a speaker wrote it, perhaps of another version, and
// users cannot correct it.
func parseSpeaker(o *v1alpha1.SpeakerStatus) (*Speaker, Problems) {
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
	for _, c := range o.Status.Conflicts {
		if a, err := netip.ParseAddr(c.Address); err == nil {
			s.Conflicts = append(s.Conflicts, Conflict{
				Addr: a.Unmap(), MAC: c.MAC, Interface: c.Interface, Held: c.Held,
			})
		}
	}
	slices.SortFunc(s.Interfaces, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	return s, nil
}
