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

// What follows drops what parse functions do not read. It saves the memory that
// the first list of a large cluster would need all at once: of an object that was
// applied a few times, managedFields alone are more than half.

func trimMeta(o metav1.Object) {
	o.SetManagedFields(nil)
	o.SetOwnerReferences(nil)
	o.SetFinalizers(nil)
	o.SetGenerateName("")
	o.SetSelfLink("")
}

func trimService(o *corev1.Service) {
	maps.DeleteFunc(o.Annotations, func(key, _ string) bool { return !serviceAnnotations[key] })
	o.Spec.Selector = nil
	o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.Type != AddressAssigned })
}

// serviceAnnotations are all that are read.
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
	o.Labels = map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]}
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

// trimNamespace leaves the labels.
func trimNamespace(o *corev1.Namespace) {
	o.Annotations, o.Spec, o.Status = nil, corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
}

func trimServiceCIDR(o *networkingv1.ServiceCIDR) {
	o.Annotations, o.Labels, o.Status = nil, nil, networkingv1.ServiceCIDRStatus{}
}

// trimSecret also drops the annotation in which kubectl apply leaves a copy of all
// that is secret.
func trimSecret(o *corev1.Secret) {
	o.Annotations, o.Labels = nil, nil
	maps.DeleteFunc(o.Data, func(key string, _ []byte) bool { return key != corev1.BasicAuthPasswordKey })
}

// trimSpeaker leaves where the node is on the network: the rest may be 100 reasons.
func trimSpeaker(o *v1alpha1.SpeakerStatus) {
	o.Annotations, o.Labels = nil, nil
	o.Status = v1alpha1.SpeakerReport{Interfaces: o.Status.Interfaces}
}

// trimOurs is for our own objects, whose every field is read.
func trimOurs[T metav1.Object](o T) {
	o.SetAnnotations(nil)
	o.SetLabels(nil)
}
