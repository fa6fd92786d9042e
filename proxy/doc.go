// Package proxy forwards the traffic of virtual addresses (VIPs) to their endpoints with
// the kernel's netfilter.
//
// The contract is three names. A [State] is a plain value: everything that this node
// must forward. [Proxy.Set] applies it, from any state to any state. Afterwards,
//
//   - if Set returned nil, the kernel forwards what the State says and nothing else;
//   - if it returned a [Refused], the VIPs named there are as they were, and all others
//     are set. [Limits] bound what one VIP may have;
//   - after any other error the kernel forwards what it did before, or already what
//     the State says if only the tidying up failed. The next Set reads the
//     kernel's rules first.
//
// What takes longer than a change of rules runs beside Set: a walk through conntrack's table, and
// programs that open FORWARD. [Proxy.Unprepared] returns the prefixes that wait for it, and no new
// address of these should be announced.
//
// New flows follow the rules at once. Flows that have become wrong, because their backend is gone or
// their source is forbidden, end within about a second after Set has returned. [Proxy.Changed]
// signals that another program changed the rules; the next Set repairs them. [Proxy.Status] reports
// what was done, what failed without failing Set, and [obstacle.Obstacle] values: what else on this node
// blocks traffic.
//
// There are two renderers of a State. [ModeNFTables] (package nftables) writes one table, inet
// fanfare. It has static chains, and sets and maps for all that depends on Services, so that one
// changed endpoint is a few elements in one transaction. [ModeIPTables] (package iptables) writes
// chains and ipsets, where nftables is missing. [Options.FastPath] adds a program on tcx hooks
// (package fastpath) that forwards simple flows without the rules, which stay complete.
//
// Read proxy.go first: what Set does with a State, step by step. accept.go refuses what is wrong in it,
// and finds what the kernel rejects; ruleset.go changes the rules by the differences, or starts from what
// the kernel holds: it adopts the table of an earlier process, and repairs what other programs changed.
// preparation.go and forwardopener.go run afterwards what takes longer. watch.go listens to nftables
// notifications, as `nft monitor` does, and integrity.go records whether other programs changed the
// rules. errors.go distinguishes such changes from mistakes in the State. status.go and metrics.go
// report. state.go has the names of package state, and mode.go chooses the renderer. fastpath.go
// updates the fast path with the frontends that fastpath_selection.go and fastpath_eligible.go
// select.
//
// The package knows no Kubernetes. It announces no address, checks no endpoint's health and sets no
// sysctl: the node must forward already, as it must for its pods.
//
// In docs/concepts: packet-path.md has the hooks and the packet path, proxy-tables.md the nftables
// table set by set and the order of transactions, connections.md conntrack and redirects to a VIP's
// previous owner, iptables-mode.md the other renderer.
package proxy
