package speaker

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/bgp"
)

// overBGP announces over BGP. A pass calls it each time; what did not change
// costs the comparison of a few slice headers.
type overBGP struct {
	server *bgp.Server

	prefixes []netip.Prefix // as the server returned them last
	allowed  []netip.Addr   // as it was called last
	have     []netip.Addr   // what it answered
}

// Set implements announcer.
func (b *overBGP) Set(ctx context.Context, d *Desired, allowed []netip.Addr) ([]netip.Addr, error) {
	want := d.BGP
	if !same(allowed, d.Announce) {
		want.Routes = only(d.BGP.Routes, allowed)
	}
	prefixes, err := b.server.Set(ctx, want)
	err = undone(err)
	if same(prefixes, b.prefixes) && same(allowed, b.allowed) {
		return b.have, err
	}
	b.prefixes, b.allowed, b.have = prefixes, allowed, hosts(prefixes)
	if slices.Equal(b.have, allowed) {
		// The same slice, so that whoever compares need not look into it.
		b.have = allowed
	}
	return b.have, err
}

// undone is err without what is wrong with the objects that people wrote: that
// is in the status, and trying again does not mend it.
func undone(err error) error {
	if faults := (bgp.Faults)(nil); !errors.As(err, &faults) {
		return err
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if _, only := err.(bgp.Faults); only || !ok {
		return nil
	}
	var rest []error
	for _, e := range joined.Unwrap() {
		rest = append(rest, undone(e))
	}
	return errors.Join(rest...)
}

// only returns the routes to the addresses in allowed; both are sorted.
func only(routes []bgp.Route, allowed []netip.Addr) []bgp.Route {
	var out []bgp.Route
	for _, r := range routes {
		if _, ok := slices.BinarySearchFunc(allowed, r.Prefix.Addr(), netip.Addr.Compare); ok {
			out = append(out, r)
		}
	}
	return out
}

// hosts returns the addresses of host routes, sorted.
func hosts(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.Addr()
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}
