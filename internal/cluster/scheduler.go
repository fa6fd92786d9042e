package cluster

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// schedulerAnnotation of a Service: `random`, `round-robin`, `source-hash` or `maglev`.
const schedulerAnnotation = "fanfare.io/scheduler"

// The schedulers that a Service may request.
const (
	SchedulerRandom     = "random"
	SchedulerRoundRobin = "round-robin"
	SchedulerSourceHash = "source-hash"
	SchedulerMaglev     = "maglev"
)

// parseScheduler returns one of these constants.
func parseScheduler(o *corev1.Service, p *Problems) string {
	v := cmp.Or(strings.TrimSpace(o.Annotations[schedulerAnnotation]), SchedulerRandom)
	return parseWord(annotation(schedulerAnnotation), v, SchedulerRandom, p, SchedulerRandom, SchedulerRoundRobin,
		SchedulerSourceHash, SchedulerMaglev)
}
