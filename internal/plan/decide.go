package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// An addressInput is the input of the decision about an address.
type addressInput struct {
	origin   cluster.Origin
	services []cluster.Service // that hold it, in the order of precedence
	claim    *cluster.Claim    // nil without Layer 2
}

// A decision is an Address, and the input of its Reasons.
type decision struct {
	*Address
	shares       []addressService
	conflicts    []cluster.Reason // of ports
	remote       *addressService  // keeps the address from being announced here; nil: none does
	announcement announcement
	owner        ownerDecision
}

// decide decides about one address. Its Reasons are computed only on demand.
func (in *Inputs) decide(addr netip.Addr, pool string, h addressInput) decision {
	d := decision{Address: &Address{Addr: addr, Pool: pool, addressInput: h, VIP: &proxy.VIP{Addr: addr}}}
	a := d.Address
	var pods []netip.Addr
	a.Refusal = in.capacity.refusalUnseen(a)
	d.shares, d.conflicts, pods = in.addFrontends(a)
	// The owner over Layer 2 is elected first: it forwards all ports of the address, also those
	// without endpoints on this node.
	d.owner = in.layer2.electOwner(a, d.shares)
	a.VIP.Frontends = forwardElsewhere(d.shares, d.owner.address != nil)
	slices.SortFunc(a.VIP.Frontends, func(a, b proxy.Frontend) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	if a.Refusal == "" {
		a.Refusal = in.capacity.refusalOf(a.VIP)
	}
	if a.Refusal == "" {
		a.use = useOf(a.VIP, in.capacity.limits)
		in.capacity.cuts[addr].apply(d)
	} else {
		a.VIP = &proxy.VIP{Addr: a.Addr}
		for i := range d.shares {
			d.shares[i].verdict = refused(a.Refusal)
		}
		// No Service can be served now, so this node must not answer for the address.
		if d.owner.overL2 {
			d.owner = ownerDecision{overL2: true}
		}
	}
	d.remote = remoteOnly(d.shares)
	a.Obstruction = in.obstruction.of(a.VIP)
	d.owner = d.owner.withhold(&in.obstruction, a.Addr, a.Obstruction)
	if d.remote == nil && in.noAnnounce == "" && a.Obstruction == "" {
		d.announcement = in.adverts.announce(a, d.shares)
	}
	in.routers.setWeights(d.announcement.routes, pods)
	a.Routes, a.aggregated, a.OverL2, a.Owner, a.l2 = d.announcement.routes, d.announcement.aggregated, d.owner.overL2,
		d.owner.node, d.owner.address
	a.Announce = len(a.Routes) > 0 || a.l2 != nil
	a.Handover = d.remote != nil && in.noAnnounce == "" ||
		in.planned && d.remote == nil && slices.ContainsFunc(d.shares, addressService.good)
	return d
}

// addFrontends adds the frontends of all Services to an address, and returns each Service's
// share, the ports that it lost to another Service, and the pods for weights.
func (in *Inputs) addFrontends(a *Address) (shares []addressService, conflicts []cluster.Reason, pods []netip.Addr) {
	shares = make([]addressService, len(a.services))
	a.Services = make([]cluster.Name, len(a.services))
	for i, s := range a.services {
		if a.Services[i] = s.Name; a.Refusal != "" {
			shares[i].service = s
			continue
		}
		share, lost := in.topology.serve(a.Addr, s, in.capacity.limits, a.VIP.Frontends)
		if why := in.capacity.exceedsLimits(a.VIP, share.fronts, len(a.services)); why != "" {
			// The other Services of the address are not affected.
			share.fronts, share.ports, lost, share.verdict = nil, nil, nil, refused(why)
		}
		a.refusedOne = a.refusedOne || share.code == cluster.ProxyRefused
		pods = in.routers.appendLocalPods(pods, s.Spec, share.fronts)
		a.VIP.Frontends = append(a.VIP.Frontends, share.fronts...)
		conflicts = append(conflicts, lost...)
		shares[i] = share
	}
	return shares, conflicts, pods
}

// remoteOnly returns a Service with ports that only other nodes can serve. It prevents this node from
// announcing the address, which attracts the traffic of all its Services. A Service that no node
// can serve does not.
func remoteOnly(shares []addressService) *addressService {
	i := slices.IndexFunc(shares, func(s addressService) bool { return s.code == cluster.NoLocalEndpoint })
	if i < 0 {
		return nil
	}
	return &shares[i]
}
