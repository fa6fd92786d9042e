// Package obstacle finds what else on this node is in the way of traffic to VIPs: sysctls, a
// full conntrack, other programs' firewalls, network plug-ins. It changes nothing. The obstacles
// and what to do about each are in docs/reference/obstacles.md.
//
// The files: obstacle.go (the result), monitor.go (when to look), flows.go (what is not announced),
// facts.go (what is read) with sysctl.go (rp_filter, too), forwarding.go (interfaces that do not
// forward) and plugin.go (Calico in its eBPF mode, Cilium, OVN-Kubernetes). For rules of other
// programs: ruleset.go reads nftables, sample.go makes flows, packet.go their packets, simulate.go
// leads these through the rules, and firewall.go reports the chains that stop them.
// closedforward.go reads what FORWARD of iptables accepts, if it could not be opened.
package obstacle
