package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// applyHints applies topology hints to the ready endpoints of a port, and describes the result.
// Hints for zones are KEP-2433, hints for nodes KEP-3015, which has precedence as in kube-proxy.
// Hints are valid only if all endpoints have one and one is for this node, or else for its zone:
// while hints are being added, a node would send all clients to the first endpoint with one.
func (v *View) applyHints(ready []cluster.Endpoint) (preferred []cluster.Endpoint, text string) {
	forZones, forNodes := 0, 0
	for i := range ready {
		if ready[i].ForZones != "" {
			forZones++
		}
		if ready[i].ForNodes != "" {
			forNodes++
		}
	}
	if forZones == 0 && forNodes == 0 {
		return ready, ""
	}
	// Without a label this node is in no zone, and only hints for nodes can be valid.
	zone := v.zone()
	if forNodes == len(ready) {
		if preferred = cluster.FilterEndpoints(ready, func(e *cluster.Endpoint) bool { return e.ForNodes.Has(v.Node) }); len(preferred) > 0 {
			return preferred, "by topology hints those for node " + v.Node
		}
	}
	if forZones == len(ready) && zone != "" {
		if preferred = cluster.FilterEndpoints(ready, func(e *cluster.Endpoint) bool { return e.ForZones.Has(zone) }); len(preferred) > 0 {
			return preferred, "by topology hints those for zone " + zone
		}
	}
	return ready, "topology hints are ignored: " + v.whyHintsIgnored(forZones == len(ready), forNodes == len(ready), zone)
}

// whyHintsIgnored explains why hints are not valid, as the end of a sentence.
func (v *View) whyHintsIgnored(zones, nodes bool, zone string) string {
	switch {
	case zones && zone == "":
		return fmt.Sprintf("node %s has no label %s", v.Node, corev1.LabelTopologyZone)
	case zones:
		return "none is for zone " + zone
	case nodes:
		return "none is for node " + v.Node
	default:
		return "some endpoints have none"
	}
}

// zone is the zone of this node, empty without the label.
func (v *View) zone() string {
	if v.Self == nil {
		return ""
	}
	return v.Self.Labels[corev1.LabelTopologyZone]
}
