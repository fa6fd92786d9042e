// Package nftables writes a State as table inet fanfare: static chains (ruleset.nft), and sets and
// maps for all that depends on Services, so that one changed endpoint is a few elements in one
// transaction. See docs/concepts/proxy-tables.md. It also writes the tables that redirect
// connections to the previous owner of an address, counts clients that affinity cannot record, and
// detects missing parts of nftables on the node.
//
// It does not listen to changes by other programs, and does not touch conntrack: package proxy and
// package conntrack do.
//
// renderer.go is the entry. ruleset.nft has the rules (DNAT, SNAT and masquerade, source ranges,
// rejects), and ruleset.go turns it into the text that nft loads. batch.go makes transactions, and
// parts.go splits large ones. readtable.go reads the table, and damage.go compares it with what was
// written. program.go runs nft, in a version that can read the node's tables. reload.go restores a
// damaged table, and upgrade.go replaces one of another version. affinityeviction.go makes room in
// the maps of session affinity. redirect.go has the redirects (redirect.nft), and probe.go detects what the kernel
// lacks.
package nftables
