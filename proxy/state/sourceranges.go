package state

import (
	"net/netip"
	"slices"
)

// renderSources appends the sources that may use a frontend, if it is restricted.
func renderSources(all []Element, vip netip.Addr, fe *Frontend) []Element {
	if !fe.SourceRestricted(vip) {
		return all
	}
	key := make(Encoding, 0, 48).Addr(vip).Proto(fe.Protocol).Port(fe.Port)
	for _, p := range fe.Sources {
		if Family(p.Addr()) == Family(vip) {
			first := string(key.Addr(p.Addr())) // copied before key's array is used again
			all = append(all, Element{Set: SetAllowed + Family(vip), Key: first, Data: string(key.Addr(lastAddr(p)))})
		}
	}
	return all
}

// SourceRestricted reports whether some sources may not use the frontend.
func (f *Frontend) SourceRestricted(vip netip.Addr) bool {
	everybody := func(p netip.Prefix) bool { return p.Bits() == 0 && Family(p.Addr()) == Family(vip) }
	return f.Sources != nil && !slices.ContainsFunc(f.Sources, everybody)
}
