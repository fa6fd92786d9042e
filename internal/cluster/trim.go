package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// Trim removes the fields of an object that are never parsed, so that the first list of a large
// cluster needs less memory: in an object that was applied a few times, managedFields alone are
// more than half.
func Trim(o metav1.Object) {
	o.SetManagedFields(nil)
	o.SetOwnerReferences(nil)
	o.SetFinalizers(nil)
	o.SetGenerateName("")
	o.SetSelfLink("")
	switch o := o.(type) {
	case *corev1.Service:
		trimService(o)
	case *discoveryv1.EndpointSlice:
		trimEndpointSlice(o)
	case *corev1.Node:
		trimNode(o)
	case *corev1.Namespace:
		o.Annotations, o.Spec, o.Status = nil, corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
	case *networkingv1.ServiceCIDR:
		o.Annotations, o.Labels, o.Status = nil, nil, networkingv1.ServiceCIDRStatus{}
	case *corev1.Secret:
		// kubectl apply stores a copy of the password in an annotation.
		o.Annotations, o.Labels = nil, nil
		maps.DeleteFunc(o.Data, func(key string, _ []byte) bool { return key != corev1.BasicAuthPasswordKey })
	case *v1alpha1.SpeakerStatus:
		// The rest of the status may hold 100 Reasons.
		o.Annotations, o.Labels = nil, nil
		o.Status = v1alpha1.SpeakerReport{Interfaces: o.Status.Interfaces, Conflicts: o.Status.Conflicts}
	default: // all fields of Fanfare's own kinds are parsed
		o.SetAnnotations(nil)
		o.SetLabels(nil)
	}
}

func trimService(o *corev1.Service) {
	maps.DeleteFunc(o.Annotations, func(key, _ string) bool {
		return !serviceAnnotations[key] && !unknownAnnotation(key)
	})
	o.Spec.Selector = nil
	o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions,
		func(c metav1.Condition) bool { return c.Type != AddressAssigned })
}

// serviceAnnotations are the annotations that are parsed. Unknown ones with their prefixes are reported.
var serviceAnnotations = func() map[string]bool {
	read := map[string]bool{
		sourceRangesAnnotation: true, schedulerAnnotation: true, communitiesAnnotation: true, l2NodeAnnotation: true,
		SharingNamespacesAnnotation: true, ReserveAnnotation: true,
	}
	for _, key := range slices.Concat(addressAnnotations, poolAnnotations, sharingAnnotations) {
		read[key] = true
	}
	return read
}()

func trimEndpointSlice(o *discoveryv1.EndpointSlice) {
	o.Annotations = nil
	maps.DeleteFunc(o.Labels, func(key, _ string) bool {
		return key != discoveryv1.LabelServiceName && key != discoveryv1.LabelManagedBy
	})
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		e.DeprecatedTopology, e.Hostname, e.TargetRef, e.Zone = nil, nil, nil, nil
	}
}

func trimNode(o *corev1.Node) {
	o.Annotations = nil
	o.Status = corev1.NodeStatus{
		Addresses: o.Status.Addresses,
		Conditions: slices.DeleteFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type != corev1.NodeNetworkUnavailable && c.Type != corev1.NodeReady
		}),
	}
}
