package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
)

// sourceRangesAnnotation of a Service: CIDRs of clients, separated by commas, for objects
// without spec.loadBalancerSourceRanges.
const sourceRangesAnnotation = "service.beta.kubernetes.io/load-balancer-source-ranges"

// schedulerAnnotation of a Service: `random`, `round-robin`, `source-hash` or `maglev`.
const schedulerAnnotation = "fanfare.io/scheduler"

// The schedulers that a Service may ask for.
const (
	SchedulerRandom     = "random"
	SchedulerRoundRobin = "round-robin"
	SchedulerSourceHash = "source-hash"
	SchedulerMaglev     = "maglev"
)

var schedulers = []string{SchedulerRandom, SchedulerRoundRobin, SchedulerSourceHash, SchedulerMaglev}

const (
	defaultAffinity = 10800 * time.Second // the API server's default
	maxAffinity     = 86400 * time.Second // what the API server allows
)

// parseSources reads which clients may use the Service. An invalid range is ignored, which
// admits fewer clients and never more; without a valid one, no client is admitted.
func parseSources(o *corev1.Service, s *Spec, p *Problems) {
	field, ranges := "spec.loadBalancerSourceRanges", o.Spec.LoadBalancerSourceRanges
	index := func(i int) string { return fmt.Sprintf("%s[%d]", field, i) }
	if a := strings.TrimSpace(o.Annotations[sourceRangesAnnotation]); len(ranges) == 0 && a != "" {
		field, ranges = annotation(sourceRangesAnnotation), strings.Split(a, ",")
		index = func(int) string { return field }
	}
	s.Restricted = len(ranges) != 0
	var b netipx.IPSetBuilder
	for i, r := range ranges {
		r = strings.TrimSpace(r) // The API server allows it by accident.
		n, err := netip.ParsePrefix(r)
		if err != nil || n.Addr().Is4In6() {
			p.Add(index(i), r, "is no CIDR; write one such as 10.0.0.0/8 or 2001:db8::/32; until then it admits no client")
			continue
		}
		b.AddPrefix(n)
	}
	// The parts are valid, and a builder reports nothing but parts that are not.
	if set, err := b.IPSet(); err == nil {
		s.Sources = set.Prefixes()
	}
}

// parseAffinity returns zero for a Service without session affinity.
func parseAffinity(o *corev1.Service, p *Problems) time.Duration {
	switch o.Spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return 0
	case corev1.ServiceAffinityClientIP:
	default:
		p.Add("spec.sessionAffinity", string(o.Spec.SessionAffinity), "must be ClientIP or None; taken for None")
		return 0
	}
	c := o.Spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	// Compared before it is multiplied.
	seconds := *c.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > int32(maxAffinity/time.Second) {
		p.Add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", fmt.Sprint(seconds),
			fmt.Sprintf("must be from 1 to %d; taken for %d", maxAffinity/time.Second, defaultAffinity/time.Second))
		return defaultAffinity
	}
	return time.Duration(seconds) * time.Second
}

// parseScheduler returns one of schedulers.
func parseScheduler(o *corev1.Service, p *Problems) string {
	v := strings.TrimSpace(o.Annotations[schedulerAnnotation])
	switch {
	case v == "":
		return SchedulerRandom
	case slices.Contains(schedulers, v):
		return v
	}
	p.Add(annotation(schedulerAnnotation), v, fmt.Sprintf("must be one of %s; taken for %s", strings.Join(schedulers, ", "), SchedulerRandom))
	return SchedulerRandom
}
