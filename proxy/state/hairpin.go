package state

import (
	"net/netip"
	"slices"
)

// renderHairpin appends the pods that may be their own backend behind the VIP: pods that are, or
// may be, on this node. Packets of a pod on another node arrive through that node.
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
