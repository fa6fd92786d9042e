package cluster

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
)

// sourceRangesAnnotation of a Service: CIDRs of clients, separated by commas, for objects
// without spec.loadBalancerSourceRanges.
const sourceRangesAnnotation = "service.beta.kubernetes.io/load-balancer-source-ranges"

// parseSources reads which clients may use the Service. An invalid range is ignored, which never
// admits more clients; if no range is valid, no client is admitted.
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
			p.Add(index(i), r, "is no CIDR; write one such as 10.0.0.0/8 or 2001:db8::/32; until "+
				"then it admits no client")
			continue
		}
		b.AddPrefix(n)
	}
	s.Sources = ipSet(&b).Prefixes()
}
