// Package obstacle finds what else on this node is in the way of traffic to VIPs: sysctls, a
// full conntrack, other programs' firewalls, network plug-ins. It changes nothing. The obstacles
// and what to do about each are in docs/reference/obstacles.md.
//
// The files: obstacle.go (the result), monitor.go (when to look), facts.go (what is read) with
// sysctl.go (rp_filter, too), forwarding.go (interfaces that do not forward) and plugin.go
// (Calico in its eBPF mode, Cilium). For rules of other programs: ruleset.go reads nftables,
// sample.go makes packets, of which packet.go knows parts and mark.go the mark. simulate.go, with
// compat.go, leads them through the rules, and iptableslegacy.go through those of
// iptables-legacy. firewall.go reports the chains that drop, kubeproxy.go those of kube-proxy
// that translate first, ovn.go OVN-Kubernetes, whose mode its chains show, and flows.go which
// flows.
package obstacle
