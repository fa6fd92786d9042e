package cluster

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

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
