// Package nftables writes a State as table inet fanfare: static chains (ruleset.nft), and sets and
// maps for all that depends on Services, so that one changed endpoint is a few elements in one
// transaction. See docs/concepts/proxy-tables.md. It also writes the tables that redirect
// connections to the previous owner of an address, counts what affinity has no room for, and finds
// out what of nftables is missing on the node.
//
// It does not listen to changes by other programs, and does not touch conntrack: package proxy and
// package conntrack do.
//
// renderer.go is the entry. ruleset.nft has the rules (DNAT, SNAT and masquerade, source ranges, what is
// refused), and ruleset.go makes from it the text that nft loads. batch.go makes transactions of
// elements and parts.go splits a large one; readtable.go reads the table, and damage.go compares it with
// what was written. upgrade.go replaces a table of another version. affinity.go has the rules of session
// affinity and affinityeviction.go makes room in its maps; redirect.go has the redirects, probe.go what
// the kernel lacks.
package nftables
