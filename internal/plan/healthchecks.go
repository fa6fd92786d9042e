package plan

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
)

// servesHealthCheck reports whether the healthCheckNodePort of a Service is served here.
func (v *View) servesHealthCheck(s *cluster.Spec) bool {
	// Only Services with externalTrafficPolicy Local have the port.
	if s.HealthCheckPort == 0 || v.healthChecks == HealthChecksNone {
		return false
	}
	return v.healthChecks == HealthChecksAll || s.ServiceProxy != ""
}

// checks returns the health checks of a Service, sorted by family. The Service needs no address:
// an external load balancer asks for the node's pods, and may provide the address itself.
func (v *View) checks(s cluster.Service) (checks []healthcheck.Check) {
	if !v.servesHealthCheck(s.Spec) {
		return nil
	}
	for _, f := range []healthcheck.Family{healthcheck.IPv4, healthcheck.IPv6} {
		if slices.ContainsFunc(s.IPFamilies, func(of corev1.IPFamily) bool { return (of == corev1.IPv4Protocol) == (f == healthcheck.IPv4) }) {
			checks = append(checks, healthcheck.Check{Namespace: s.Name.Namespace, Name: s.Name.Name, Port: s.HealthCheckPort, Family: f, Endpoints: v.localReady(f, s)})
		}
	}
	return checks
}

// localReady counts the ready pods on this node, not their ports. Like kube-proxy's, the count
// is 0 once the last pod terminates, so that load balancers move away while it still serves
// (KEP-1669).
func (v *View) localReady(f healthcheck.Family, s cluster.Service) int {
	if s.Endpoints == nil {
		return 0
	}
	var pods []netip.Addr
	for i := range s.Endpoints.List {
		e := &s.Endpoints.List[i]
		if a := e.Addr.Addr(); v.isLocal(e) && ready(e, s.PublishNotReady) && FamilyOf(a) == f {
			pods = append(pods, a)
		}
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	return len(slices.Compact(pods))
}

// setChecks collects the checks of all Services, in their order.
func (d *Desired) setChecks(v *View) {
	d.Checks = nil
	for _, s := range d.Snapshot.Services {
		d.Checks = append(d.Checks, v.checks(s)...)
	}
}

// updateChecks is setChecks if only the Services of these indexes, sorted, have changed.
func (d *Desired) updateChecks(v *View, changed []int) {
	same := func(i int) bool {
		from, to := d.checksOf(d.Snapshot.Services[i].Name)
		return slices.Equal(d.Checks[from:to], v.checks(d.Snapshot.Services[i]))
	}
	// Most changes leave the counts alone, and then d.Checks is the same slice as before.
	if !slices.ContainsFunc(changed, func(i int) bool { return !same(i) }) {
		return
	}
	var now []healthcheck.Check
	kept := 0
	for _, i := range changed {
		from, to := d.checksOf(d.Snapshot.Services[i].Name)
		now = append(append(now, d.Checks[kept:from]...), v.checks(d.Snapshot.Services[i])...)
		kept = to
	}
	d.Checks = append(now, d.Checks[kept:]...)
}

// checksOf finds the Checks of a Service: d.Checks[from:to].
func (d *Desired) checksOf(name cluster.Name) (from, to int) {
	from, _ = slices.BinarySearchFunc(d.Checks, name, func(c healthcheck.Check, n cluster.Name) int { return ServiceOf(c).Compare(n) })
	for to = from; to < len(d.Checks) && ServiceOf(d.Checks[to]) == name; {
		to++
	}
	return from, to
}

// ServiceOf returns the Service of a Check.
func ServiceOf(c healthcheck.Check) cluster.Name {
	return cluster.Name{Namespace: c.Namespace, Name: c.Name}
}

// checkText is a line of `fanfare plan`.
func checkText(c healthcheck.Check) string {
	return fmt.Sprintf("%s/%s port %d IPv%d: %d endpoints", c.Namespace, c.Name, c.Port, c.Family, c.Endpoints)
}

// FamilyOf returns the family of an address as Checks have it.
func FamilyOf(addr netip.Addr) healthcheck.Family {
	if addr.Is4() {
		return healthcheck.IPv4
	}
	return healthcheck.IPv6
}
