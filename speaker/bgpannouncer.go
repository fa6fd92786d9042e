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

// A bgpAnnouncer announces by BGP. If nothing has changed, a call only compares a few slice
// headers.
type bgpAnnouncer struct {
	server *bgp.Server
	sent   []bgp.Route // routes of the last call
	routes []bgp.Route // of the last call's Desired

	prefixes  []netip.Prefix // that the server returned last
	allowed   []netip.Prefix // prefixes of the last call
	announced []netip.Prefix // prefixes that Set returned last
}

// Set implements announcer.
func (a *bgpAnnouncer) Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) ([]netip.Prefix, error) {
	want := d.BGP
	switch {
	case sortedset.Same(allowed, d.Prefixes):
	case sortedset.Same(allowed, a.allowed) && sortedset.Same(d.BGP.Routes, a.routes):
		want.Routes = a.sent
	default:
		want.Routes = plan.RoutesTo(allowed, d.BGP.Routes, a.sent)
	}
	a.sent, a.routes = want.Routes, d.BGP.Routes
	prefixes, err := a.server.Set(ctx, want)
	err = withoutFaults(err)
	if sortedset.Same(prefixes, a.prefixes) && sortedset.Same(allowed, a.allowed) {
		return a.announced, err
	}
	a.prefixes, a.allowed, a.announced = prefixes, allowed, prefixes
	if slices.Equal(prefixes, allowed) {
		// With the same slice, callers need not compare the elements.
		a.announced = allowed
	}
	return a.announced, err
}

// withoutFaults returns err without the faults of objects, which are in the status: a retry
// does not correct them.
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
