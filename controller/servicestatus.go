package controller

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// statusPatch returns the differences to the wanted status.
func statusPatch(live *corev1.Service, n serviceUpdate) map[string]any {
	patch := map[string]any{}
	if n.writesAddrs() {
		ingress := []map[string]any{}
		for _, a := range n.addrs {
			// Packets arrive with the address itself as destination, so nodes may send their own
			// packets straight to pods (KEP-1860).
			ingress = append(ingress, map[string]any{"ip": a.String(), "ipMode": corev1.LoadBalancerIPModeVIP})
		}
		patch["loadBalancer"] = map[string]any{"ingress": ingress}
	}
	if n.condition != n.spec.Reported {
		conditions := []metav1.Condition{apiCondition(live, n.condition)}
		keepTime(live.Status.Conditions, conditions)
		patch["conditions"] = conditions
	}
	return patch
}

// apiCondition returns the condition for the API server.
func apiCondition(live *corev1.Service, want cluster.AddressCondition) metav1.Condition {
	c := metav1.Condition{
		Type: cluster.AddressAssigned, Status: metav1.ConditionFalse, Reason: string(want.Code), Message: want.Message,
		LastTransitionTime: metav1.Now(), ObservedGeneration: live.Generation,
	}
	if want.Assigned {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// has reports whether the status of a Service names address a.
func has(live *corev1.Service, a netip.Addr) bool {
	return slices.ContainsFunc(live.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		ip, err := netip.ParseAddr(i.IP)
		return err == nil && ip == a
	})
}

// hasCondition reports whether the controller has written a condition to the Service.
func hasCondition(live *corev1.Service) bool {
	return apimeta.FindStatusCondition(live.Status.Conditions, cluster.AddressAssigned) != nil
}

// cleared returns the status of a Service that is no longer a LoadBalancer. The API server then
// allows no address, whichever controller wrote it.
func cleared() map[string]any {
	return map[string]any{
		"loadBalancer": map[string]any{"ingress": []corev1.LoadBalancerIngress{}},
		"conditions":   []map[string]any{{"$patch": "delete", "type": cluster.AddressAssigned}},
	}
}

// touch changes only the version of the Service. For that some field must change, and no program
// relies on the condition's time.
func touch(live *corev1.Service) map[string]any {
	c := metav1.Condition{
		Type: cluster.AddressAssigned, Status: metav1.ConditionUnknown, Reason: "Releasing",
		Message: "an address is being released",
	}
	if old := apimeta.FindStatusCondition(live.Status.Conditions, c.Type); old != nil {
		c = *old
	}
	// Times are in whole seconds here. A second touch within the same second must differ too.
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	if !c.LastTransitionTime.Before(&now) {
		now = metav1.NewTime(c.LastTransitionTime.Add(time.Second))
	}
	c.LastTransitionTime = now
	return map[string]any{"conditions": []metav1.Condition{c}}
}
