package election

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// An Address is an address that needs an owner.
type Address struct {
	Addr        netip.Addr
	Eligibility Eligibility
	// Local has, for the ports with the same endpoints of each Service with externalTrafficPolicy
	// Local, the sorted names of the nodes that can serve them, without ports that no node can serve.
	Local [][]string
	// Anywhere says that every node can serve one of the address's Services.
	Anywhere bool
	// Pinned is the node that a Service names by annotation, if the address's pool allows it;
	// Preferred is the node that the claim names. Empty for none.
	Pinned, Preferred string
}

// Address collects the facts about an address of services, which are in order of precedence: if two
// have the annotation, the first counts. The claim may be nil.
func (c *Candidates) Address(addr netip.Addr, t Eligibility, services []cluster.Service, claim *cluster.Claim) Address {
	a := Address{Addr: addr, Eligibility: t}
	if claim != nil {
		a.Preferred = claim.Node
	}
	for _, s := range services {
		if a.Pinned == "" && t.AllowNode {
			a.Pinned = s.L2Node
		}
		if s.ExternalTrafficPolicy != "Local" {
			a.Anywhere = true
			continue
		}
		for _, group := range s.PortGroups(addr.Is4()) {
			if nodes := c.serving(group.Endpoints, s.PublishNotReady); len(nodes) != 0 {
				a.Local = append(a.Local, nodes)
			}
		}
	}
	return a
}

// serving returns the nodes with endpoints of a port that get new connections. Endpoints on dead
// nodes are left out unless no others exist.
func (c *Candidates) serving(all []cluster.Endpoint, notReady bool) (nodes []string) {
	placed := cluster.FilterEndpoints(all, func(p *cluster.Endpoint) bool { return p.Node != "" })
	use, _ := cluster.UsableOn(c.alive, placed, notReady)
	for i := range use {
		nodes = append(nodes, use[i].Node)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
