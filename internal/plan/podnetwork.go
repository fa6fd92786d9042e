package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A PodNetwork is what the speaker has detected about the network of this node's pods. The zero
// value says that their addresses are the Node's podCIDRs, as far as is known.
type PodNetwork struct {
	// InterfacePrefix is the prefix of pods' interface names with a known network plug-in, such as
	// cali; empty: none was detected.
	InterfacePrefix string
	// Mismatch contradicts the Node's podCIDRs.
	Mismatch PodCIDRMismatch
	// Interface leads to all pods of this node, including that of Mismatch; empty: unknown.
	Interface string
}

// A PodCIDRMismatch is an endpoint which shows that the Node's podCIDRs are not exactly the
// addresses of this node's pods: a pod of this node outside of them, or a pod of another node
// inside. The zero value is none.
type PodCIDRMismatch struct {
	Addr netip.Addr
	Node string
}

// A PodCIDRMismatchFinder looks for a PodCIDRMismatch in successive snapshots, each time only in
// new endpoints. It keeps a mismatch until the Node's podCIDRs change: a node does not change its
// IPAM.
type PodCIDRMismatchFinder struct {
	cidrs    []netip.Prefix
	services cluster.Services // that were searched
	found    PodNetwork
}

// Confirming a PodCIDRMismatch takes a route lookup, and the writers of EndpointSlices decide how
// many there are. So only the first ones of a Service are checked, and a search ends after some.
const (
	maxMismatchesOfService = 4
	maxMismatchesOfSearch  = 64
)

// Find returns the first PodCIDRMismatch that confirm confirms, and the interface that confirm
// returns. The endpoints of a Service are checked once, in this search or, if there are many
// mismatches, in a later one.
func (f *PodCIDRMismatchFinder) Find(self *cluster.Node, services cluster.Services, confirm func(PodCIDRMismatch) (iface string, ok bool)) PodNetwork {
	if self == nil {
		return f.found
	}
	if !slices.Equal(f.cidrs, self.PodCIDRs) {
		*f = PodCIDRMismatchFinder{cidrs: self.PodCIDRs}
	}
	if f.found.Mismatch != (PodCIDRMismatch{}) {
		return f.found
	}
	var was cluster.Service
	var searched []cluster.Name
	asked := 0
	for s, isNew := range f.services.Differences(services) {
		if !isNew {
			was = s
			continue
		}
		searched = append(searched, s.Name)
		if s.Endpoints == nil || was.Spec != nil && was.Name == s.Name && was.Endpoints == s.Endpoints {
			continue
		}
		mismatches := mismatchesOf(self, s.Endpoints)
		for _, mismatch := range mismatches {
			if iface, ok := confirm(mismatch); ok {
				f.services, f.found = cluster.Services{}, PodNetwork{Mismatch: mismatch, Interface: iface}
				return f.found
			}
		}
		if asked += len(mismatches); asked >= maxMismatchesOfSearch {
			f.services = f.services.Patch(searched, services.Get)
			return PodNetwork{}
		}
	}
	f.services = services
	return PodNetwork{}
}

// mismatchesOf returns the first mismatches of a Service.
func mismatchesOf(self *cluster.Node, endpoints *cluster.Endpoints) (mismatches []PodCIDRMismatch) {
	for i := range endpoints.List {
		if s := mismatchAt(self, &endpoints.List[i]); s != (PodCIDRMismatch{}) {
			if mismatches = append(mismatches, s); len(mismatches) == maxMismatchesOfService {
				break
			}
		}
	}
	return mismatches
}

// mismatchAt returns the PodCIDRMismatch of an endpoint; zero if there is none.
func mismatchAt(self *cluster.Node, e *cluster.Endpoint) PodCIDRMismatch {
	a := e.Addr.Addr()
	inside := slices.ContainsFunc(self.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
	switch own := e.Node == self.Name; {
	case e.Node == "", own == inside:
		return PodCIDRMismatch{}
	case own && slices.Contains(self.InternalIPs, a): // a pod in the network of the host
		return PodCIDRMismatch{}
	}
	return PodCIDRMismatch{a, e.Node}
}

// localClients returns which clients are pods of this node.
func localClients(c Config, self *cluster.Node) proxy.LocalClients {
	clients := c.DetectLocal
	if self == nil {
		return clients
	}
	cidrs := c.NodeCIDR
	if c.DetectPods {
		switch n := c.Pods; {
		case n.InterfacePrefix != "":
			if clients.InterfacePrefix == "" {
				clients.InterfacePrefix = n.InterfacePrefix
			}
		case n.Mismatch != PodCIDRMismatch{}:
			if clients.Bridge == "" {
				clients.Bridge = n.Interface
			}
		default:
			cidrs = true
		}
	}
	if cidrs {
		clients.CIDRs = sortedset.MergePrefixes(append(slices.Clone(clients.CIDRs), self.PodCIDRs...))
	}
	return clients
}

// podNetworkProblems reports that pods of this node are not recognised, or by the wrong
// addresses.
func (v *View) podNetworkProblems() []cluster.Problem {
	s := v.pods.Mismatch
	if s == (PodCIDRMismatch{}) || v.pods.InterfacePrefix != "" || v.Self == nil {
		return nil
	}
	evidence := fmt.Sprintf("%s is a pod of this node and not one of these addresses", s.Addr)
	if s.Node != v.Node {
		evidence = fmt.Sprintf("%s is a pod of node %s and one of these addresses", s.Addr, s.Node)
	}
	what := "so pods of this node count as clients from outside"
	switch {
	case v.nodeCIDR: // as the user configured
		what = "and by --detect-local=node-cidr these addresses count as pods of this node"
	case v.clients.Bridge != "" || v.clients.InterfacePrefix != "" || len(v.clients.CIDRs) > 0:
		return nil
	}
	return []cluster.Problem{{Object: "Node " + v.Node, Field: "spec.podCIDRs", Value: prefixesText(v.Self.PodCIDRs), Warning: true,
		Message: fmt.Sprintf("%s, %s; start the speaker with --detect-local=interface-prefix=NAME, bridge=NAME or cidr=PREFIX", evidence, what)}}
}

func prefixesText(list []netip.Prefix) string {
	var names []string
	for _, p := range list {
		names = append(names, p.String())
	}
	return cluster.Enumerate(names)
}
