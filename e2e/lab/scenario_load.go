package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/observer"
)

// The second part of the scenario: changes under a steady rate of new connections.

// A Moment is an action at a time since the start of the load.
type Moment struct {
	At time.Duration
	Do func() error
}

// UnderLoad serves a Service whose only endpoint is p11 under Local, and runs a schedule
// under load. It returns the address, the start of the load and its report.
func (s *StepRun) UnderLoad(ctx context.Context, svc Service, until time.Duration,
	schedule func(vip netip.Addr) []Moment) (vip netip.Addr, began time.Time, r Report, err error) {
	vip, err = s.Serve(ctx, svc, "n1")
	defer s.Drop(ctx, &err, svc.Name, vip)
	if err != nil {
		return vip, began, r, err
	}
	began, r, err = s.LoadWhile(ctx, vip, until, schedule(vip)...)
	return vip, began, r, err
}

// LoadWhile runs a schedule while it sends requests to an address. It returns the start of
// the load and its report.
func (s *StepRun) LoadWhile(ctx context.Context, vip netip.Addr, until time.Duration,
	schedule ...Moment) (began time.Time, r Report, err error) {
	began = time.Now()
	load := s.Client.StartLoad(ctx, netip.AddrPortFrom(vip, 80))
	for _, m := range append(schedule, Moment{until, func() error { return nil }}) {
		if err = pause(ctx, time.Until(began.Add(m.At))); err != nil {
			break
		}
		if err = m.Do(); err != nil {
			break
		}
	}
	return began, load.Stop(), err
}

// NoneLost returns an error if requests were lost, except requests that the router
// interrupted by moving them. The report counts the interrupted ones.
func (l *Lab) NoneLost(r Report, vip netip.Addr, began time.Time) (report string, err error) {
	report, rest := l.withoutInterrupted(r, vip, began)
	if len(rest) > 0 {
		r.Lost = rest
		err = fmt.Errorf("%d requests lost: want none\n%s", len(rest), r.Losses(began))
	}
	return report, err
}

// withoutInterrupted returns the report as text, and the losses that no route change
// explains.
func (l *Lab) withoutInterrupted(r Report, vip netip.Addr, began time.Time) (report string, rest []Loss) {
	interrupted, rest := r.splitInterrupted(l.Observer.RouteChanges(vip, began, time.Now()))
	report = r.String()
	if len(interrupted) > 0 {
		report += fmt.Sprintf("\n%d of the lost requests were in flight when the router moved them to another node",
			len(interrupted))
	}
	return report, rest
}

func orderlyMove(ctx context.Context, s *StepRun) error {
	svc := Service{Name: "mover", Policy: localTraffic, Endpoints: At("p11")}
	put := func(e ...Endpoint) func() error {
		return func() error { svc.Endpoints = e; return s.Cluster.Put(svc) }
	}
	begun, ready := Endpoint{"p11", Terminating}, Endpoint{"p21", Ready}
	var left time.Time
	vip, began, r, err := s.UnderLoad(ctx, svc, 7*time.Second, func(vip netip.Addr) []Moment {
		return []Moment{
			{1500 * time.Millisecond, put(Endpoint{Pod: "p11"}, ready)},
			{3000 * time.Millisecond, func() error { left = time.Now(); return put(begun, ready)() }},
			{5000 * time.Millisecond, func() error {
				// Pods have some 30 s by default, in which all routers receive the change.
				err := s.Router.AwaitNextHops(ctx, Settle, vip, "n2")
				return errors.Join(err, s.Pod("p11").Stop(ctx), put(ready)())
			}},
		}
	})
	if err = errors.Join(err, s.StartPod(context.WithoutCancel(ctx), "p11")); err != nil {
		return err
	}
	s.Action("%d new connections a second for 7 s\n"+
		"1.5 s: p21 on n2 is ready too; 3.0 s: p11 on n1 is terminating, and serves; 5.0 s: p11 is removed", Rate)
	s.Observed("tor1's kernel sent %s to n2 alone %s after p11 began to terminate", vip,
		ms(s.Observer.RouteVia(vip, left, "n2").Sub(left)))
	report, err := s.NoneLost(r, vip, began)
	s.Observed("%s", report)
	return errors.Join(err, wantBoth(r))
}

// wantBoth checks that the endpoint did move.
func wantBoth(r Report) error {
	if r.Pods["p11"] == 0 || r.Pods["p21"] == 0 {
		return errors.New("want answers of both p11 and p21")
	}
	return nil
}

func abruptMove(ctx context.Context, s *StepRun) (err error) {
	svc := Service{Name: "jumper", Policy: localTraffic, Endpoints: At("p11")}
	neighbour := Service{Name: "neighbour", Policy: localTraffic, Endpoints: At("p12")}
	neighbourVIP, err := s.Serve(ctx, neighbour, "n1")
	defer s.Drop(ctx, &err, neighbour.Name, neighbourVIP)
	if err != nil {
		return err
	}
	var killed time.Time
	vip, began, r, err := s.UnderLoad(ctx, svc, 5*time.Second, func(netip.Addr) []Moment {
		return []Moment{{1500 * time.Millisecond, func() error {
			neighbour.Endpoints, svc.Endpoints = At("p12", "p22"), At("p21")
			if err := s.Cluster.Put(neighbour); err != nil {
				return err
			}
			killed = time.Now()
			s.Pod("p11").Kill()
			return s.Cluster.Put(svc)
		}}}
	})
	if err = errors.Join(err, s.StartPod(context.WithoutCancel(ctx), "p11")); err != nil {
		return err
	}
	changed := s.Observer.RuleSince("n1", vip, killed)
	s.Action("another Service changed; at once the pod p11 on n1 was killed, and one update replaced it by p21 on n2")
	report, rest := s.withoutInterrupted(r, vip, began)
	r.Lost = rest
	s.Observed("%s\nafter the kill, n1 had new rules within %s, and tor1's kernel the route via n2 within %s",
		report, ms(changed.Sub(killed)), ms(s.Observer.RouteVia(vip, killed, "n2").Sub(killed)))
	return errors.Join(wantBoth(r), onlyInFlight(r, began, changed, "n1's rules had changed"))
}

// onlyInFlight checks that all lost requests began before a time.
func onlyInFlight(r Report, began, before time.Time, when string) error {
	if before.IsZero() {
		return fmt.Errorf("never seen: %s", when)
	}
	var late int
	for _, l := range r.Lost {
		if l.Begin.After(before) {
			late++
		}
	}
	if late > 0 {
		return fmt.Errorf("%d of %d lost requests began after %s, %+.3f s:\n%s", late, len(r.Lost), when,
			before.Sub(began).Seconds(), r.Losses(began))
	}
	return nil
}

func killSpeaker(ctx context.Context, s *StepRun) error {
	return s.restartUnderLoad(ctx, "survivor", "SIGKILL", s.Speaker("n1").Kill)
}

func upgradeSpeaker(ctx context.Context, s *StepRun) error {
	return s.restartUnderLoad(ctx, "upgraded", "SIGTERM", s.Speaker("n1").Terminate)
}

// restartUnderLoad ends the speaker of the node that carries all requests, and starts it a
// second later.
func (s *StepRun) restartUnderLoad(ctx context.Context, name, how string, end func() error) error {
	svc := Service{Name: name, Policy: localTraffic, Endpoints: At("p11")}
	var ended time.Time
	var back time.Duration
	vip, began, r, err := s.UnderLoad(ctx, svc, 5*time.Second, func(netip.Addr) []Moment {
		return []Moment{
			{500 * time.Millisecond, func() error { ended = time.Now(); return end() }},
			{1500 * time.Millisecond, func() error {
				started := time.Now()
				err := s.StartSpeakers(ctx, "n1")
				back = time.Since(started)
				return err
			}},
		}
	})
	if err != nil {
		return errors.Join(err, s.StartSpeakers(context.WithoutCancel(ctx), "n1"))
	}
	// Deleting the Service changes the route too: count before that.
	changes := len(s.Observer.RouteChanges(vip, ended, began.Add(5*time.Second)))
	s.Action("%d new connections a second for 5 s, all through n1; its speaker got %s at 0.5 s and "+
		"was started at 1.5 s", Rate, how)
	s.Observed("the session was up again %s after the start; changes of the route in tor1's kernel: %d", ms(back),
		changes)
	if changes > 0 {
		err = fmt.Errorf("the route changed %d times: want it untouched", changes)
	}
	report, lost := s.NoneLost(r, vip, began)
	s.Observed("%s", report)
	return errors.Join(err, lost)
}

// repairBound bounds the time to restore a deleted table.
const repairBound = 100 * time.Millisecond

func flushTable(ctx context.Context, s *StepRun) error {
	svc := Service{Name: "flushed", Policy: localTraffic, Endpoints: At("p11")}
	var deleted time.Time
	vip, began, r, err := s.UnderLoad(ctx, svc, 4*time.Second, func(netip.Addr) []Moment {
		return []Moment{{time.Second, func() error {
			deleted = time.Now()
			_, err := s.Namespace("n1").Run(ctx, "nft", "delete", "table", "inet", observer.Table)
			return err
		}}}
	})
	if err != nil {
		return err
	}
	outage, err := s.Observer.Outage("n1", deleted)
	if err != nil {
		return err
	}
	bound := s.within(repairBound)
	restored := s.Observer.RuleSince("n1", vip, deleted)
	s.Action("%d new connections a second for 4 s, all through n1; at 1 s: nft delete table inet %s", Rate,
		observer.Table)
	s.Observed("%s\nthe table was missing for %s (bound: %s)", r, ms(outage), bound)
	if outage > bound {
		err = fmt.Errorf("repaired in %s: want at most %s", ms(outage), bound)
	}
	return errors.Join(err, onlyInFlight(r, began, restored, "the table was restored"))
}
