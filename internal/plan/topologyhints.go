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
func (t *topology) applyHints(ready []cluster.Endpoint) (preferred []cluster.Endpoint, text string) {
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
	zone := t.zone
	if forNodes == len(ready) {
		if preferred = cluster.FilterEndpoints(ready,
			func(e *cluster.Endpoint) bool { return e.ForNodes.Has(t.node) }); len(preferred) > 0 {
			return preferred, "by topology hints those for node " + t.node
		}
	}
	if forZones == len(ready) && zone != "" {
		if preferred = cluster.FilterEndpoints(ready,
			func(e *cluster.Endpoint) bool { return e.ForZones.Has(zone) }); len(preferred) > 0 {
			return preferred, "by topology hints those for zone " + zone
		}
	}
	return ready, "topology hints are ignored: " + t.whyHintsIgnored(forZones == len(ready), forNodes == len(ready))
}

// whyHintsIgnored explains why hints are not valid, as the end of a sentence.
func (t *topology) whyHintsIgnored(zones, nodes bool) string {
	switch {
	case zones && t.zone == "":
		return fmt.Sprintf("node %s has no label %s", t.node, corev1.LabelTopologyZone)
	case zones:
		return "none is for zone " + t.zone
	case nodes:
		return "none is for node " + t.node
	default:
		return "some endpoints have none"
	}
}
