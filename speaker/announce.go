package speaker

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// overBGP announces over BGP. A pass calls it each time; what did not change
// costs the comparison of a few slice headers.
type overBGP struct {
	server *bgp.Server
	sent   []bgp.Route // last

	prefixes []netip.Prefix // as the server returned them last
	allowed  []netip.Prefix // as it was called last
	told     []netip.Prefix // what it answered
}

// Set implements announcer.
func (b *overBGP) Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) ([]netip.Prefix, error) {
	want := d.BGP
	if !sortedset.Same(allowed, d.Prefixes) {
		want.Routes = plan.RoutesTo(allowed, d.BGP.Routes, b.sent)
	}
	b.sent = want.Routes
	prefixes, err := b.server.Set(ctx, want)
	err = undone(err)
	if sortedset.Same(prefixes, b.prefixes) && sortedset.Same(allowed, b.allowed) {
		return b.told, err
	}
	b.prefixes, b.allowed, b.told = prefixes, allowed, prefixes
	if slices.Equal(prefixes, allowed) {
		// The same slice, so that whoever compares need not look into it.
		b.told = allowed
	}
	return b.told, err
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
