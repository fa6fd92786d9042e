// Package nfnl is a netlink codec for netfilter: a synchronous socket, messages
// and attributes. It has no tables, sets or connections;
// these are in package proxy.
//
// Read socket.go first, then attribute.go (messages), and generation.go
// (which change of nftables a process has seen).
package nfnl
