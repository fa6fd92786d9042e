// Package iptables writes a State as chains of iptables and sets of ipset, for nodes without
// usable nftables: see docs/concepts/iptables-mode.md. In either mode, it also makes the chain
// FORWARD of iptables accept flows to Services, and finds the programs of iptables on the node.
//
// renderer.go is the entry. ruleset.ipt has the chains that do not depend on the ports of VIPs, and
// ruleset.go fills it in; chains.go and tree.go make the chains of VIPs, sets.go the entries,
// bpfmatch.go rules that hash, redirect.go the redirects. restore.go makes the input for iptables-restore.
// program.go runs iptables: for tables iptables-restore, for single rules go-iptables. ipset.go
// speaks netlink; probe.go finds both. read.go and readelements.go read what the kernel holds, and
// poller.go detects changes by other programs. forward.go opens the chain FORWARD. dump.go returns
// the rules as text, for people and tests.
package iptables
