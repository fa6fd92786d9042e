package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// An open is the content of a router's OPEN (RFC 4271 §4.2).
type open struct {
	asn             uint32
	routerID        netip.Addr
	holdTime        time.Duration
	ipv4, ipv6      bool // the families that it supports
	gracefulRestart bool
	extendedHop     bool // takes IPv4 routes with IPv6 next hops (RFC 8950)
}

func isIPv4OverIPv6(t *packet.CapExtendedNexthopTuple) bool {
	return t.NLRIAFI == packet.AFI_IP && t.NLRISAFI == packet.SAFI_UNICAST && t.NexthopAFI == packet.AFI_IP6
}

func parseOpen(body []byte) (open, error) {
	var msg packet.BGPOpen
	if err := msg.DecodeFromBytes(body); err != nil {
		return open{}, err
	}
	o := open{asn: uint32(msg.MyAS), routerID: msg.ID, holdTime: time.Duration(msg.HoldTime) * time.Second}
	multiprotocol := false
	for _, param := range msg.OptParams {
		caps, ok := param.(*packet.OptionParameterCapability)
		if !ok {
			continue
		}
		for _, c := range caps.Capability {
			switch c := c.(type) {
			case *packet.CapFourOctetASNumber:
				o.asn = c.CapValue
			case *packet.CapGracefulRestart:
				o.gracefulRestart = true
			case *packet.CapExtendedNexthop:
				o.extendedHop = o.extendedHop || slices.ContainsFunc(c.Tuples, isIPv4OverIPv6)
			case *packet.CapMultiProtocol:
				multiprotocol = true
				o.ipv4 = o.ipv4 || c.CapValue == packet.RF_IPv4_UC
				o.ipv6 = o.ipv6 || c.CapValue == packet.RF_IPv6_UC
			}
		}
	}
	if !multiprotocol {
		o.ipv4 = true // RFC 4760 §8: without the capability it is plain BGP, IPv4 only
	}
	return o, nil
}

// rejection returns why the router of a session that sent o is rejected; empty if it is not. GoBGP
// cannot check these: it accepts any AS number, and compares the router ID with its own, not with the session's.
func (o open) rejection(conf Session) (reason string, subcode byte) {
	switch {
	case conf.External && o.asn == conf.LocalASN:
		return fmt.Sprintf("wrong AS number: router says AS%d, which is our own, and BGPPeer says external", o.asn),
			openBadPeerAS
	case o.asn == conf.LocalASN && o.routerID == conf.RouterID: // RFC 6286 §2.2
		return fmt.Sprintf("router has the same router ID %s as this node", o.routerID), openBadIdentifier
	}
	return "", 0
}
