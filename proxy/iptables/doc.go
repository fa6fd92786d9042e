// Package iptables writes a State as chains of iptables and sets of ipset, for nodes without
// usable nftables: see docs/concepts/iptables-mode.md. In either mode, it also makes the chain
// FORWARD of iptables accept flows to Services, and finds the programs of iptables on the node.
package iptables
