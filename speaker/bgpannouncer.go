package speaker

import (
	"context"
	"errors"
	"net/netip"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// A bgpAnnouncer announces by BGP. If nothing has changed, a call only compares a few pointers.
type bgpAnnouncer struct {
	server *bgp.Server
	sent   bgp.Routes // routes of the last call
	routes bgp.Routes // of the last call's Desired

	prefixes  sortedset.Set[netip.Prefix] // that the server returned last
	allowed   sortedset.Set[netip.Prefix] // prefixes of the last call
	announced sortedset.Set[netip.Prefix] // prefixes that Set returned last
}

// Set implements announcer.
func (a *bgpAnnouncer) Set(ctx context.Context, d *plan.Desired,
	allowed sortedset.Set[netip.Prefix]) (sortedset.Set[netip.Prefix], error) {
	want := d.BGP
	switch {
	case allowed.Same(d.Prefixes):
	case allowed.Same(a.allowed) && d.BGP.Routes.Same(a.routes):
		want.Routes = a.sent
	default:
		want.Routes = d.RoutesTo(allowed, a.sent)
	}
	a.sent, a.routes = want.Routes, d.BGP.Routes
	prefixes, err := a.server.Set(ctx, want)
	err = withoutFaults(err)
	if prefixes.Same(a.prefixes) && allowed.Same(a.allowed) {
		return a.announced, err
	}
	// With the same set, callers need not compare the elements.
	a.announced = sortedset.KeepSet(allowed, prefixes, sortedset.ComparePrefixes)
	a.prefixes, a.allowed = prefixes, allowed
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
