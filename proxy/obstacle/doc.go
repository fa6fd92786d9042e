// Package obstacle finds what else on this node is in the way of traffic to VIPs: sysctls, a
// full conntrack, firewalls of others, network plug-ins. It changes nothing. The obstacles and
// what to do about each are in docs/reference/obstacles.md.
package obstacle
