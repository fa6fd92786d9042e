package election

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// An Address is one that somebody has to answer for.
type Address struct {
	Addr  netip.Addr
	Terms Terms
	// Local has, for each Service with externalTrafficPolicy Local, the names of the nodes
	// that can serve it, sorted. One that no node can serve is not in it.
	Local [][]string
	// Anywhere says that a Service with the address can be served by every node.
	Anywhere bool
	// Pinned is the node that a Service names by annotation, Preferred the one that the
	// claim does; empty for none.
	Pinned, Preferred string
}

// Address says what there is to know of an address that Services hold, which are in the
// order of precedence: where they name two nodes, the first counts. Claim may be nil.
func (e *Electorate) Address(addr netip.Addr, t Terms, services []cluster.Service, claim *cluster.Claim) Address {
	a := Address{Addr: addr, Terms: t}
	if claim != nil {
		a.Preferred = claim.Node
	}
	for _, s := range services {
		if a.Pinned == "" {
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

// serving are the nodes with endpoints of a Service that get new connections: those that
// are ready, or of a port that has none those that terminate and still serve (KEP-1669).
// What is on dead nodes is left out unless nothing is left without it.
func (e *Electorate) serving(s cluster.Service, is4 bool) (nodes []string) {
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
