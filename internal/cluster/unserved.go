package cluster

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// whyUnserved names the field that keeps Fanfare from serving a Service. The text is empty for one of which nothing
// suggests that it should be served, such as an ordinary ClusterIP Service.
func whyUnserved(o *corev1.Service) string {
	if o.Spec.Type != corev1.ServiceTypeLoadBalancer {
		key, ok := hasOurAnnotation(o)
		if !ok {
			return ""
		}
		return fmt.Sprintf("has the annotation %s and spec.type %s: only a Service of type "+
			"LoadBalancer gets an address", key, cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP))
	}
	if o.Spec.LoadBalancerClass == nil {
		return fmt.Sprintf("has no spec.loadBalancerClass: with --class-only Fanfare serves only those of %s", Class)
	}
	return fmt.Sprintf("has spec.loadBalancerClass %q: Fanfare serves %s, and the classes of --lb-class. A Service's "+
		"class cannot be changed", *o.Spec.LoadBalancerClass, Class)
}

// unservedObjects returns a line for each Service that is not served although something suggests that it should be,
// and for each EndpointSlice whose Service does not exist; sorted.
func (b *Builder) unservedObjects() (lines []string) {
	for name, why := range b.unserved {
		if why != "" {
			lines = append(lines, fmt.Sprintf("Service %s %s", name, why))
		}
	}
	for name, s := range b.joiner.slices {
		if _, exists := b.unserved[s.service]; !exists {
			lines = append(lines, fmt.Sprintf("EndpointSlice %s is of Service %s, which does not exist", name,
				s.service))
		}
	}
	slices.Sort(lines)
	return lines
}
