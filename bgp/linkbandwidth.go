package bgp

import (
	"context"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// bytesPerWeight is the bandwidth that stands for a weight of 1. A route's weight is sent as the
// non-transitive link bandwidth extended community (RFC 10005): it concerns the links of the router
// that receives it, and that router does not pass it on. Only the proportions matter, so the unit
// is a convention. With 1 Mbit/s, routers that show megabits show the weight, float32 is exact up
// to a weight of 1,073, and routers with 32-bit values (FRR 8) overflow only above 34,000.
const bytesPerWeight = 125_000 // a second

// asTrans replaces AS numbers of more than 16 bits (RFC 6793).
const asTrans = 23456

// linkBandwidth returns the attribute with r's weight.
func (r Route) linkBandwidth(as uint16) packet.PathAttributeInterface {
	bandwidth := packet.NewLinkBandwidthExtended(as, float32(r.Weight)*bytesPerWeight)
	return packet.NewPathAttributeExtendedCommunities([]packet.ExtendedCommunityInterface{bandwidth})
}

// weightAS is the AS number in link bandwidth communities; 0 if no router gets any.
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

// noBandwidthSet has the routers that get no weights. GoBGP has one path for each prefix, with the
// weight; the export policy removes the weight for routers in this set. GoBGP treats an empty set
// of neighbours as all of them, so the set always contains an address that no router has.
const noBandwidthSet = "no link bandwidth"

var noRouter = netip.MustParseAddr(engineRouterID)

// stripBandwidth removes all extended communities: the only one is the link bandwidth.
func stripBandwidth() *api.Statement {
	return &api.Statement{
		Name:       "no link bandwidth",
		Conditions: &api.Conditions{NeighborSet: anyOf(noBandwidthSet)},
		Actions:    &api.Actions{ExtCommunity: &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE}},
	}
}

// withoutBandwidth returns the routers, by their addresses in GoBGP, that get no weights although
// others do. They are sorted.
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

// setNoBandwidth withholds weights from exactly these routers. Routes that they already have stay.
func (e *engine) setNoBandwidth(ctx context.Context, routers []netip.Addr) error {
	// Add first, then remove: statements refer to the set, so it must be changed in place. A
	// replaced set would be a new object to GoBGP.
	gone, come := sortedset.Diff(e.noBandwidth, routers, netip.Addr.Compare)
	if len(come) > 0 {
		if err := e.gobgp.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: neighborSet(noBandwidthSet,
			come...)}); err != nil {
			return err
		}
	}
	if len(gone) > 0 {
		if err := e.gobgp.DeleteDefinedSet(ctx,
			&api.DeleteDefinedSetRequest{DefinedSet: neighborSet(noBandwidthSet, gone...)}); err != nil {
			return err
		}
	}
	e.noBandwidth = routers
	return nil
}
