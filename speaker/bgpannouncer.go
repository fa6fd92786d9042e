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

// bgpAnnouncer announces over BGP. A pass calls it each time; what did not change
// costs the comparison of a few slice headers.
type bgpAnnouncer struct {
	server *bgp.Server
	sent   []bgp.Route // last

	prefixes  []netip.Prefix // as the server returned them last
	allowed   []netip.Prefix // as it was called last
	announced []netip.Prefix // what it answered
}

// Set implements announcer.
func (a *bgpAnnouncer) Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) ([]netip.Prefix, error) {
	want := d.BGP
	if !sortedset.Same(allowed, d.Prefixes) {
		want.Routes = plan.RoutesTo(allowed, d.BGP.Routes, a.sent)
	}
	a.sent = want.Routes
	prefixes, err := a.server.Set(ctx, want)
	err = withoutFaults(err)
	if sortedset.Same(prefixes, a.prefixes) && sortedset.Same(allowed, a.allowed) {
		return a.announced, err
	}
	a.prefixes, a.allowed, a.announced = prefixes, allowed, prefixes
	if slices.Equal(prefixes, allowed) {
		// The same slice, so that whoever compares need not look into it.
		a.announced = allowed
	}
	return a.announced, err
}

// withoutFaults is err without what is wrong with the objects that people wrote: that
// is in the status, and trying again does not mend it.
func withoutFaults(err error) error {
	if faults := (bgp.Faults)(nil); !errors.As(err, &faults) {
		return err
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if _, only := err.(bgp.Faults); only || !ok {
		return nil
	}
	var rest []error
	for _, e := range joined.Unwrap() {
		rest = append(rest, withoutFaults(e))
	}
	return errors.Join(rest...)
}
