package cluster

import (
	"fmt"

	"go4.org/netipx"
)

// aggregates returns Problems for BGPAdvertisements whose aggregates contain addresses that the
// cluster itself uses, or addresses that are in none of their pools. Occupied is sorted.
func aggregates(s *Snapshot, occupied []Occupied) (list []Problem) {
	for _, a := range s.Advertisements {
		for _, f := range []aggregation{{a, "spec.aggregationLength", a.Length4, 32},
			{a, "spec.aggregationLengthV6", a.Length6, 128}} {
			if f.length < f.host {
				list = append(list, f.check(s.Pools, occupied)...)
			}
		}
	}
	return list
}

// Aggregates reports whether the advertisement announces any address by an aggregate.
func (a *Advertisement) Aggregates() bool { return a.Length4 < 32 || a.Length6 < 128 }

// An aggregation is how an advertisement aggregates the addresses of one family.
type aggregation struct {
	*Advertisement
	field        string
	length, host int
}

// check reports only a refusal, if there is one: an aggregate that is not announced is not too
// wide.
func (a aggregation) check(pools []*Pool, occupied []Occupied) (list []Problem) {
	covered, outside := a.cover(pools)
	if p, refused := a.refused(covered, occupied); refused {
		return []Problem{p}
	}
	if first := outside.Ranges(); len(first) != 0 {
		outside := first[0].From()
		list = append(list, a.problem(AggregateTooWide, true, fmt.Sprintf(
			"announces %s, which contains addresses of no AddressPool that the advertisement selects, the first of "+
				"them %s; set it to a larger number, or add the addresses to a pool", a.Prefix(outside), outside)))
	}
	return list
}

// cover returns the addresses of all possible aggregates, and among them the addresses of no pool.
// The aggregates of a range are adjacent, so only its ends matter: there may be too many to
// enumerate.
func (a aggregation) cover(pools []*Pool) (covered, outside *netipx.IPSet) {
	var all, rest netipx.IPSetBuilder
	var own []netipx.IPRange
	for _, p := range pools {
		if p.Announce != AnnounceAdvertised || !a.SelectsPool(p.Name) {
			continue
		}
		for _, r := range p.Ranges {
			if r.From().BitLen() == a.host {
				all.AddRange(netipx.IPRangeFrom(a.Prefix(r.From()).Addr(), netipx.PrefixLastIP(a.Prefix(r.To()))))
				own = append(own, r)
			}
		}
	}
	covered = ipSet(&all)
	rest.AddSet(covered)
	for _, r := range own {
		rest.RemoveRange(r)
	}
	return covered, ipSet(&rest)
}

// ipSet cannot fail: the only errors are invalid ranges, and these were parsed.
func ipSet(b *netipx.IPSetBuilder) *netipx.IPSet {
	set, err := b.IPSet()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return set
}

// refused returns the first aggregate that contains an address of the cluster itself. Traffic to
// that address would be attracted, and rejected.
func (a aggregation) refused(covered *netipx.IPSet, occupied []Occupied) (p Problem, refused bool) {
	for _, o := range occupied {
		for _, r := range covered.Ranges() {
			if !r.Overlaps(o.Range) {
				continue
			}
			both := intersection(r, o.Range)
			prefix := a.Prefix(both.From())
			both = intersection(both, netipx.RangeOfPrefix(prefix))
			return a.problem(AggregateRefused, false, fmt.Sprintf(
				"does not announce %s, which contains %s of %s: addresses in it are announced one by one; set "+
					"it to a larger number", prefix, rangeText(both), o.By)), true
		}
	}
	return Problem{}, false
}

func (a aggregation) problem(code Code, warning bool, message string) Problem {
	return Problem{
		Object: Named("BGPAdvertisement", a.Name), Field: a.field, Value: fmt.Sprint(a.length), Code: code,
		Warning: warning, Message: message,
	}
}
