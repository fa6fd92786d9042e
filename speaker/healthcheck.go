package speaker

import (
	"context"
	"fmt"
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

// healthReasons returns the reasons for healthCheckNodePorts that are in use. They name port and family:
// a program may use a port in one family only.
func (p *passResult) healthReasons(of func(healthcheck.Failure) bool) (reasons []ReasonStatus) {
	for _, f := range p.failedChecks {
		if of(f) {
			reasons = append(reasons, ReasonStatus{
				Service: plan.ServiceOf(f.Check).String(), Protocol: "health", Code: cluster.HealthPortTaken,
				Message: fmt.Sprintf("healthCheckNodePort %d over IPv%d is not served, and retried: %v", f.Port,
					f.Family, f.Err),
			})
		}
	}
	return reasons
}

// serves reports whether the healthCheckNodePort is of a Service with this address, and of its family.
func serves(f healthcheck.Failure, a *plan.Address) bool {
	return plan.FamilyOf(a.Addr) == f.Family && slices.Contains(a.Services, plan.ServiceOf(f.Check))
}

// healthReasonsWithoutAddress returns those of Services that have no address of the family.
func (p *passResult) healthReasonsWithoutAddress() []ReasonStatus {
	return p.healthReasons(func(f healthcheck.Failure) bool {
		for a := range p.desired.Addresses.All() {
			if serves(f, a) {
				return false
			}
		}
		return true
	})
}
