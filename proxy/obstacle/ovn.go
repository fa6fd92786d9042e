package obstacle

import (
	"slices"

	"golang.org/x/sys/unix"
)

// OVNInterface is the management port of OVN-Kubernetes: the node's interface to all pods.
const OVNInterface = "ovn-k8s-mp0"

// ovnViaHost is a base chain of OVN-Kubernetes in its mode routingViaHost (local gateway mode). It
// masquerades what pods send, since that passes the host then.
var ovnViaHost = chainID{tableID{unix.NFPROTO_INET, "ovn-kubernetes"}, "ovn-kube-local-gw-masq"}

// judgeOVN finds OVN-Kubernetes that may take packets to LoadBalancer addresses: unless it routes via
// the host, Open vSwitch takes them from the wire to OVN's load balancers. Its flows cannot be read
// without access to Open vSwitch, and versions from before the chain ovnViaHost have a rule of
// iptables for it that others may have, too. So the message says what is the case if it does not.
func judgeOVN(p pluginFacts, bases []hookedChain) []Obstacle {
	viaHost := slices.ContainsFunc(bases, func(c hookedChain) bool { return c.chainID == ovnViaHost })
	if !p.ovn || viaHost {
		return nil
	}
	return []Obstacle{{Code: ForeignDataPath, About: "OVN-Kubernetes", Message: "OVN-Kubernetes is on this node, and whether it routes via the host cannot be seen (it has no chain " +
		ovnViaHost.name + "): if it does not, " + foreignDataPath + "; to have Fanfare forward, set routingViaHost to true and ipForwarding to Global in its gatewayConfig"}}
}
