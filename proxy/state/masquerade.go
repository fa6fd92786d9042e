package state

import (
	"net/netip"
	"slices"
)

// masquerades says whether any backend does not see some of its clients.
func (v *VIP) masquerades(node string) bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool {
		return f.External.masquerades(node) || f.Internal.masquerades(node)
	})
}

func (t *Target) masquerades(node string) bool {
	return slices.ContainsFunc(t.Backends, func(b Backend) bool { return t.masked(b, node) })
}

// masked says whether a backend sees an address of the node in place of its client's.
func (t *Target) masked(b Backend, node string) bool { return t.Remote == Masquerade && b.Node != node }

// renderHairpin appends the pods that may meet themselves behind the VIP: pods that
// are on this node, or may be. A pod on another node comes by that node.
func renderHairpin(all []Element, v *VIP, node string) []Element {
	var pods []netip.Addr
	for i := range v.Frontends {
		for _, t := range []*Target{&v.Frontends[i].External, &v.Frontends[i].Internal} {
			for _, b := range t.Backends {
				if b.Node == node || b.Node == "" {
					pods = append(pods, b.Addr.Addr())
				}
			}
		}
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	for _, pod := range slices.Compact(pods) {
		key := make(Encoding, 0, 48).Addr(v.Addr).Addr(pod).Addr(pod)
		all = append(all, Element{Set: setHairpin + Family(v.Addr), Key: string(key)})
	}
	return all
}
