package speaker

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
)

// answersFor says whether the healthCheckNodePort of a Service is answered here.
func (v *view) answersFor(s *cluster.Spec) bool {
	if s.HealthCheckPort == 0 || v.healthChecks == HealthChecksNone {
		return false
	}
	return v.healthChecks == HealthChecksAll || s.ServiceProxy != ""
}

// check is what to answer for the health of a Service to those who ask over the
// family of its address; nil for nothing.
func (v *view) check(addr netip.Addr, s cluster.Service) []healthcheck.Check {
	if !v.answersFor(s.Spec) {
		return nil
	}
	c := healthcheck.Check{Namespace: s.Name.Namespace, Name: s.Name.Name, Port: s.HealthCheckPort, Family: family(addr), Endpoints: v.readyHere(addr, s)}
	return []healthcheck.Check{c}
}

// readyHere counts pods, not their ports, and only the ready ones: kube-proxy says 0
// as soon as the last one terminates, so that a load balancer turns away while
// that one still serves (KEP-1669).
func (v *view) readyHere(addr netip.Addr, s cluster.Service) int {
	if s.Endpoints == nil {
		return 0
	}
	var pods []netip.Addr
	for i := range s.Endpoints.List {
		e := &s.Endpoints.List[i]
		if a := e.Addr.Addr(); v.has(e) && ready(e, s.PublishNotReady) && a.Is4() == addr.Is4() {
			pods = append(pods, a)
		}
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	return len(slices.Compact(pods))
}

// check collects what the addresses ask for. A Service with two of one family is
// answered for once.
func (d *Desired) check() {
	d.Checks = nil
	for _, a := range d.Addresses {
		d.Checks = append(d.Checks, a.checks...)
	}
	slices.SortFunc(d.Checks, func(a, b healthcheck.Check) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family))
	})
	d.Checks = slices.Compact(d.Checks)
}

func checkText(c healthcheck.Check) string {
	return fmt.Sprintf("%s/%s port %d IPv%d: %d endpoints", c.Namespace, c.Name, c.Port, c.Family, c.Endpoints)
}

// family is that of an address in a Check's words.
func family(addr netip.Addr) healthcheck.Family {
	if addr.Is4() {
		return healthcheck.IPv4
	}
	return healthcheck.IPv6
}

// answer answers for the health of Services by what is forwarded. Somebody else's
// hold of a port harms neither forwarding nor announcing.
func (s *speaker) answer(ctx context.Context, d *Desired) {
	failed := s.health.Set(ctx, d.Checks)
	if fmt.Sprint(failed) != fmt.Sprint(s.unanswered) {
		for _, f := range failed {
			s.Log.Warn("not answered", "err", f)
		}
	}
	s.unanswered = failed
}

// unanswered are reasons for the healthCheckNodePorts of a Service that could not
// be taken for the family of an address.
func unanswered(failed []healthcheck.Failure, addr netip.Addr, name cluster.Name) (reasons []ReasonStatus) {
	for _, f := range failed {
		if f.Namespace == name.Namespace && f.Name == name.Name && f.Family == family(addr) {
			reasons = append(reasons, ReasonStatus{Service: name.String(), Protocol: "health", Code: cluster.HealthPortTaken, Message: fmt.Sprintf(
				"healthCheckNodePort %d over IPv%d is not answered, and tried again: %v", f.Port, f.Family, f.Err)})
		}
	}
	return reasons
}
