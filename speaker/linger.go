package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// A lingeringAddress has left the network and is still forwarded. It is immutable.
type lingeringAddress struct {
	addr     netip.Addr
	until    time.Time
	services []cluster.Name
	// announced by an earlier speaker, if at all
	adopted bool
}

// adopt lets an address linger that an earlier speaker forwarded and may have announced.
func (p *announcePath) adopt(addr netip.Addr, until time.Time) {
	p.lingering = p.lingering.with([]netip.Addr{addr}, func(a netip.Addr) *lingeringAddress {
		return &lingeringAddress{addr: a, until: until, adopted: true}
	})
}

// boundAdopted shortens the time of adopted addresses once the network no longer has the
// earlier speaker's announcements.
func (p *announcePath) boundAdopted(until time.Time) {
	p.lingering = p.lingering.revised(func(l *lingeringAddress) *lingeringAddress {
		if l.adopted && until.Before(l.until) {
			return l.endingAt(until)
		}
		return l
	})
}

// lingerAggregates lets withdrawn aggregates linger. An address that left earlier, while an
// aggregate still attracted its traffic, lingers from now on.
func (p *announcePath) lingerAggregates(gone []netip.Prefix, now time.Time) {
	until := now.Add(p.linger)
	maps.DeleteFunc(p.lingeringAggregates, func(prefix netip.Prefix, _ time.Time) bool {
		_, again := sortedset.Get(p.announcedPrefixes, prefix, sortedset.ComparePrefixes)
		return again
	})
	for _, prefix := range gone {
		if prefix.IsSingleIP() {
			continue
		}
		p.lingeringAggregates[prefix] = until
		p.lingering = p.lingering.revised(func(l *lingeringAddress) *lingeringAddress {
			if prefix.Contains(l.addr) && now.Before(l.until) && l.until.Before(until) {
				return l.endingAt(until)
			}
			return l
		})
	}
}

// stillUsed returns the addresses that must be forwarded although d does not announce them, sorted:
// they are still announced, or clients may not have noticed the withdrawal.
func (p *announcePath) stillUsed(d *plan.Desired, now time.Time) []netip.Addr {
	unannounced := sortedset.Only(p.announcedAddrs, d.Announce, netip.Addr.Compare)
	return sortedset.Union(unannounced, p.lingeringAddrs(now))
}

// lingeringAddrs returns the addresses that still linger, sorted.
func (p *announcePath) lingeringAddrs(now time.Time) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(p.lingering))
	for _, l := range p.lingering {
		if now.Before(l.until) {
			addrs = append(addrs, l.addr)
		}
	}
	return addrs
}

// attractedAggregates returns the aggregates that may attract traffic although d does not
// announce them.
func (p *announcePath) attractedAggregates(d *plan.Desired, now time.Time) (more []netip.Prefix) {
	unwanted := sortedset.Only(p.announcedPrefixes, p.targetOf(d).prefixes, sortedset.ComparePrefixes)
	for _, prefix := range unwanted {
		if !prefix.IsSingleIP() {
			more = append(more, prefix)
		}
	}
	for prefix, until := range p.lingeringAggregates {
		if now.Before(until) {
			more = append(more, prefix)
		}
	}
	return more
}

// dropExpired drops what has lingered long enough, after the kernel was programmed without
// it.
func (p *announcePath) dropExpired(now time.Time) {
	p.lingering = p.lingering.revised(func(l *lingeringAddress) *lingeringAddress {
		if now.Before(l.until) {
			return l
		}
		return nil
	})
	for prefix, until := range p.lingeringAggregates {
		if !now.Before(until) {
			delete(p.lingeringAggregates, prefix)
		}
	}
}

// next returns when lingering or a delayed withdrawal ends first after a time; zero if none does.
func (p *announcePath) next(after time.Time) (first time.Time) {
	for _, l := range p.lingering {
		first = earliest(after, first, l.until)
	}
	for _, until := range p.lingeringAggregates {
		first = earliest(after, first, until)
	}
	for _, until := range p.delayed {
		first = earliest(after, first, until)
	}
	return first
}

// A lingeringSet is sorted by address. It is replaced, and not modified: published results have it
// too.
type lingeringSet []*lingeringAddress

func compareLingering(l *lingeringAddress, a netip.Addr) int { return l.addr.Compare(a) }

// endingAt returns the same with another time.
func (l *lingeringAddress) endingAt(until time.Time) *lingeringAddress {
	other := *l
	other.until = until
	return &other
}

// find returns an address of the set; nil if it does not linger.
func (s lingeringSet) find(a netip.Addr) *lingeringAddress {
	if i, found := slices.BinarySearchFunc(s, a, compareLingering); found {
		return s[i]
	}
	return nil
}

// with returns the set with these addresses, which are sorted, in addition or instead.
func (s lingeringSet) with(addrs []netip.Addr, linger func(netip.Addr) *lingeringAddress) lingeringSet {
	return sortedset.Patch(s, addrs, compareLingering, func(a, b *lingeringAddress) bool { return a == b },
		func(i int) (*lingeringAddress, bool) {
			return linger(addrs[i]), true
		})
}

// without returns the set without these addresses.
func (s lingeringSet) without(addrs sortedset.Set[netip.Addr]) lingeringSet {
	return s.revised(func(l *lingeringAddress) *lingeringAddress {
		if sortedset.HasAddr(addrs, l.addr) {
			return nil
		}
		return l
	})
}

// revised returns what f returns for each element, without nil; the set itself if nothing differs.
func (s lingeringSet) revised(f func(*lingeringAddress) *lingeringAddress) lingeringSet {
	var out lingeringSet
	for i, l := range s {
		now := f(l)
		if out == nil && now != l {
			out = append(make(lingeringSet, 0, len(s)), s[:i]...)
		}
		if out != nil && now != nil {
			out = append(out, now)
		}
	}
	if out == nil {
		return s
	}
	return out
}
