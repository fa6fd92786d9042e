package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// parseAnnounce returns the empty value, which announces nothing, for an unknown word.
func parseAnnounce(field string, s v1alpha1.Announce, p *Problems) Announce {
	switch a := Announce(s); a {
	case AnnounceBGP, AnnounceL2, AnnounceAdvertised:
		return a
	}
	what := "must be"
	if s == "" {
		what = "is missing; set it to"
	}
	p.Add(field, string(s), what+" BGP (to every router that selects the node), L2 (by ARP and NDP) or Advertised "+
		"(as BGPAdvertisements and L2Advertisements say)")
	return ""
}

// parsePool returns the pool without unreadable addresses, and nil for a pool that does not say how
// it is announced.
func parsePool(o *v1alpha1.AddressPool) (*Pool, Problems) {
	var p Problems
	pool := &Pool{
		Name:    o.Name,
		Created: o.CreationTimestamp.UTC(),
		// For an unknown word, OnRequest is the safest value: it assigns the fewest addresses.
		Allocation: Allocation(parseWord("spec.allocation", cmp.Or(o.Spec.Allocation, v1alpha1.Automatic),
			v1alpha1.OnRequest, &p, v1alpha1.Automatic, v1alpha1.OnRequest, v1alpha1.Drained)),
		AvoidBuggyIPs: o.Spec.AvoidBuggyIPs,
		Priority:      o.Spec.Priority,
	}
	parseEligibility(&o.Spec, pool, &p)
	parsePermissions(&o.Spec, pool, &p)
	if len(o.Spec.Addresses) == 0 {
		p.Add("spec.addresses", "", "missing; name at least one CIDR or range, such as 192.0.2.0/26")
	}
	p.bound("spec.addresses", len(o.Spec.Addresses), 256)
	for i, s := range o.Spec.Addresses {
		field := fmt.Sprintf("spec.addresses[%d]", i)
		r, err := parseRange(s)
		if err != nil {
			p.Add(field, s, err.Error())
			continue
		}
		if slices.Contains(o.Spec.Addresses[:i], s) {
			p.Add(field, s, "an entry is in this pool already; remove one of the two")
		} else if before := slices.IndexFunc(pool.Ranges, r.Overlaps); before >= 0 {
			p.Add(field, s, fmt.Sprintf("contains addresses of %s, which is in this pool already; remove "+
				"them from one of the two",
				pool.Ranges[before]))
		}
		pool.Ranges = append(pool.Ranges, without(r, pool.Ranges)...)
	}
	if pool.Announce = parseAnnounce("spec.announce", o.Spec.Announce, &p); pool.Announce == "" {
		return nil, p
	}
	if len(pool.Ranges) == 0 {
		return nil, p
	}
	return pool, p
}

// without returns r without the ranges of others.
func without(r netipx.IPRange, others []netipx.IPRange) []netipx.IPRange {
	var b netipx.IPSetBuilder
	b.AddRange(r)
	for _, o := range others {
		b.RemoveRange(o)
	}
	return ipSet(&b).Ranges()
}

// admit returns the pools, sorted by name and without overlaps. Addresses of two pools belong to
// the older one, by creationTimestamp and then by name, because Services may already have some. The
// other pool keeps the rest of its addresses, for the same reason. files are where the pools were
// read from.
func admit(pools map[string]*Pool, files map[string]string) ([]*Pool, []Problem) {
	var admitted []*Pool
	var p []Problem
	byAge := slices.SortedFunc(maps.Values(pools), func(a, b *Pool) int {
		return cmp.Or(CompareAge(a.Created, b.Created), cmp.Compare(a.Name, b.Name))
	})
	for _, pool := range byAge {
		if older, both := overlap(pool, admitted); older != nil {
			p = append(p, overlapping(pool, files[pool.Name], older, both))
			pool = pool.without(admitted)
		}
		admitted = append(admitted, pool)
	}
	slices.SortFunc(admitted, func(a, b *Pool) int { return cmp.Compare(a.Name, b.Name) })
	return admitted, p
}

func overlapping(pool *Pool, file string, older *Pool, both netipx.IPRange) Problem {
	why := "is older"
	if CompareAge(older.Created, pool.Created) == 0 {
		why = "comes first by name"
	}
	return Problem{
		Object: Named("AddressPool", pool.Name),
		File:   file,
		Field:  "spec.addresses",
		Value:  both.String(),
		Message: fmt.Sprintf("belongs to AddressPool %s too, which %s and gives them out; remove these "+
			"addresses from one of the two",
			older.Name, why),
	}
}

// without returns the pool without the addresses of others.
func (p *Pool) without(others []*Pool) *Pool {
	var taken []netipx.IPRange
	for _, other := range others {
		taken = append(taken, other.Ranges...)
	}
	rest := *p
	rest.Ranges, rest.Lost = nil, nil
	for _, r := range p.Ranges {
		rest.Ranges = append(rest.Ranges, without(r, taken)...)
		for _, o := range taken {
			if r.Overlaps(o) {
				rest.Lost = append(rest.Lost, intersection(r, o))
			}
		}
	}
	return &rest
}

// overlap returns the first of pools that shares addresses with p, and these addresses.
func overlap(p *Pool, pools []*Pool) (*Pool, netipx.IPRange) {
	for _, other := range pools {
		for _, r := range p.Ranges {
			for _, o := range other.Ranges {
				if r.Overlaps(o) {
					return other, intersection(r, o)
				}
			}
		}
	}
	return nil, netipx.IPRange{}
}

func intersection(a, b netipx.IPRange) netipx.IPRange {
	from, to := a.From(), a.To()
	if from.Less(b.From()) {
		from = b.From()
	}
	if b.To().Less(to) {
		to = b.To()
	}
	return netipx.IPRangeFrom(from, to)
}

// CompareAge sorts the older one first. A zero time, of an object without an API server, sorts
// last: its age is unknown.
func CompareAge(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}
