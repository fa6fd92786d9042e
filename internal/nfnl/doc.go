// Package nfnl is the netlink codec of netfilter: a socket whose requests are answered
// before they return, messages and attributes, and the expressions of nftables' rules.
// It knows no table, set or connection: package proxy does.
package nfnl
