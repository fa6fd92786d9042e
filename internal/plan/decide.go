package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Decide decides what a node does about a snapshot. It is pure: equal arguments give equal
// results, on every node and at any time.
func Decide(c Config, snap *cluster.Snapshot) *Desired {
	return NewDecider(c).Decide(snap)
}

// decide decides about one address of services, which are in the order of precedence.
func (v *View) decide(addr netip.Addr, pool string, origin cluster.Origin, services []cluster.Service, claim *cluster.Claim) *Address {
	a := &Address{Addr: addr, Pool: pool, origin: origin, VIP: &proxy.VIP{Addr: addr}, services: services, claim: claim}
	shares, pods := v.addFrontends(a)
	// The owner over Layer 2 is elected first: it forwards all Services of the address, also
	// those without endpoints on this node.
	owner := v.electOwner(a, shares)
	if len(shares) > 1 {
		a.VIP.Frontends = v.forwardElsewhere(addr, shares, owner.address != nil)
	}
	slices.SortFunc(a.VIP.Frontends, func(a, b proxy.Frontend) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	if a.Refusal = v.refusalOf(a.VIP); a.Refusal != "" {
		a.VIP = &proxy.VIP{Addr: addr}
		for i := range shares {
			shares[i].verdict = refused(a.Refusal)
		}
		// No Service can be served now, so this node must not answer for the address.
		owner = v.electOwner(a, shares)
	}
	remote := remoteOnly(shares)
	a.Obstruction = v.obstructionOf(a.VIP)
	owner = owner.withhold(v, a.Addr, a.Obstruction)
	p := v.announcementOf(a, shares, remote)
	v.setWeights(p.routes, pods)
	for _, s := range shares {
		a.Reasons = append(a.Reasons, v.explain(a, s, remote, p, owner)...)
	}
	a.Routes, a.aggregated, a.OverL2, a.Owner, a.OwnerBy, a.l2 = p.routes, p.aggregated, owner.overL2, owner.node, owner.by, owner.address
	a.Announce = len(a.Routes) > 0 || a.l2 != nil
	a.Handover = remote != nil && v.noAnnounce == "" || v.planned && remote == nil && slices.ContainsFunc(shares, share.good)
	return a
}

// addFrontends adds the frontends of all Services to an address, and returns each Service's
// share and the pods for weights.
func (v *View) addFrontends(a *Address) (shares []share, pods []netip.Addr) {
	shares = make([]share, len(a.services))
	for i, s := range a.services {
		a.Services = append(a.Services, s.Name)
		fronts, verdict := v.serve(a.Addr, s)
		fronts, conflicts := disjoint(a.VIP.Frontends, fronts, a.Addr, s.Name)
		if why := v.exceedsLimits(a.VIP, fronts, len(a.services)); why != "" {
			// The other Services of the address are not affected.
			fronts, conflicts, verdict = nil, nil, refused(why)
		}
		pods = v.appendLocalPods(pods, s.Spec, fronts)
		a.VIP.Frontends = append(a.VIP.Frontends, fronts...)
		a.Reasons = append(a.Reasons, conflicts...)
		if len(conflicts) > 0 && len(fronts) == 0 {
			verdict.code, verdict.message = cluster.AddressConflict, conflicts[0].Message
		}
		shares[i] = share{s, fronts, verdict}
	}
	return shares, pods
}

// A share is one Service of an address: its frontends, and how it is served here.
type share struct {
	service cluster.Service
	fronts  []proxy.Frontend
	verdict
}

// A verdict is how a Service is served on this node.
type verdict struct {
	// code is why the Service is not announced, empty if it may be.
	code    cluster.Code
	message string
	// elsewhere: its endpoints are on other nodes, and this node forwards to them despite the
	// policy Local.
	elsewhere bool
}

func (v verdict) good() bool { return v.code == "" }

// served is the code for connections that are neither refused nor dropped.
func (v verdict) served() cluster.Code {
	if v.elsewhere {
		return cluster.Elsewhere
	}
	return cluster.Programmed
}

// refused is the verdict on a Service that the proxy cannot hold.
func refused(why string) verdict { return verdict{code: cluster.ProxyRefused, message: why} }

// remoteOnly finds a Service that only other nodes can serve. It keeps the address from being
// announced here, since the address attracts the traffic of all its Services. A Service that
// no node can serve does not.
func remoteOnly(shares []share) *share {
	i := slices.IndexFunc(shares, func(s share) bool { return s.code == cluster.NoLocalEndpoint })
	if i < 0 {
		return nil
	}
	return &shares[i]
}

// byPrecedence sorts older Services first: a new Service must not take a port from an older one.
func byPrecedence(services []cluster.Service) {
	slices.SortFunc(services, func(a, b cluster.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Name.Compare(b.Name))
	})
}

// find returns the index of a Service, or -1.
func find(snap *cluster.Snapshot, name cluster.Name) int {
	i, ok := slices.BinarySearchFunc(snap.Services, name, func(s cluster.Service, n cluster.Name) int { return s.Name.Compare(n) })
	if !ok {
		return -1
	}
	return i
}
