package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// leavingTaints of a Node: it is leaving, and its speaker withdraws all addresses.
//
// Taints that may be set in error or for long are not here: cordon (a node reserved for
// ingress is cordoned on purpose), not-ready and unreachable (the condition Ready says it),
// and the cluster autoscaler's DeletionCandidate (most candidates stay).
var leavingTaints = []string{
	"fanfare.io/leaving",
	"ToBeDeletedByClusterAutoscaler",
	"karpenter.sh/disrupted",
	"karpenter.sh/disruption", // karpenter before its v1 API
	"node.cloudprovider.kubernetes.io/shutdown",
	"node.kubernetes.io/out-of-service",
}

func parseNode(o *corev1.Node) (*Node, Problems) {
	var p Problems
	n := &Node{Name: o.Name, UID: o.UID, Labels: o.Labels, Leaving: leaving(o)}
	_, n.Excluded = o.Labels[corev1.LabelNodeExcludeBalancers]
	for i, a := range o.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		ip, err := parseAddr(a.Address)
		if err != nil {
			p.Add(fmt.Sprintf("status.addresses[%d].address", i), a.Address, err.Error())
			continue
		}
		n.InternalIPs = append(n.InternalIPs, ip)
	}
	n.PodCIDRs = parsePodCIDRs(o, &p)
	for _, c := range o.Status.Conditions {
		switch c.Type {
		case corev1.NodeNetworkUnavailable:
			n.NetworkUnavailable = c.Status == corev1.ConditionTrue
		case corev1.NodeReady:
			n.NotReady, n.ReadyUnknown = c.Status == corev1.ConditionFalse, c.Status == corev1.ConditionUnknown
		default: // pressure of some kind: the kubelet acts on it
		}
	}
	return n, p
}

func leaving(o *corev1.Node) string {
	if o.DeletionTimestamp != nil {
		return "metadata.deletionTimestamp"
	}
	for _, key := range leavingTaints {
		if slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key }) {
			return key
		}
	}
	return ""
}

func parsePodCIDRs(o *corev1.Node, p *Problems) []netip.Prefix {
	field, in := "spec.podCIDRs", o.Spec.PodCIDRs
	if len(in) == 0 && o.Spec.PodCIDR != "" {
		field, in = "spec.podCIDR", []string{o.Spec.PodCIDR}
	}
	return parseCIDRs(field, in, p)
}

// parseCIDRs returns the prefixes sorted, without duplicates.
func parseCIDRs(field string, in []string, p *Problems) []netip.Prefix {
	var out []netip.Prefix
	for i, s := range in {
		c, err := netip.ParsePrefix(s)
		if err != nil || c.Addr().Is4In6() {
			p.Add(fmt.Sprintf("%s[%d]", field, i), s, "is no CIDR; write one such as 10.244.1.0/24")
			continue
		}
		out = append(out, c.Masked())
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(out)
}
