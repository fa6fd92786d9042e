package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	networkingv1 "k8s.io/api/networking/v1"
)

// A ServiceCIDR is a range from which the API server takes ClusterIPs.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

func parseServiceCIDR(o *networkingv1.ServiceCIDR) (*ServiceCIDR, Problems) {
	var p Problems
	return &ServiceCIDR{o.Name, parseCIDRs("spec.cidrs", o.Spec.CIDRs, &p)}, p
}

// occupied returns the addresses that the cluster itself uses: of nodes, pods, routers and
// ClusterIPs. They are sorted, and do not overlap.
func (b *Builder) occupied() []Occupied {
	var all []Occupied
	addr := func(a netip.Addr, by string) {
		if a.IsValid() && a.Zone() == "" {
			all = append(all, Occupied{Range: netipx.IPRangeFrom(a, a), By: by})
		}
	}
	cidrs := func(list []netip.Prefix, by string) {
		for _, c := range list {
			all = append(all, Occupied{Range: netipx.RangeOfPrefix(c), By: by})
		}
	}
	for _, n := range b.nodes.objects {
		for _, a := range n.InternalIPs {
			addr(a, "Node "+n.Name)
		}
		cidrs(n.PodCIDRs, "the pods of Node "+n.Name)
	}
	for _, c := range b.serviceCIDRs.objects {
		cidrs(c.CIDRs, "ServiceCIDR "+c.Name)
	}
	for _, p := range b.peers.objects {
		addr(p.PeerAddress, "BGPPeer "+p.Name)
	}
	slices.SortFunc(all, compareOccupied)
	return disjoint(all)
}

// taken returns the addresses that pools do not give out: occupied addresses, and addresses that
// another implementation has written into the status of a Service. An aggregate may contain the
// latter.
func (b *Builder) taken() []Occupied {
	all := b.occupied()
	for name, addrs := range b.foreign {
		for _, a := range addrs {
			all = append(all, Occupied{netipx.IPRangeFrom(a, a),
				"Service " + name.String() + " of another implementation", true})
		}
	}
	slices.SortFunc(all, compareOccupied)
	return disjoint(all)
}

func compareOccupied(x, y Occupied) int {
	return cmp.Or(x.Range.From().Compare(y.Range.From()), y.Range.To().Compare(x.Range.To()), cmp.Compare(x.By, y.By))
}

// disjoint removes from each element of a sorted list what earlier ones contain.
func disjoint(sorted []Occupied) []Occupied {
	out := sorted[:0]
	var end netip.Addr // the last address so far
	for _, o := range sorted {
		from := o.Range.From()
		if end.IsValid() && from.Compare(end) <= 0 {
			if o.Range.To().Compare(end) <= 0 {
				continue
			}
			from = end.Next()
		}
		end = o.Range.To()
		out = append(out, Occupied{netipx.IPRangeFrom(from, end), o.By, o.Foreign})
	}
	return out
}

// occupy returns the pools with their addresses that are in all.
func occupy(pools []*Pool, files map[string]string, all []Occupied) ([]*Pool, []Problem) {
	out := make([]*Pool, 0, len(pools))
	var p []Problem
	for _, pool := range pools {
		if mine := occupiedIn(pool, all); len(mine) != 0 {
			pool = new(*pool)
			pool.Occupied = mine
			p = append(p, occupiedProblems(pool, files[pool.Name])...)
		}
		out = append(out, pool)
	}
	return out, p
}

// occupiedIn returns the parts of all that are in the pool, sorted.
func occupiedIn(pool *Pool, all []Occupied) (mine []Occupied) {
	for _, r := range pool.Ranges {
		for _, o := range startingAt(all, r.From()) {
			if !o.Range.Overlaps(r) {
				break
			}
			mine = append(mine, o.within(r))
		}
	}
	slices.SortFunc(mine, func(a, b Occupied) int { return a.Range.From().Compare(b.Range.From()) })
	return mine
}

// startingAt returns the part of a sorted list whose ranges do not end before a.
func startingAt(sorted []Occupied, a netip.Addr) []Occupied {
	i, _ := slices.BinarySearchFunc(sorted, a, func(o Occupied, a netip.Addr) int { return o.Range.To().Compare(a) })
	return sorted[i:]
}

// within returns the part of o in a range that it overlaps.
func (o Occupied) within(r netipx.IPRange) Occupied {
	o.Range = intersection(o.Range, r)
	return o
}

// occupiedProblems names the first few: the pool of a whole link contains all nodes. Addresses of
// another implementation are no Problem, because both may have the pool while users migrate.
func occupiedProblems(pool *Pool, file string) (p []Problem) {
	const most = 3
	own := slices.DeleteFunc(slices.Clone(pool.Occupied), func(o Occupied) bool { return o.Foreign })
	for i, o := range own {
		if i == most {
			p[i-1].Message += fmt.Sprintf("; so do %d more", len(own)-most)
			break
		}
		p = append(p, Problem{
			Object: Named("AddressPool", pool.Name), File: file, Field: "spec.addresses", Value: rangeText(o.Range),
			Message: fmt.Sprintf("belongs to %s, so no Service gets any of it; leave it out of the pool", o.By),
		})
	}
	return p
}

func rangeText(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	return r.String()
}

// OccupiedIn returns the first part of Occupied in a prefix, zero if there is none.
func (s *Snapshot) OccupiedIn(p netip.Prefix) Occupied {
	r := netipx.RangeOfPrefix(p)
	if rest := startingAt(s.Occupied, r.From()); len(rest) > 0 && rest[0].Range.Overlaps(r) {
		return rest[0].within(r)
	}
	return Occupied{}
}

// Text names the addresses and their user.
func (o Occupied) Text() string { return rangeText(o.Range) + " of " + o.By }

// OccupiedBy returns the user of address a in the cluster, empty if none is known.
func (p *Pool) OccupiedBy(a netip.Addr) string { return p.OccupiedAt(a).By }

// OccupiedAt returns the part of Occupied that contains address a, zero if none does.
func (p *Pool) OccupiedAt(a netip.Addr) Occupied {
	if rest := startingAt(p.Occupied, a); len(rest) > 0 && rest[0].Range.Contains(a) {
		return rest[0]
	}
	return Occupied{}
}
