// Package iptables writes a State as chains of iptables and sets of ipset, where nftables is
// missing: see docs/concepts/iptables-mode.md. It also opens the chain FORWARD of iptables in
// either mode, and knows the programs of iptables that a node can have.
package iptables
