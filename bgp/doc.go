// Package bgp keeps the BGP sessions and routes of one node as a [State] says.
//
// It knows routers, sessions and prefixes, and nothing of Services. It embeds
// GoBGP, which stays hidden in it: sessions are opened by us, nothing is
// listened on, nothing that a router sends is accepted or installed.
//
// What a router is told follows RFC 4271; IPv6 routes RFC 4760; restarts without
// loss RFC 4724.
package bgp
