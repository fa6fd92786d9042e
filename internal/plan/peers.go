package plan

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// routers are the routers with which this node has sessions, and what it is to them.
type routers struct {
	node            string
	asn             uint32
	routerID        netip.Addr
	next4, next6    netip.Addr // next hops
	sessions        []bgp.Session
	duplicates      []cluster.Duplicate
	withoutPassword []string        // peers whose Secret is missing
	withoutGateway  []*cluster.Peer // peers whose router is an unknown default gateway
	recipients      [2]string       // of IPv4 and IPv6 routes, for a sentence
}

// newRouters makes sessions of the peers that select a node, which may be nil, without duplicates. The first
// one by name sets the node's AS number.
func newRouters(name string, self *cluster.Node, peers []*cluster.Peer) *routers {
	r := &routers{node: name, duplicates: cluster.Duplicates(peers, self)}
	if self != nil {
		r.next4, r.next6 = first(self.InternalIPs, netip.Addr.Is4), first(self.InternalIPs, netip.Addr.Is6)
	}
	for _, p := range peers {
		if self == nil || !p.NodeSelector.Matches(self.Labels) || r.isDuplicate(p.Name) {
			continue
		}
		if r.asn == 0 {
			r.asn = p.MyASN
		}
		// Both may be repaired without a change of the BGPPeer: a session follows then.
		if p.DefaultGateway != "" && !p.PeerAddress.IsValid() {
			r.withoutGateway = append(r.withoutGateway, p)
			continue
		}
		if p.Secret != "" && p.Password == "" {
			r.withoutPassword = append(r.withoutPassword, p.Name)
			continue
		}
		r.sessions = append(r.sessions, p.Session)
	}
	r.recipients = [2]string{r.among(true, ""), r.among(false, "")}
	r.routerID = routerID(name, r.next4)
	return r
}

func first(list []netip.Addr, is func(netip.Addr) bool) netip.Addr {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i]
	}
	return netip.Addr{}
}

// resolve sets the addresses of peers that are default gateways.
func (g Gateways) resolve(peers []*cluster.Peer) []*cluster.Peer {
	resolved := slices.Clone(peers)
	for i, p := range peers {
		if p.DefaultGateway != "" {
			with := *p
			with.PeerAddress = g.address(p.DefaultGateway)
			resolved[i] = &with
		}
	}
	return resolved
}

// address returns the gateway of a family.
func (g Gateways) address(family corev1.IPFamily) netip.Addr {
	if family == corev1.IPv6Protocol {
		return g.IPv6
	}
	return g.IPv4
}

// isDuplicate reports whether an older peer has the router of this one.
func (r *routers) isDuplicate(peer string) bool {
	return slices.ContainsFunc(r.duplicates, func(d cluster.Duplicate) bool { return d.Peer.Name == peer })
}

// hasPeer reports whether this node has a session with a router of a.
func (r *routers) hasPeer(a *cluster.Advertisement) bool {
	return len(a.Peers) == 0 || slices.ContainsFunc(r.sessions,
		func(s bgp.Session) bool { return slices.Contains(a.Peers, s.Name) })
}

// among names the routers of peers that receive routes of a family. A session over IPv4
// carries IPv6 routes if this node has an IPv6 address as the next hop; a session over IPv6
// carries IPv4 routes with an IPv6 next hop, too (RFC 8950).
func (r *routers) among(is4 bool, peers bgp.Peers) string {
	var able, all []string
	for _, s := range r.sessions {
		if !peers.Has(s.Name) {
			continue
		}
		all = append(all, s.Name)
		if is4 || !s.PeerAddress.Is4() || r.next6.IsValid() {
			able = append(able, s.Name)
		}
	}
	if len(able) > 0 {
		return cluster.Enumerate(able)
	}
	return cluster.Enumerate(all)
}

// recipientsOf names the routers that receive a route.
func (r *routers) recipientsOf(route bgp.Route) string {
	is4 := route.Prefix.Addr().Is4()
	switch {
	case route.Peers != "":
		return r.among(is4, route.Peers)
	case is4:
		return r.recipients[0]
	default:
		return r.recipients[1]
	}
}

// routerID is the node's IPv4 address or, without one, a hash of its name: it must be unique in
// the AS and not zero (RFC 6286 §2.1).
func routerID(name string, addr netip.Addr) netip.Addr {
	if addr.IsValid() {
		return addr
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	n := h.Sum32() | 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// gatewayProblems returns the BGPPeers whose router is a gateway that this node does not have.
func (r *routers) gatewayProblems() (all []cluster.Problem) {
	for _, p := range r.withoutGateway {
		all = append(all, cluster.Problem{Object: cluster.Named("BGPPeer", p.Name), Field: "spec.defaultGateway",
			Value: string(p.DefaultGateway), Message: fmt.Sprintf(
				"no such gateway is known on node %s; give it a default route, or name the "+
					"router by peerAddress", r.node)})
	}
	return all
}
