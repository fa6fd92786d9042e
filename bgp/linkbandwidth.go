package bgp

import (
	"context"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// bytesPerWeight is the unit of a weight. A route's weight is sent as the link bandwidth extended community (RFC 10005), in
// its non-transitive form: it concerns the links of the router that receives it, and
// that router does not pass it on. Only the proportions count, so the unit is a
// convention: at 1 Mbit/s the value is the weight wherever a router shows megabits,
// float32 is exact up to a weight of 1,073, and routers that keep 32 bits of it
// (FRR 8) overflow only above 34,000.
const bytesPerWeight = 125_000 // a second

// asTrans replaces AS numbers that do not fit into 16 bits (RFC 6793).
const asTrans = 23456

// linkBandwidth is what says r's weight.
func (r Route) linkBandwidth(as uint16) packet.PathAttributeInterface {
	bandwidth := packet.NewLinkBandwidthExtended(as, float32(r.Weight)*bytesPerWeight)
	return packet.NewPathAttributeExtendedCommunities([]packet.ExtendedCommunityInterface{bandwidth})
}

// weightAS is the AS number of weights; 0 if no router gets any.
func (s State) weightAS() uint16 {
	switch {
	case !slices.ContainsFunc(s.Sessions, func(x Session) bool { return x.Weights }):
		return 0
	case s.ASN > 0xffff:
		return asTrans
	default:
		return uint16(s.ASN)
	}
}

// noBandwidthSet names the routers that get no weights. GoBGP has one path for each prefix, with the weight in it. The export policy takes
// it out again on the way to routers of this set. GoBGP takes an empty set of
// neighbours for all of them: so there is always an address in it that no router has.
const noBandwidthSet = "no link bandwidth"

var noRouter = netip.MustParseAddr(engineRouterID)

// stripBandwidth takes all extended communities away; there are no others.
func stripBandwidth() *api.Statement {
	return &api.Statement{
		Name:       "no link bandwidth",
		Conditions: &api.Conditions{NeighborSet: anyOf(noBandwidthSet)},
		Actions:    &api.Actions{ExtCommunity: &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE}},
	}
}

// withoutBandwidth are the routers that get no weights although others do, as GoBGP knows them,
// sorted.
func (e *engine) withoutBandwidth(s State) (routers []netip.Addr) {
	if s.weightAS() == 0 {
		return nil
	}
	for _, x := range s.Sessions {
		if !x.Weights {
			routers = append(routers, e.neighborAddr(x))
		}
	}
	slices.SortFunc(routers, netip.Addr.Compare)
	return slices.Compact(routers)
}

// setNoBandwidth withholds weights from these routers only. Routes that they already have
// stay.
func (e *engine) setNoBandwidth(ctx context.Context, routers []netip.Addr) error {
	// First add, then remove: the set changes in place, and statements hold on to it.
	// One that replaces it would be another one's.
	gone, come := diff(e.noBandwidth, routers, netip.Addr.Compare)
	if len(come) > 0 {
		if err := e.gobgp.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: neighborSet(noBandwidthSet, come...)}); err != nil {
			return err
		}
	}
	if len(gone) > 0 {
		if err := e.gobgp.DeleteDefinedSet(ctx, &api.DeleteDefinedSetRequest{DefinedSet: neighborSet(noBandwidthSet, gone...)}); err != nil {
			return err
		}
	}
	e.noBandwidth = routers
	return nil
}
