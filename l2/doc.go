// Package l2 answers for addresses on the links of one node, as a [State] says: ARP
// (RFC 826) for IPv4, Neighbor Discovery (RFC 4861) for IPv6. It is how a network
// without a router that speaks BGP learns which node has an address.
//
// It knows addresses, interfaces and hardware addresses, and nothing of Services, nor of
// which node should have an address: whoever makes the State has decided that.
// The addresses are on no interface of the node, and stay on none: the kernel neither
// answers for them nor takes what is sent to them for its own.
package l2
