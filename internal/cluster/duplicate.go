package cluster

import (
	"cmp"
	"fmt"
	"slices"
)

// A Duplicate is a BGPPeer without a session on a node, because an older one names the same router
// there.
type Duplicate struct {
	Peer *Peer
	Of   *Peer // which has the session
}

// Duplicates returns the peers whose router belongs to an older peer on the node, by
// creationTimestamp and then by name; sorted by name. A node has only one session with an address,
// even if port, source or device differ, and also in a VRF. If a default gateway is known, other
// peers must not have its address; if not, the peers that name it are only compared with each
// other.
func Duplicates(peers []*Peer, node *Node) []Duplicate {
	if node == nil {
		return nil
	}
	byAge := slices.DeleteFunc(slices.Clone(peers), func(p *Peer) bool { return !p.NodeSelector.Matches(node.Labels) })
	slices.SortStableFunc(byAge, func(a, b *Peer) int {
		return cmp.Or(CompareAge(a.Created, b.Created), cmp.Compare(a.Name, b.Name))
	})
	var all []Duplicate
	var have []*Peer
	for _, p := range byAge {
		if i := slices.IndexFunc(have, p.shares); i >= 0 {
			all = append(all, Duplicate{p, have[i]})
		} else {
			have = append(have, p)
		}
	}
	slices.SortFunc(all, func(a, b Duplicate) int { return cmp.Compare(a.Peer.Name, b.Peer.Name) })
	return all
}

// shares reports whether two peers have the same router. A link with a peer has only two ends, so a
// link-local address there is that peer's router.
func (p *Peer) shares(o *Peer) bool {
	return p.router() == o.router() || p.Interface != "" && o.PeerAddress.Zone() == p.Interface ||
		o.Interface != "" && p.PeerAddress.Zone() == o.Interface
}

// router identifies the router in a sentence: peers with the same text share one session.
func (p *Peer) router() string {
	switch {
	case p.Interface != "":
		return "the router on interface " + p.Interface
	case p.PeerAddress.IsValid():
		return "router " + p.PeerAddress.String()
	default:
		return fmt.Sprintf("the default gateway of %s", p.DefaultGateway)
	}
}

// Problem returns the Problem of the newer BGPPeer on a node.
func (d Duplicate) Problem(node string) Problem {
	field, value := d.Peer.where()
	return Problem{Object: Named("BGPPeer", d.Peer.Name), Field: field, Value: value, Message: fmt.Sprintf(
		"node %s has no session by it: %s. Delete one of the two, or give them nodeSelectors that "+
			"never match the same node", node, d.Why())}
}

// Why returns why the newer BGPPeer has no session, for a sentence.
func (d Duplicate) Why() string {
	why := "is older"
	if CompareAge(d.Of.Created, d.Peer.Created) == 0 {
		why = "comes first by name"
	}
	text := fmt.Sprintf("BGPPeer %s, which %s, names %s too", d.Of.Name, why, d.Peer.router())
	if d.Peer.Device != d.Of.Device {
		text += ", and a node has one session with an address, also where the devices differ"
	}
	return text
}

// where returns the field by which the object names the router, and its value.
func (p *Peer) where() (field, value string) {
	switch {
	case p.Interface != "":
		return "spec.interface", p.Interface
	case p.DefaultGateway != "":
		return "spec.defaultGateway", string(p.DefaultGateway)
	default:
		return "spec.peerAddress", p.PeerAddress.String()
	}
}

// NamesOnly returns the first of a node's Duplicates that an advertisement names without naming the
// older BGPPeer; ok is false if there is none.
func (a *Advertisement) NamesOnly(all []Duplicate) (d Duplicate, ok bool) {
	i := slices.IndexFunc(all, func(d Duplicate) bool {
		return slices.Contains(a.Peers, d.Peer.Name) && !slices.Contains(a.Peers, d.Of.Name)
	})
	if i < 0 {
		return Duplicate{}, false
	}
	return all[i], true
}

// AdvertisementProblem returns the Problem of an advertisement that reaches no router on a node
// because it names this duplicate.
func (d Duplicate) AdvertisementProblem(a *Advertisement, node string) Problem {
	return Problem{Object: Named("BGPAdvertisement", a.Name), Field: "spec.peers", Value: d.Peer.Name,
		Message: fmt.Sprintf(
			"node %s announces it to no router: %s. Name %s instead", node, d.Why(), d.Of.Name)}
}
