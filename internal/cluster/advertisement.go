package cluster

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// parseAdvertisement returns nil for any mistake: a partial restriction would announce too much,
// and a partial aggregate attract too much.
func parseAdvertisement(o *v1alpha1.BGPAdvertisement) (*Advertisement, Problems) {
	var p Problems
	s := &o.Spec
	p.bound("spec.communities", len(s.Communities), 64)
	p.once("spec.communities", s.Communities)
	a := &Advertisement{
		Name:            o.Name,
		Pools:           parseNames("spec.pools", "an AddressPool", s.Pools, 64, &p),
		Peers:           parseNames("spec.peers", "a BGPPeer", s.Peers, 64, &p),
		ServiceSelector: parseSelector("spec.serviceSelector", s.ServiceSelector, &p),
		NodeSelector:    parseSelector("spec.nodeSelector", s.NodeSelector, &p),
		Length4:         parseLength("spec.aggregationLength", s.AggregationLength, 32, &p),
		Length6:         parseLength("spec.aggregationLengthV6", s.AggregationLengthV6, 128, &p),
		Communities:     parseCommunities("spec.communities", s.Communities, "", &p),
		LocalPref:       parseOptional[uint32]("spec.localPref", s.LocalPref, math.MaxUint32, &p),
		MED:             parseOptional[uint32]("spec.med", s.MED, math.MaxUint32, &p),
		Prepend:         parseOptional[uint8]("spec.asPathPrepend", s.ASPathPrepend, 16, &p),
	}
	if s.ServiceSelector != nil && (a.Length4 < 32 || a.Length6 < 128) {
		p.Add("spec.serviceSelector", "", selectorExcludesAggregate)
	}
	if len(p) != 0 {
		return nil, p
	}
	return a, nil
}

// selectorExcludesAggregate has the text of the CRD's rule.
const selectorExcludesAggregate = "excludes an aggregate: routers would send the node traffic for addresses that the " +
	"selector leaves out, and the node must refuse it; remove serviceSelector, or aggregationLength " +
	"and aggregationLengthV6"

// parseNames requires a name in a list that is present: an empty list reads like "none", but no
// list means all.
func parseNames(field, kind string, names []string, most int, p *Problems) []string {
	for i, name := range names {
		if len(validation.IsDNS1123Subdomain(name)) != 0 {
			p.Add(fmt.Sprintf("%s[%d]", field, i), name,
				fmt.Sprintf("each must be the name of %s; leave the field out for all", kind))
		}
	}
	return parseSet(field, "name of "+kind, names, most, p)
}

// parseSet sorts a list that must not have duplicates.
func parseSet(field, what string, list []string, most int, p *Problems) []string {
	if list != nil && len(list) == 0 {
		p.Add(field, "", fmt.Sprintf("is empty; write at least one %s, or leave the field out for all", what))
	}
	p.bound(field, len(list), most)
	p.once(field, list)
	sorted := slices.Clone(list)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

func parseLength(field string, length *int32, most int64, p *Problems) int {
	if length == nil {
		return int(most)
	}
	return int(parseNumber(field, int64(*length), 0, most, p))
}

// parseOptional returns nil for an unset number, which differs from 0.
func parseOptional[T uint8 | uint32, N int32 | int64](field string, n *N, most int64, p *Problems) *T {
	if n == nil {
		return nil
	}
	return new(T(parseNumber(field, int64(*n), 0, most, p)))
}

// Prefix returns the prefix by which addr is announced.
func (a *Advertisement) Prefix(addr netip.Addr) netip.Prefix {
	length := a.Length6
	if addr.Is4() {
		length = a.Length4
	}
	return netip.PrefixFrom(addr, length).Masked()
}

// SelectsPool reports whether the advertisement applies to a pool.
func (a *Advertisement) SelectsPool(name string) bool {
	return len(a.Pools) == 0 || slices.Contains(a.Pools, name)
}
