package plan

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
)

// answersFor says whether the healthCheckNodePort of a Service is answered here.
func (v *View) answersFor(s *cluster.Spec) bool {
	if s.HealthCheckPort == 0 || v.healthChecks == HealthChecksNone {
		return false
	}
	return v.healthChecks == HealthChecksAll || s.ServiceProxy != ""
}

// checks are what to answer for the health of a Service, sorted by family. That it
// has no address here, or none at all yet, is no reason to be silent: whoever asks
// wants to know of the node's pods, and may be what brings the address.
func (v *View) checks(s cluster.Service) (checks []healthcheck.Check) {
	if !v.answersFor(s.Spec) {
		return nil
	}
	for _, f := range []healthcheck.Family{healthcheck.IPv4, healthcheck.IPv6} {
		if slices.ContainsFunc(s.IPFamilies, func(of corev1.IPFamily) bool { return (of == corev1.IPv4Protocol) == (f == healthcheck.IPv4) }) {
			checks = append(checks, healthcheck.Check{Namespace: s.Name.Namespace, Name: s.Name.Name, Port: s.HealthCheckPort, Family: f, Endpoints: v.readyHere(f, s)})
		}
	}
	return checks
}

// readyHere counts pods, not their ports, and only the ready ones: kube-proxy says 0
// as soon as the last one terminates, so that a load balancer turns away while
// that one still serves (KEP-1669).
func (v *View) readyHere(f healthcheck.Family, s cluster.Service) int {
	if s.Endpoints == nil {
		return 0
	}
	var pods []netip.Addr
	for i := range s.Endpoints.List {
		e := &s.Endpoints.List[i]
		if a := e.Addr.Addr(); v.has(e) && ready(e, s.PublishNotReady) && FamilyOf(a) == f {
			pods = append(pods, a)
		}
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	return len(slices.Compact(pods))
}

// check collects what to answer for all Services, whose order is that of Checks.
func (d *Desired) check(v *View) {
	d.Checks = nil
	for _, s := range d.Snapshot.Services {
		d.Checks = append(d.Checks, v.checks(s)...)
	}
}

// checkAgain is check where only some Services have changed, of which it gets the
// indexes, sorted.
func (d *Desired) checkAgain(v *View, changed []int) {
	same := func(i int) bool {
		from, to := d.checksOf(d.Snapshot.Services[i].Name)
		return slices.Equal(d.Checks[from:to], v.checks(d.Snapshot.Services[i]))
	}
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

// checksOf finds the Checks of a Service: those from one index to before another.
func (d *Desired) checksOf(name cluster.Name) (from, to int) {
	from, _ = slices.BinarySearchFunc(d.Checks, name, func(c healthcheck.Check, n cluster.Name) int { return ServiceOf(c).Compare(n) })
	for to = from; to < len(d.Checks) && ServiceOf(d.Checks[to]) == name; {
		to++
	}
	return from, to
}

// ServiceOf is the Service that a Check is for.
func ServiceOf(c healthcheck.Check) cluster.Name {
	return cluster.Name{Namespace: c.Namespace, Name: c.Name}
}

func checkText(c healthcheck.Check) string {
	return fmt.Sprintf("%s/%s port %d IPv%d: %d endpoints", c.Namespace, c.Name, c.Port, c.Family, c.Endpoints)
}

// FamilyOf is that of an address in a Check's words.
func FamilyOf(addr netip.Addr) healthcheck.Family {
	if addr.Is4() {
		return healthcheck.IPv4
	}
	return healthcheck.IPv6
}
