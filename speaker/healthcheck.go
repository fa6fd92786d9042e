package speaker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// serveHealthChecks serves healthCheckNodePorts by what is forwarded. A port that another
// program uses affects neither forwarding nor announcements.
func (s *speaker) serveHealthChecks(ctx context.Context, d *plan.Desired) {
	failed := s.health.Set(ctx, d.Checks)
	if fmt.Sprint(failed) != fmt.Sprint(s.failedChecks) {
		for _, f := range failed {
			s.Log.Warn("healthCheckNodePort not served", "err", f)
		}
	}
	s.failedChecks = failed
}

// healthReasons returns the reasons for the healthCheckNodePorts of a Service that are in
// use, in the family of an address.
func (p *passResult) healthReasons(addr netip.Addr, name cluster.Name) (reasons []ReasonStatus) {
	for _, f := range p.failedChecks {
		if plan.ServiceOf(f.Check) == name && f.Family == plan.FamilyOf(addr) {
			reasons = append(reasons, healthReason(f))
		}
	}
	return reasons
}

// healthReasonsWithoutAddress returns those of Services that have no address of the family.
func (p *passResult) healthReasonsWithoutAddress() (reasons []ReasonStatus) {
	for _, f := range p.failedChecks {
		if !p.hasAddress(plan.ServiceOf(f.Check), f.Family) {
			reasons = append(reasons, healthReason(f))
		}
	}
	return reasons
}

// hasAddress reports whether a Service has an address of the family.
func (p *passResult) hasAddress(name cluster.Name, family healthcheck.Family) bool {
	for a := range p.desired.Addresses.All() {
		if plan.FamilyOf(a.Addr) == family && slices.Contains(a.Services, name) {
			return true
		}
	}
	return false
}

// healthReason names port and family: a program may use a port in one family only.
func healthReason(f healthcheck.Failure) ReasonStatus {
	return ReasonStatus{Service: plan.ServiceOf(f.Check).String(), Protocol: "health", Code: cluster.HealthPortTaken, Message: fmt.Sprintf(
		"healthCheckNodePort %d over IPv%d is not served, and retried: %v", f.Port, f.Family, f.Err)}
}
