// Package observer records what a network of namespaces does, on one clock, for the
// laboratory of e2e/lab: changes of nodes' rules, BGP UPDATEs that reach a router, changes of
// the router's routes, claims of addresses over layer 2, and the paths of packets. A [Verdict]
// says whether nodes announced only what they forwarded.
//
// It reads sockets and notifications of the kernel, and shares no code with Fanfare.
//
// observer.go collects events: update.go (BGP), rtnetlink.go (routes), nftables.go (rules) or poll.go
// (ipsets), claims.go and arpndp.go (layer 2), paths.go (packets), by listener.go and stamp.go.
// verdict.go judges them.
package observer
