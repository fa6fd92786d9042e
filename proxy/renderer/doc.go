// Package renderer has what a backend of the proxy must do, and what it gets for that: the
// packages that write a State in the words of nftables or of iptables are renderers.
package renderer
