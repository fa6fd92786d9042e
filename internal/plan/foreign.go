package plan

import (
	"fmt"
	"net/netip"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A foreignPrefix is a network that is not for Services.
type foreignPrefix struct {
	prefix netip.Prefix
	what   string
}

// reservedPrefixes are in use on every link. A node that rejected traffic to them would cut
// itself off: router advertisements, for example, have a multicast destination.
var reservedPrefixes = []foreignPrefix{
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback addresses (127.0.0.0/8)"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local addresses (169.254.0.0/16)"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast addresses (224.0.0.0/4)"},
	{netip.MustParsePrefix("::1/128"), "the loopback address (::1)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local addresses (fe80::/10)"},
	{netip.MustParsePrefix("ff00::/8"), "multicast addresses (ff00::/8)"},
}

// readForeign collects the prefixes that this node itself, its pods and its routers use.
func (v *View) readForeign(peers []*cluster.Peer) {
	host := func(a netip.Addr, format string) {
		if a.IsValid() {
			a = a.WithZone("")
			v.foreignPrefixes = append(v.foreignPrefixes, foreignPrefix{netip.PrefixFrom(a, a.BitLen()), fmt.Sprintf(format, a)})
		}
	}
	if v.Self != nil {
		for _, a := range v.Self.InternalIPs {
			host(a, "this node's address %s")
		}
		for _, p := range v.Self.PodCIDRs {
			v.foreignPrefixes = append(v.foreignPrefixes, foreignPrefix{p.Masked(), fmt.Sprintf("the pod network %s", p)})
		}
	}
	for _, p := range v.clients.CIDRs {
		v.foreignPrefixes = append(v.foreignPrefixes, foreignPrefix{p.Masked(), fmt.Sprintf("the pod network %s", p)})
	}
	for _, p := range peers {
		host(p.PeerAddress, "the address %s of router "+p.Name)
		host(p.SourceAddress, "the address %s of the session with router "+p.Name)
	}
	v.foreignPrefixes = append(v.foreignPrefixes, reservedPrefixes...)
}

// foreign describes what a prefix contains that is not for Services, empty if nothing. This node
// would reject traffic to it; if it is a router, the routes would end its own session.
func (v *View) foreign(prefix netip.Prefix) string {
	for _, f := range v.foreignPrefixes {
		if prefix.Overlaps(f.prefix) {
			return f.what
		}
	}
	if o := (&cluster.Snapshot{Occupied: v.occupied}).OccupiedIn(prefix); o.By != "" {
		return o.Text()
	}
	return ""
}
