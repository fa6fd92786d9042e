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
	// Local has, for each Service with externalTrafficPolicy Local, the sorted names of the nodes
	// that can serve it, without Services that no node can serve.
	Local [][]string
	// Anywhere says that every node can serve one of the address's Services.
	Anywhere bool
	// Pinned is the node that a Service names by annotation, if the address's pool allows it;
	// Preferred is the node that the claim names. Empty for none.
	Pinned, Preferred string
}

// Address collects the facts about an address of services, which are in order of precedence: if two
// have the annotation, the first counts. The claim may be nil.
func (e *Candidates) Address(addr netip.Addr, t Eligibility, services []cluster.Service, claim *cluster.Claim) Address {
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
		} else if nodes := e.serving(s, addr.Is4()); len(nodes) != 0 {
			a.Local = append(a.Local, nodes)
		}
	}
	return a
}

// serving returns the nodes with endpoints of a Service that get new connections: ready
// ones or, for a port without any, endpoints that are terminating and still serving (KEP-1669).
// Endpoints on dead nodes are left out unless no others exist.
func (e *Candidates) serving(s cluster.Service, is4 bool) (nodes []string) {
	if s.Endpoints == nil {
		return nil
	}
	for list := s.Endpoints.List; len(list) > 0; {
		n := 1
		for n < len(list) && list[n].PortName == list[0].PortName && list[n].Protocol == list[0].Protocol {
			n++
		}
		port := list[:n]
		list = list[n:]
		use := usable(port, s.PublishNotReady, is4, e.alive)
		if len(use) == 0 {
			use = usable(port, s.PublishNotReady, is4, func(string) bool { return true })
		}
		nodes = append(nodes, use...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func usable(port []cluster.Endpoint, notReady, is4 bool, alive func(node string) bool) []string {
	var ready, rest []string
	for i := range port {
		switch p := &port[i]; {
		case p.Addr.Addr().Is4() != is4 || p.Node == "" || !alive(p.Node):
		case p.Ready || notReady:
			ready = append(ready, p.Node)
		case p.Serving && p.Terminating:
			rest = append(rest, p.Node)
		}
	}
	if len(ready) != 0 {
		return ready
	}
	return rest
}
