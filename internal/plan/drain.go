package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// refusal decides why this node announces nothing over BGP, with an empty code if it may.
func (r *routers) refusal(self *cluster.Node, peers int) (cluster.Code, string) {
	// Reasons that concern the whole node come before its routers: users correct them first.
	switch n := self; {
	case n == nil:
		return cluster.NodeUnavailable, fmt.Sprintf("there is no Node object named %q; is --node-name right?", r.node)
	case n.Leaving != "":
		return cluster.NodeLeaving, fmt.Sprintf("taint %s says that node %s is going away", n.Leaving, n.Name)
	case n.Excluded:
		return cluster.NodeExcluded, fmt.Sprintf(
			"node %s has the label node.kubernetes.io/exclude-from-external-load-balancers", n.Name)
	case n.NetworkUnavailable:
		return cluster.NodeUnavailable, fmt.Sprintf("node %s has the condition NetworkUnavailable", n.Name)
	case n.NotReady:
		return cluster.NodeUnavailable, fmt.Sprintf("node %s is not Ready", n.Name)
	case peers == 0:
		return cluster.NoPeer, "there is no BGPPeer; add one that names your router"
	case len(r.sessions) == 0 && len(r.withoutGateway) > 0:
		return cluster.NoPeer, "there is no router yet: " + r.gatewayProblems()[0].String()
	case len(r.sessions) == 0 && len(r.withoutPassword) > 0:
		return cluster.NoPeer, fmt.Sprintf("BGPPeer %s waits for the Secret with its password",
			cluster.Enumerate(r.withoutPassword))
	case len(r.sessions) == 0:
		return cluster.NoPeer, fmt.Sprintf("none of the %d BGPPeers has a nodeSelector that "+
			"matches node %s (labels %s)", peers, n.Name, labels.FormatLabels(n.Labels))
	default:
		return "", ""
	}
}
