package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// parseClaim returns nil if the object's name is not an address. Only the name says which address
// is taken, because the API server allows each name once.
func parseClaim(o *v1alpha1.AddressClaim) (*Claim, Problems) {
	var p Problems
	addr, err := v1alpha1.ClaimAddress(o.Name)
	if err != nil {
		p.Add("metadata.name", o.Name, err.Error())
		return nil, p
	}
	if assignable(addr) != nil {
		p.Add("spec.address", o.Spec.Address,
			"must be an address that a Service can have, and not unspecified, loopback, link-local, "+
				"multicast or broadcast")
		return nil, p
	}
	if a, err := netip.ParseAddr(o.Spec.Address); err != nil || a != addr {
		p.Add("spec.address", o.Spec.Address, fmt.Sprintf("must be %s, which the name says; that counts", addr))
	} else if o.Spec.Address != addr.String() {
		p.Add("spec.address", o.Spec.Address, fmt.Sprintf("must be an address in canonical form: %s", addr))
	}
	c := &Claim{
		Addr:            addr,
		Pool:            interned(o.Spec.Pool),
		Node:            interned(o.Spec.Node),
		Announce:        parseClaimAnnounce(o.Spec.Announce, &p),
		Reserved:        o.Spec.Reserved,
		Replaced:        o.Spec.Replaced,
		Created:         o.CreationTimestamp.Time,
		UID:             o.UID,
		ResourceVersion: o.ResourceVersion,
	}
	p.bound("spec.holders", len(o.Spec.Holders), 256)
	p.bound("spec.reservedFor", len(o.Spec.ReservedFor), 256)
	for i, h := range o.Spec.Holders {
		if h.Namespace == "" || h.Name == "" {
			p.Add(fmt.Sprintf("spec.holders[%d]", i), "", "must have a namespace and a name; this holder is left out")
			continue
		}
		if slices.ContainsFunc(o.Spec.Holders[:i],
			func(b v1alpha1.ClaimHolder) bool { return b.Namespace == h.Namespace && b.Name == h.Name }) {
			p.Add(fmt.Sprintf("spec.holders[%d]", i), h.Namespace+"/"+h.Name, "is listed twice; remove one of the two")
			continue
		}
		c.Holders = append(c.Holders, Holder{Name{interned(h.Namespace), h.Name}, types.UID(h.UID), h.ResourceVersion,
			h.Reserve})
	}
	slices.SortFunc(c.Holders, func(a, b Holder) int { return a.Name.Compare(b.Name) })
	for i, r := range o.Spec.ReservedFor {
		if r.Namespace == "" {
			p.Add(fmt.Sprintf("spec.reservedFor[%d]", i), r.Name,
				"must have a namespace; it reserves the address for no Service")
			continue
		}
		c.ReservedFor = append(c.ReservedFor, Name{interned(r.Namespace), r.Name})
	}
	slices.SortFunc(c.ReservedFor, Name.Compare)
	c.ReservedFor = slices.Compact(c.ReservedFor)
	return c, p
}

func parseClaimAnnounce(s v1alpha1.Announce, p *Problems) Announce {
	if s == "" {
		return ""
	}
	return parseAnnounce("spec.announce", s, p)
}

// forget removes the fields that only writes need.
func (c *Claim) forget() {
	c.UID, c.ResourceVersion, c.Created, c.Replaced = "", "", time.Time{}, 0
	for i := range c.Holders {
		c.Holders[i].UID, c.Holders[i].ResourceVersion = "", ""
	}
}
