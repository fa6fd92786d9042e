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

// readPeers makes sessions of the peers that select this node, without duplicates. The first
// one by name sets the node's AS number.
func (v *View) readPeers(peers []*cluster.Peer) {
	v.Duplicates = cluster.Duplicates(peers, v.Self)
	for _, p := range peers {
		if v.Self == nil || !p.NodeSelector.Matches(v.Self.Labels) || v.duplicate(p.Name) != nil {
			continue
		}
		if v.asn == 0 {
			v.asn = p.MyASN
		}
		// Both may be repaired without a change of the BGPPeer: a session follows then.
		if p.DefaultGateway != "" && !p.PeerAddress.IsValid() {
			v.withoutGateway = append(v.withoutGateway, p)
			continue
		}
		if p.Secret != "" && p.Password == "" {
			v.withoutPassword = append(v.withoutPassword, p.Name)
			continue
		}
		v.sessions = append(v.sessions, p.Session)
	}
	v.allRecipients = [2]string{v.recipients(true, ""), v.recipients(false, "")}
	v.routerID = routerID(v.Node, v.next4)
}

// resolveGateways sets the addresses of peers that are default gateways.
func (v *View) resolveGateways(peers []*cluster.Peer) []*cluster.Peer {
	resolved := slices.Clone(peers)
	for i, p := range peers {
		if p.DefaultGateway != "" {
			with := *p
			with.PeerAddress = v.gateways.address(p.DefaultGateway)
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

// duplicate returns the older peer of which this one is a duplicate, or nil.
func (v *View) duplicate(peer string) *cluster.Duplicate {
	i := slices.IndexFunc(v.Duplicates, func(d cluster.Duplicate) bool { return d.Peer.Name == peer })
	if i < 0 {
		return nil
	}
	return &v.Duplicates[i]
}

// duplicateProblems returns the problems of duplicates, and of advertisements that name only
// duplicates.
func (v *View) duplicateProblems() (all []cluster.Problem) {
	for _, d := range v.Duplicates {
		all = append(all, d.Problem(v.Node))
	}
	for _, a := range v.fromAdverts {
		if v.Self == nil || !a.NodeSelector.Matches(v.Self.Labels) || v.hasPeer(a) {
			continue
		}
		if d, ok := a.NamesOnly(v.Duplicates); ok {
			all = append(all, d.AdvertisementProblem(a, v.Node))
		}
	}
	return all
}

// hasPeer reports whether this node has a session with a router of a.
func (v *View) hasPeer(a *cluster.Advertisement) bool {
	return len(a.Peers) == 0 || slices.ContainsFunc(v.sessions, func(s bgp.Session) bool { return slices.Contains(a.Peers, s.Name) })
}

// recipients names the routers of peers that receive routes of a family. A session over IPv4
// carries IPv6 routes if this node has an IPv6 address as the next hop; a session over IPv6
// carries IPv4 routes with an IPv6 next hop, too (RFC 8950).
func (v *View) recipients(is4 bool, peers bgp.Peers) string {
	var able, all []string
	for _, s := range v.sessions {
		if !peers.Has(s.Name) {
			continue
		}
		all = append(all, s.Name)
		if is4 || !s.PeerAddress.Is4() || v.next6.IsValid() {
			able = append(able, s.Name)
		}
	}
	if len(able) > 0 {
		return cluster.Enumerate(able)
	}
	return cluster.Enumerate(all)
}

// recipientsOf names the routers that receive r.
func (v *View) recipientsOf(r bgp.Route) string {
	is4 := r.Prefix.Addr().Is4()
	switch {
	case r.Peers != "":
		return v.recipients(is4, r.Peers)
	case is4:
		return v.allRecipients[0]
	default:
		return v.allRecipients[1]
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
func (v *View) gatewayProblems() (all []cluster.Problem) {
	for _, p := range v.withoutGateway {
		all = append(all, cluster.Problem{Object: "BGPPeer " + p.Name, Field: "spec.defaultGateway", Value: string(p.DefaultGateway),
			Message: fmt.Sprintf("no such gateway is known on node %s; give it a default route, or name the router by peerAddress", v.Node)})
	}
	return all
}
