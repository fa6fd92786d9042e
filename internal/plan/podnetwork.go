package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
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
}

// A PodCIDRMismatch is an endpoint which shows that the Node's podCIDRs are not exactly the
// addresses of this node's pods: a pod of this node outside of them, or a pod of another node
// inside. The zero value is none. It is only reported: a user who may write EndpointSlices must not
// decide which clients count as pods for all others.
type PodCIDRMismatch struct {
	Addr netip.Addr
	Node string
}

// A PodCIDRMismatchFinder looks for a PodCIDRMismatch in successive snapshots, each time only in
// new endpoints. It keeps a mismatch as long as the Service has the same endpoints.
type PodCIDRMismatchFinder struct {
	cidrs    []netip.Prefix
	services cluster.Services // that were searched
	found    PodCIDRMismatch
	at       cluster.Service // where it was found
}

// Confirming a PodCIDRMismatch takes a route lookup, and the writers of EndpointSlices decide how
// many there are. So only the first ones of a Service are checked, and a search ends after some.
const (
	maxMismatchesOfService = 4
	maxMismatchesOfSearch  = 64
)

// Find returns the first PodCIDRMismatch that confirm confirms. The endpoints of a Service are
// checked once, in this search or, if there are many mismatches, in a later one.
func (p *PodCIDRMismatchFinder) Find(self *cluster.Node, services cluster.Services,
	confirm func(PodCIDRMismatch) bool) PodCIDRMismatch {
	if self == nil {
		*p = PodCIDRMismatchFinder{}
		return p.found
	}
	if !slices.Equal(p.cidrs, self.PodCIDRs) {
		*p = PodCIDRMismatchFinder{cidrs: self.PodCIDRs}
	}
	if p.found != (PodCIDRMismatch{}) {
		if s, exists := services.Get(p.at.Name); exists && s.Endpoints == p.at.Endpoints {
			return p.found
		}
		p.found, p.at = PodCIDRMismatch{}, cluster.Service{}
	}
	p.search(self, services, confirm)
	return p.found
}

// search checks the Services that are new or changed since the last search.
func (p *PodCIDRMismatchFinder) search(self *cluster.Node, services cluster.Services,
	confirm func(PodCIDRMismatch) bool) {
	var was cluster.Service
	var searched []cluster.Name
	asked := 0
	for s, isNew := range p.services.Differences(services) {
		if !isNew {
			was = s
			continue
		}
		searched = append(searched, s.Name)
		if was.Spec != nil && was.Name == s.Name && was.Endpoints == s.Endpoints {
			continue
		}
		mismatches := mismatchesOf(self, s.Endpoints)
		if i := slices.IndexFunc(mismatches, confirm); i >= 0 {
			p.found, p.at = mismatches[i], s
		}
		if asked += len(mismatches); p.found != (PodCIDRMismatch{}) || asked >= maxMismatchesOfSearch {
			p.services = p.services.Patch(searched, services.Get)
			return
		}
	}
	p.services = services
}

// mismatchesOf returns the first mismatches of a Service.
func mismatchesOf(self *cluster.Node, endpoints *cluster.Endpoints) (mismatches []PodCIDRMismatch) {
	for e := range endpoints.All() {
		own, inside := e.Node == self.Name, sortedset.ContainsAddr(self.PodCIDRs, e.Addr)
		// in the network of the host
		if e.Node == "" || own == inside || own && slices.Contains(self.InternalIPs, e.Addr) {
			continue
		}
		if mismatches = append(mismatches, PodCIDRMismatch{e.Addr, e.Node}); len(mismatches) == maxMismatchesOfService {
			break
		}
	}
	return mismatches
}

// localClients returns which clients are pods of this node, and whether only podCIDRs say so.
func localClients(c Config, self *cluster.Node) (clients proxy.LocalClients, onlyCIDRs bool) {
	clients = c.DetectLocal
	if self == nil {
		return clients, false
	}
	cidrs := c.NodeCIDR || c.DetectPods && c.Pods.InterfacePrefix == ""
	if c.DetectPods {
		clients.InterfacePrefix = cmp.Or(clients.InterfacePrefix, c.Pods.InterfacePrefix)
	}
	onlyCIDRs = cidrs && clients.InterfacePrefix == "" && clients.Bridge == "" && len(clients.CIDRs) == 0
	if cidrs {
		clients.CIDRs = sortedset.MergePrefixes(append(slices.Clone(clients.CIDRs), self.PodCIDRs...))
	}
	return clients, onlyCIDRs
}

// problems reports that podCIDRs, which decide, are not the addresses of this node's pods.
func (m PodCIDRMismatch) problems(self *cluster.Node) []cluster.Problem {
	if m == (PodCIDRMismatch{}) {
		return nil
	}
	evidence := fmt.Sprintf("%s is a pod of this node and not one of these addresses, so it counts as "+
		"a client from outside", m.Addr)
	if m.Node != self.Name {
		evidence = fmt.Sprintf("%s is a pod of node %s and one of these addresses, so it counts as a pod of this node",
			m.Addr, m.Node)
	}
	return []cluster.Problem{{Object: cluster.Named("Node", self.Name), Field: "spec.podCIDRs",
		Value:   prefixesText(self.PodCIDRs),
		Warning: true, Message: evidence + "; if pods have other addresses, start the speaker with " +
			"--detect-local=interface-prefix=NAME, bridge=NAME or cidr=PREFIX"}}
}
