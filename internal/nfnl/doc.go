// Package nfnl is a netlink codec for netfilter: a synchronous socket, messages,
// attributes, and the expressions of nftables rules. It has no tables, sets or connections;
// these are in package proxy.
package nfnl
