package speaker

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// targetOf is the target of addresses with routes of their own.
func targetOf(addrs ...netip.Addr) target {
	return target{sortedset.PrefixSet(sortedset.HostPrefixes(addrs)...), sortedset.AddrSet(addrs...)}
}

// Of addresses that are still prepared, what is announced stays, and nothing new is.
func TestNothingNewOfUnpreparedAddresses(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
		netip.MustParseAddr("192.0.2.3")}
	p := newBGPPath(nil, testLinger)
	kept := targetOf(addrs[:1]...)
	p.announcedAddrs, p.announcedPrefixes = kept.addrs, kept.prefixes
	got := p.withoutNew(targetOf(addrs...), sortedset.HostPrefixes(addrs[:2]))
	want := targetOf(addrs[0], addrs[2])
	if !slices.Equal(got.addrs.Slice(), want.addrs.Slice()) ||
		!slices.Equal(got.prefixes.Slice(), want.prefixes.Slice()) {
		t.Errorf("%v by %v, want %v", got.addrs.Slice(), got.prefixes.Slice(), want.addrs.Slice())
	}
}

// keepsAggregates is an announcer that withdraws routes of single addresses only.
type keepsAggregates struct{ aggregates []netip.Prefix }

func (k keepsAggregates) Set(_ context.Context, _ *plan.Desired,
	allowed sortedset.Set[netip.Prefix]) (sortedset.Set[netip.Prefix], error) {
	return sortedset.With(allowed, k.aggregates, sortedset.ComparePrefixes), nil
}

// An aggregate that is replaced by single routes attracts traffic to all its addresses until it
// is withdrawn: also to an address that is not wanted and has lost its own route.
func TestUnwantedAggregateKeepsItsAddressesAnnounced(t *testing.T) {
	aggregate, wanted, unwanted := netip.MustParsePrefix("192.0.2.0/29"), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("192.0.2.4")
	both := []netip.Addr{wanted, unwanted}
	single := targetOf(wanted)
	for name, tt := range map[string]struct {
		stuck     []netip.Prefix // aggregates that the announcer keeps
		grows     bool           // the pass gets to its last step
		announced []netip.Addr
		lingers   bool
	}{
		"the kernel fails, and the aggregate stays": {nil, false, both, false},
		"its withdrawal fails":                      {[]netip.Prefix{aggregate}, true, both, false},
		"it is withdrawn":                           {nil, true, both[:1], true},
	} {
		path := newBGPPath(keepsAggregates{tt.stuck}, testLinger)
		path.announcedAddrs, path.announcedPrefixes = sortedset.AddrSet(both...),
			sortedset.PrefixSet(aggregate, sortedset.HostPrefix(unwanted))
		p, d := newPass(nil, slog.New(slog.DiscardHandler), path), &plan.Desired{}
		if err := p.shrink(t.Context(), path, d, single); err != nil {
			t.Fatal(err)
		}
		if tt.grows {
			if err := p.announce(t.Context(), path, d, single); err != nil {
				t.Fatal(err)
			}
		}
		if lingers := path.lingering.find(unwanted) != nil; lingers != tt.lingers ||
			!slices.Equal(path.announcedAddrs.Slice(), tt.announced) {
			t.Errorf("%s: %v are announced, want %v; %s lingers: %v, want %v", name, path.announcedAddrs.Slice(),
				tt.announced, unwanted, lingers, tt.lingers)
		}
		if tt.lingers {
			continue
		}
		// Wanted again, it needs the aggregate until it has a route of its own.
		if stay, _ := path.remaining(targetOf(both...)); !slices.Contains(stay.prefixes.Slice(), aggregate) {
			t.Errorf("%s: wanted again, %s loses %s first", name, unwanted, aggregate)
		}
	}
}
