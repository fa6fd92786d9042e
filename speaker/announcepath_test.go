package speaker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// Of an address whose decision is outdated, what is announced stays, and nothing new is.
func TestNothingNewOfOutdatedAddresses(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
	p := newBGPPath(nil, testLinger)
	p.announcedAddrs, p.announcedPrefixes = addrs[:1], sortedset.HostPrefixes(addrs[:1])
	got := p.withoutNew(target{sortedset.HostPrefixes(addrs), addrs}, nil, addrs[:2])
	want := []netip.Addr{addrs[0], addrs[2]}
	if !slices.Equal(got.addrs, want) || !slices.Equal(got.prefixes, sortedset.HostPrefixes(want)) {
		t.Errorf("%v by %v, want %v", got.addrs, got.prefixes, want)
	}
}
