package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
)

// serve reports whether the healthCheckNodePort of a Service is served here.
func (h HealthChecks) serve(s *cluster.Spec) bool {
	// Only Services with externalTrafficPolicy Local have the port.
	if s.HealthCheckPort == 0 || h == HealthChecksNone {
		return false
	}
	return h == HealthChecksAll || s.ServiceProxy != ""
}

// checks returns the health checks of a Service, sorted by family. The Service needs no address: an
// external load balancer checks the node's pods, and may provide the address itself.
func (t *topology) checks(s cluster.Service) (checks []healthcheck.Check) {
	for _, f := range []healthcheck.Family{healthcheck.IPv4, healthcheck.IPv6} {
		if slices.ContainsFunc(s.IPFamilies, func(of corev1.IPFamily) bool {
			return (of == corev1.IPv4Protocol) == (f == healthcheck.IPv4)
		}) {
			checks = append(checks, healthcheck.Check{
				Namespace: s.Name.Namespace, Name: s.Name.Name, Port: s.HealthCheckPort, Family: f,
				Endpoints: t.localReady(f, s),
			})
		}
	}
	return checks
}

// localReady counts the ready pods on this node, not their ports. Like kube-proxy's, the count
// is 0 once the last pod terminates, so that load balancers move away while it still serves
// (KEP-1669).
func (t *topology) localReady(f healthcheck.Family, s cluster.Service) int {
	var pods []netip.Addr
	for e := range s.Endpoints.All() {
		if t.isLocal(e) && e.GetsFlows(s.PublishNotReady) && FamilyOf(e.Addr) == f {
			pods = append(pods, e.Addr)
		}
	}
	return len(inOrder(pods))
}

// patchChecks patches the checks of changed Services, which are sorted.
func (d *Desired) patchChecks(v *Inputs, changed []cluster.Service) {
	var names []cluster.Name // most Services have no such port
	for _, s := range changed {
		if s.HealthCheckPort != 0 {
			names = append(names, s.Name)
		}
	}
	var keys, checks []healthcheck.Check
	for _, n := range slices.Compact(names) { // both versions of a Service are in the list
		for _, f := range []healthcheck.Family{healthcheck.IPv4, healthcheck.IPv6} {
			keys = append(keys, healthcheck.Check{Namespace: n.Namespace, Name: n.Name, Family: f})
		}
		if now, exists := d.Snapshot.Services.Get(n); exists && v.healthChecks.serve(now.Spec) {
			checks = append(checks, v.topology.checks(now)...)
		}
	}
	d.Checks = sortedset.Patch(d.Checks, keys, compareChecks, sortedset.Equal,
		func(i int) (c healthcheck.Check, there bool) {
			at, there := slices.BinarySearchFunc(checks, keys[i], compareChecks)
			if there {
				c = checks[at]
			}
			return c, there
		})
}

// compareChecks orders by Service and family.
func compareChecks(a, b healthcheck.Check) int {
	return cmp.Or(ServiceOf(a).Compare(ServiceOf(b)), cmp.Compare(a.Family, b.Family))
}

// ServiceOf returns the Service of a Check.
func ServiceOf(c healthcheck.Check) cluster.Name {
	return cluster.Name{Namespace: c.Namespace, Name: c.Name}
}

// checkText is a line of `fanfare plan`.
func checkText(c healthcheck.Check) string {
	return fmt.Sprintf("%s/%s port %d IPv%d: %d endpoints", c.Namespace, c.Name, c.Port, c.Family, c.Endpoints)
}

// FamilyOf returns the family of an address for Checks.
func FamilyOf(addr netip.Addr) healthcheck.Family {
	if addr.Is4() {
		return healthcheck.IPv4
	}
	return healthcheck.IPv6
}
