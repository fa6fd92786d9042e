package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The first part of the scenario: a Service works.

const (
	clusterTraffic = corev1.ServiceExternalTrafficPolicyCluster
	localTraffic   = corev1.ServiceExternalTrafficPolicyLocal
)

func firstService(ctx context.Context, s *StepRun) (err error) {
	svc := Service{Name: "hello", Policy: localTraffic, Endpoints: At("p11")}
	began := time.Now()
	vip, err := s.Serve(ctx, svc, "n1")
	defer s.Drop(ctx, &err, svc.Name, vip)
	if err != nil {
		return err
	}
	a, err := s.Client.Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(vip, 80))
	if err != nil {
		return err
	}
	l, err := s.latency(ctx, vip, began, "n1")
	if err != nil {
		return err
	}
	s.Action("a Service (Local) and its EndpointSlice (pod p11 on n1) were created")
	s.Observed("address %s on all three nodes, by `fanfare status`\n"+
		"after %s: rules in the kernel of n1\n"+
		"after %s: n1's BGP UPDATE at tor1\n"+
		"after %s: route via n1 in the kernel of tor1\n"+
		"http://%s answered by %s, to %s",
		vip, ms(l.rules), ms(l.update), ms(l.route), vip, a.Pod, a.Saw.Addr())
	return nil
}

// A latency holds the times from the update of the file to each effect.
type latency struct{ rules, update, route, answer time.Duration }

func (l latency) untilRules() time.Duration  { return l.rules }
func (l latency) untilUpdate() time.Duration { return l.update }
func (l latency) untilRoute() time.Duration  { return l.route }
func (l latency) untilAnswer() time.Duration { return l.answer }

// insideRouter is the time inside the router; withoutRouter is the time to the answer
// without it.
func (l latency) insideRouter() time.Duration  { return l.route - l.update }
func (l latency) withoutRouter() time.Duration { return l.answer - l.insideRouter() }

// latency waits until the observer, which may lag behind the client, has recorded an
// address in the rules of its only node, announced and routed.
func (s *StepRun) latency(ctx context.Context, vip netip.Addr, began time.Time, node string) (l latency, err error) {
	err = Await(ctx, Settle, "the observer's events of "+vip.String(), func() error {
		rules, update, route := s.Observer.RuleSince(node, vip, began), s.Observer.Announced(node, vip, began),
			s.Observer.RouteVia(vip, began, node)
		if rules.IsZero() || update.IsZero() || route.IsZero() {
			return fmt.Errorf("seen: rules %t, UPDATE %t, route %t", !rules.IsZero(), !update.IsZero(), !route.IsZero())
		}
		l = latency{rules: rules.Sub(began), update: update.Sub(began), route: route.Sub(began)}
		return nil
	})
	return l, err
}

// sorted returns one kind of latency of all measurements, the shortest first.
func sorted(all []latency, of func(latency) time.Duration) (values []time.Duration) {
	for _, l := range all {
		values = append(values, of(l))
	}
	slices.Sort(values)
	return values
}

func median(all []latency, of func(latency) time.Duration) time.Duration {
	return sorted(all, of)[len(all)/2]
}

// firstAnswerBound bounds the median, without the router's known delay.
const firstAnswerBound = 50 * time.Millisecond

func firstAnswer(ctx context.Context, s *StepRun) error {
	const repeats = 15
	var all []latency
	for i := range repeats {
		l, err := s.measureFirstAnswer(ctx, fmt.Sprintf("fresh-%d", i),
			netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}))
		if err != nil {
			return err
		}
		all = append(all, l)
	}
	s.Action("%d times: a new Service was created while the client tried its address every 2 ms", repeats)
	s.Observed("medians: rules in the kernel after %s, BGP UPDATE at tor1 after %s, route in its kernel after %s",
		ms(median(all, latency.untilRules)), ms(median(all, latency.untilUpdate)), ms(median(all, latency.untilRoute)))
	s.Observed("first answer after %s in the median, %s at worst", ms(median(all, latency.untilAnswer)),
		ms(sorted(all, latency.untilAnswer)[repeats-1]))
	return s.judgeFirstAnswer(all)
}

// judgeFirstAnswer leaves out the router's delay.
func (s *StepRun) judgeFirstAnswer(all []latency) error {
	insideRouter, counts, bound := median(all, latency.insideRouter), median(all, latency.untilAnswer),
		s.within(firstAnswerBound)
	if holds := s.Router.routeDelay(); holds == "" {
		s.Observed("%s of that inside %s, which does not delay routes (bound for the whole: %s)", ms(insideRouter),
			s.Router.software, bound)
	} else {
		counts = median(all, latency.withoutRouter)
		s.Observed("%s of that inside %s, which delays %s,\nand %s for Fanfare and the packets (bound: %s)",
			ms(insideRouter), s.Router.software, holds, ms(counts), bound)
	}
	if counts >= bound {
		return fmt.Errorf("median %s without the router's delay: want less than %s", ms(counts), bound)
	}
	return nil
}

// idle is longer than the pause between two passes of a speaker.
const idle = 50 * time.Millisecond

// measureFirstAnswer measures a Service with the address vip.
func (s *StepRun) measureFirstAnswer(ctx context.Context, name string, vip netip.Addr) (l latency, err error) {
	defer s.Drop(ctx, &err, name, vip)
	began, at, err := s.putAndAsk(ctx, Service{
		Name: name, Policy: localTraffic, Ask: []netip.Addr{vip}, Endpoints: At("p11"),
	})
	if err != nil {
		return l, err
	}
	l, err = s.latency(ctx, vip, began, "n1")
	l.answer = at.Sub(began)
	return l, err
}

// putAndAsk creates a Service, and returns the time before that and the time of the
// client's first answer. The Service requests its address, so that the client knows it from
// the start.
func (s *StepRun) putAndAsk(ctx context.Context, svc Service) (began, answered time.Time, err error) {
	// Without the pause the result would include the wait for the speakers' next pass after
	// the previous Service. A router that delays routes gives them that time anyway.
	if err := pause(ctx, idle); err != nil {
		return began, answered, err
	}
	done := make(chan error, 1)
	var at time.Time
	go func() {
		var err error
		at, err = s.Client.FirstAnswer(ctx, netip.AddrPortFrom(svc.Ask[0], 80))
		done <- err
	}()
	began = time.Now()
	if err := s.Cluster.Put(svc); err != nil {
		return began, answered, err
	}
	err = <-done
	return began, at, err
}

func sourceAddress(ctx context.Context, s *StepRun) (err error) {
	svc := Service{Name: "source", Policy: localTraffic, Endpoints: At("p11", "p12", "p21")}
	vip, err := s.Serve(ctx, svc, "n1", "n2")
	defer s.Drop(ctx, &err, svc.Name, vip)
	if err != nil {
		return err
	}
	answers, err := s.Ask(ctx, 60, netip.AddrPortFrom(vip, 80))
	if err != nil {
		return err
	}
	for _, a := range answers {
		if a.Saw.Addr() != a.From.Addr() {
			return fmt.Errorf("%s saw %s, the client is %s", a.Pod, a.Saw, a.From)
		}
	}
	s.Action("60 connections from %s to http://%s", ClientAddr, vip)
	s.Observed("all pods saw %s; answered by %s", ClientAddr, counts(answers))
	return wantPods(answers, "p11", "p12", "p21")
}

// Ask opens the given number of connections one after the other.
func (s *StepRun) Ask(ctx context.Context, number int, to netip.AddrPort) ([]Answer, error) {
	var all []Answer
	for i := range number {
		a, err := s.Client.Get(ctx, netip.AddrPort{}, to)
		if err != nil {
			return all, fmt.Errorf("connection %d of %d to %s: %w", i+1, number, to, err)
		}
		all = append(all, a)
	}
	return all, nil
}

func pods(answers []Answer) map[string]int {
	by := map[string]int{}
	for _, a := range answers {
		by[a.Pod]++
	}
	return by
}

func counts(answers []Answer) string {
	by := pods(answers)
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%s %d", p, by[p]))
	}
	return strings.Join(parts, ", ")
}

// wantPods checks that exactly these pods answered, each at least once.
func wantPods(answers []Answer, want ...string) error {
	if got := slices.Sorted(maps.Keys(pods(answers))); !slices.Equal(got, want) {
		return fmt.Errorf("answered by %v: want %v", got, want)
	}
	return nil
}

func nextHopsFollowPolicy(ctx context.Context, s *StepRun) (err error) {
	svc := Service{Name: "hops", Policy: localTraffic, Endpoints: At("p11")}
	var vip netip.Addr
	defer func() { s.Drop(ctx, &err, svc.Name, vip) }()
	for _, c := range []struct {
		policy    corev1.ServiceExternalTrafficPolicy
		endpoints []Endpoint
		want      []string
	}{
		{localTraffic, At("p11"), []string{"n1"}},
		{localTraffic, At("p11", "p12", "p31"), []string{"n1", "n3"}},
		{clusterTraffic, At("p11"), []string{"n1", "n2", "n3"}},
		{clusterTraffic, nil, nil},
		{localTraffic, At("p21"), []string{"n2"}},
	} {
		svc.Policy, svc.Endpoints = c.policy, c.endpoints
		if vip, err = s.Serve(ctx, svc, c.want...); err != nil {
			return fmt.Errorf("%s with %v: %w", c.policy, c.endpoints, err)
		}
		s.Observed("%-7s with pods %v: tor1's kernel sends %s to %v", c.policy, c.endpoints, vip, c.want)
	}
	return nil
}

func clusterPolicy(ctx context.Context, s *StepRun) (err error) {
	svc := Service{Name: "any", Endpoints: At("p11", "p21")}
	vip, err := s.Serve(ctx, svc, NodeNames...)
	defer s.Drop(ctx, &err, svc.Name, vip)
	if err != nil {
		return err
	}
	return s.CheckMasquerade(ctx, netip.AddrPortFrom(vip, 80), "p11", "p21")
}

// CheckMasquerade opens connections to a Service of policy Cluster with these pods. A pod
// must see the client's address if the connection entered on the pod's node, and the
// ingress node's address otherwise.
func (s *StepRun) CheckMasquerade(ctx context.Context, to netip.AddrPort, want ...string) error {
	const number = 90
	answers, err := s.Ask(ctx, number, to)
	if err != nil {
		return err
	}
	connectionOf := func(a Answer) connection {
		return connection{a.From.Port(), PodAddr(a.Pod, familyOf(to.Addr())), a.Saw}
	}
	ingress := map[connection]string{}
	for range 3 { // the kernel skips some entries when others come and go
		listed, err := s.ingressNodes(6, to)
		if err != nil {
			return err
		}
		maps.Copy(ingress, listed)
		if !slices.ContainsFunc(answers, func(a Answer) bool { return ingress[connectionOf(a)] == "" }) {
			break
		}
	}
	var own, other int
	var errs []error
	for _, a := range answers {
		node := ingress[connectionOf(a)]
		switch see := a.Saw.Addr(); {
		case node == "":
			errs = append(errs, fmt.Errorf("no node's conntrack has the connection from %s to %s, which saw %s", a.From,
				a.Pod, a.Saw))
		case node == NodeOf(a.Pod) && see == a.From.Addr():
			own++
		case node != NodeOf(a.Pod) && see == NodeAddr(node, see):
			other++
		default:
			errs = append(errs, fmt.Errorf("%s, via %s, saw %s", a.Pod, node, see))
		}
	}
	s.Action("%d connections from the client to http://%s", number, to.Addr())
	s.Observed("answered by %s\n%d entered on the pod's own node: it saw the client's address\n%d on another node: "+
		"it saw that node's address",
		counts(answers), own, other)
	if own == 0 || other == 0 {
		errs = append(errs, errors.New("want connections of both kinds"))
	}
	return errors.Join(append(errs, wantPods(answers, want...))...)
}

func overIPv6(ctx context.Context, s *StepRun) (err error) {
	svc := Service{Name: "six", Policy: localTraffic, Endpoints: At("p11", "p31"),
		Families: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}}
	vip4, err := s.Serve(ctx, svc, "n1", "n3")
	var vip netip.Addr
	defer func() { s.Drop(ctx, &err, svc.Name, vip4, vip) }()
	if err != nil {
		return err
	}
	if vip, err = s.AwaitAddress(ctx, "shop/six", true); err != nil {
		return err
	}
	if err := s.Router.AwaitNextHops(ctx, Settle, vip, "n1", "n3"); err != nil {
		return err
	}
	to := netip.AddrPortFrom(vip, 80)
	answers, err := s.Ask(ctx, 40, to)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if a.Saw.Addr() != a.From.Addr() {
			return fmt.Errorf("%s saw %s, the client is %s", a.Pod, a.Saw, a.From)
		}
	}
	s.Observed("%s and %s for one Service\nLocal: tor1's kernel sends %s to [n1 n3], pods saw %s; answered by %s", vip,
		vip4, vip, ClientAddr6, counts(answers))
	svc.Policy = clusterTraffic
	if _, err := s.Serve(ctx, svc, NodeNames...); err != nil {
		return err
	}
	if err := s.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...); err != nil {
		return err
	}
	return errors.Join(wantPods(answers, "p11", "p31"), s.CheckMasquerade(ctx, to, "p11", "p31"))
}

func overUDP(ctx context.Context, s *StepRun) (err error) {
	svc := Service{Name: "datagrams", Policy: localTraffic, Endpoints: At("p11", "p21")}
	vip, err := s.Serve(ctx, svc, "n1", "n2")
	defer s.Drop(ctx, &err, svc.Name, vip)
	if err != nil {
		return err
	}
	var answers []Answer
	for range 40 {
		a, err := s.Client.AskUDP(ctx, netip.AddrPort{}, netip.AddrPortFrom(vip, 7))
		if err != nil {
			return err
		}
		if a.Saw.Addr() != a.From.Addr() {
			return fmt.Errorf("%s saw %s, the client is %s", a.Pod, a.Saw, a.From)
		}
		answers = append(answers, a)
	}
	s.Action("40 datagrams from as many ports to port 7 of %s (Local)", vip)
	s.Observed("all pods saw the client's own address; answered by %s", counts(answers))
	return wantPods(answers, "p11", "p21")
}
