// Package renderer defines the interface of a backend of the proxy, and what the proxy gives
// to a backend. A renderer writes a State into the kernel as rules of nftables or of iptables.
//
// renderer.go is that interface, tables.go the names of the tables.
package renderer
