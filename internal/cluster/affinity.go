package cluster

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	defaultAffinity = 10800 * time.Second // the API server's default
	maxAffinity     = 86400 * time.Second // what the API server allows
)

// parseAffinity returns zero for a Service without session affinity.
func parseAffinity(o *corev1.Service, p *Problems) time.Duration {
	const none, clientIP = corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP
	if parseWord("spec.sessionAffinity", cmp.Or(o.Spec.SessionAffinity, none), none, p, clientIP, none) == none {
		return 0
	}
	c := o.Spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	// Compared before the multiplication, which could overflow.
	seconds := *c.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > int32(maxAffinity/time.Second) {
		p.Add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", fmt.Sprint(seconds),
			fmt.Sprintf("must be from 1 to %d; taken for %d", maxAffinity/time.Second, defaultAffinity/time.Second))
		return defaultAffinity
	}
	return time.Duration(seconds) * time.Second
}
