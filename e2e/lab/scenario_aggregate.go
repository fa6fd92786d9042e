package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// advertisement announces the lab's pool as one prefix.
const advertisement = `apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: lan}
spec: {pools: [lan], aggregationLength: 23}
`

// aggregate is that prefix.
var aggregate = netip.MustParsePrefix("192.0.2.0/23")

// firstAnswerWithAggregate shows that a router's delay of new routes does not affect a
// Service whose address is part of an existing route.
func firstAnswerWithAggregate(ctx context.Context, s *StepRun) (err error) {
	first := Service{Name: "first", Endpoints: At("p11")}
	vip, err := s.Serve(ctx, first, NodeNames...)
	defer s.Drop(ctx, &err, first.Name, vip)
	if err != nil {
		return err
	}
	defer s.Drop(ctx, &err, "advertisement")
	if err := s.Cluster.PutText("advertisement", advertisement); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Cluster.Announce(s.Objects, "BGP")) }()
	if err := s.Cluster.Announce(s.Objects, "Advertised"); err != nil {
		return err
	}
	if err := s.Router.AwaitVia(ctx, Settle, aggregate, NodeNames...); err != nil {
		return err
	}
	if err := s.Router.AwaitNextHops(ctx, Settle, vip); err != nil {
		return err
	}
	const repeats = 15
	var all []time.Duration
	for i := range repeats {
		took, err := s.measureAggregated(ctx, fmt.Sprintf("part-%d", i),
			netip.AddrFrom4([4]byte{192, 0, 2, byte(130 + i)}))
		if err != nil {
			return err
		}
		all = append(all, took)
	}
	slices.Sort(all)
	bound := s.within(firstAnswerBound)
	s.Action("the pool had announce Advertised, and a BGPAdvertisement announced it as %s; %d times a new Service "+
		"(Cluster) was created", aggregate, repeats)
	s.Observed("no route changed in %s; first answer after %s in the median, %s at worst (bound: %s)",
		s.Router.software, ms(all[repeats/2]), ms(all[repeats-1]), bound)
	if all[repeats/2] >= bound {
		return fmt.Errorf("median %s: want less than %s", ms(all[repeats/2]), bound)
	}
	return nil
}

// measureAggregated returns the time from the creation of a Service to the first answer,
// without a new route at the router.
func (s *StepRun) measureAggregated(ctx context.Context, name string, vip netip.Addr) (took time.Duration, err error) {
	defer s.Drop(ctx, &err, name, vip)
	began, at, err := s.putAndAsk(ctx, Service{Name: name, Ask: []netip.Addr{vip}, Endpoints: At("p11")})
	if err != nil {
		return 0, err
	}
	if changes := s.Observer.RouteChanges(vip, began, time.Now()); len(changes) != 0 {
		return 0, fmt.Errorf("the router has a route to %s: want only %s", vip, aggregate)
	}
	return at.Sub(began), nil
}
