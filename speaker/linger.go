package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// A lingeringAddress has left the network and is still forwarded.
type lingeringAddress struct {
	until    time.Time
	services []cluster.Name
	// announced by an earlier speaker, if at all
	adopted bool
}

// adopt lets an address linger that an earlier speaker forwarded and may have announced.
func (p *announcePath) adopt(addr netip.Addr, until time.Time) {
	p.lingering[addr] = lingeringAddress{until: until, adopted: true}
}

// boundAdopted shortens the time of adopted addresses once the network no longer has the
// earlier speaker's announcements.
func (p *announcePath) boundAdopted(until time.Time) {
	for a, d := range p.lingering {
		if d.adopted && until.Before(d.until) {
			d.until = until
			p.lingering[a] = d
		}
	}
}

// lingerAggregates lets withdrawn aggregates linger. An address that left earlier, while an
// aggregate still attracted its traffic, lingers from now on.
func (p *announcePath) lingerAggregates(gone []netip.Prefix, now time.Time) {
	until := now.Add(p.linger)
	for _, prefix := range p.announcedPrefixes {
		delete(p.lingeringAggregates, prefix)
	}
	for _, prefix := range gone {
		if prefix.IsSingleIP() {
			continue
		}
		p.lingeringAggregates[prefix] = until
		for a, left := range p.lingering {
			if prefix.Contains(a) && now.Before(left.until) && left.until.Before(until) {
				left.until = until
				p.lingering[a] = left
			}
		}
	}
}

// lingeringAddrs returns the addresses that still linger.
func (p *announcePath) lingeringAddrs(now time.Time) (addrs []netip.Addr) {
	for a, left := range p.lingering {
		if now.Before(left.until) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// attractedAggregates returns the aggregates that may attract traffic although d does not
// announce them.
func (p *announcePath) attractedAggregates(d *plan.Desired, now time.Time) (more []netip.Prefix) {
	for _, prefix := range sortedset.MinusFunc(p.announcedPrefixes, p.targetOf(d).prefixes, sortedset.ComparePrefixes) {
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
	for a, left := range p.lingering {
		if !now.Before(left.until) {
			delete(p.lingering, a)
		}
	}
	for prefix, until := range p.lingeringAggregates {
		if !now.Before(until) {
			delete(p.lingeringAggregates, prefix)
		}
	}
}

// deadlines returns when lingering and delayed withdrawals end.
func (p *announcePath) deadlines() (times []time.Time) {
	for _, left := range p.lingering {
		times = append(times, left.until)
	}
	times = slices.AppendSeq(times, maps.Values(p.lingeringAggregates))
	return slices.AppendSeq(times, maps.Values(p.withdrawAt))
}
