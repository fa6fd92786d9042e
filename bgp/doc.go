// Package bgp keeps the BGP sessions and routes of one node as a [State] says.
//
// It knows routers, sessions and prefixes, and nothing of Services. It embeds
// GoBGP and hides it. The package opens the sessions itself, listens only
// for a session that waits for its router (listen.go), and never accepts or installs a
// route of a router.
//
// Messages follow RFC 4271; IPv6 routes RFC 4760; IPv4 routes with
// IPv6 next hops RFC 8950; restarts without loss RFC 4724.
//
// # Sessions
//
// [Server.Set] compares the current with the wanted state, hands routes to GoBGP and keeps one goroutine per session.
// That goroutine dials the router and hands the connection to GoBGP until it ends; then it dials again. GoBGP's own
// dialler waits 1.5 to 2 s before every attempt, the first included, and another 5 s after a session was lost; neither
// can be configured. It also logs only why an attempt failed. For the router at the other end of a link, [radv] finds
// the address.
//
// The connection passes through a wire, which parses the router's OPEN, the NOTIFICATIONs of both sides and the
// End-of-RIB of this node: so [Status] reports what was on the wire. It also writes the next hops into UPDATEs: GoBGP
// has one for both families.
//
// # Attributes
//
// A [Route] has [PeerAttributes]: the attributes for each router. GoBGP's table has the attributes that are equal for
// all routers. The others, and attributes that depend on the session, are marks on the route. GoBGP's export policy
// replaces a mark by its attributes, so that no router sees one. The table also has a route's weight, and the policy
// removes it for routers without weights: each change of a weight is an UPDATE to all routers that have the route. A
// route whose attributes change is announced again, and not withdrawn before: the UPDATE replaces the old one (RFC 4271
// §3.1). Attributes for each kind of router follow RFC 4271 §5.1: preferences go to iBGP routers only, the local AS
// number to eBGP routers only.
//
// # Guarantees
//
// Routes and sessions are independent: a change of routes never touches a
// session, and a changed session is reset without touching the others. Changing
// any field of a [Session] except Weights resets it: all other fields are in the OPEN, are set on the
// socket, or would have to be sent with every route.
// Another AS number, router ID or next hop of the State resets the sessions that use
// it.
//
// UPDATEs that a router sends end at the wire, whatever is in them: they cost no
// memory and end no session.
//
// # Files
//
// The files are in this order: a function calls only functions of its own file and of later ones.
//
//   - bgp.go: [Server.Set], and what it does in which order; metrics.go, status.go and advertised.go (the routes of a
//     session) report.
//   - addresswatch.go ends sessions whose local address leaves the node; sessions.go opens and ends sessions as a State
//     says; routes.go changes GoBGP's table while no session comes up.
//   - session.go: one session, from dialling to its end; listen.go: one that waits for its router.
//   - bfd_detector.go gives the state machine of BFD (bfd.go, RFC 5880 §6.8 as a value) a clock and sockets
//     (bfd_socket.go), and ends the connection when the router is lost. Transcripts of real routers in testdata/bfd
//     show what such a machine does.
//   - wire.go: the connection, as GoBGP sees it; dial.go opens it.
//   - gobgp.go: what GoBGP is asked to do, with gobgpaccept.go (a connection is handed over) and log.go.
//   - definedsets.go, gracefulshutdown.go (RFC 8326), exportpolicy.go and linkbandwidth.go: GoBGP's export policy,
//     made of the parts in policy.go.
//   - reason.go: why a session ended.
//   - check.go: what a State must fulfil; sessionfacts.go; diff.go.
//   - Messages: nexthop.go, gracefulrestart.go (the capability, and the wait for End-of-RIB), openmessage.go.
//   - state.go has the contract, with attributes.go, peers.go and bfd_config.go.
//   - What several of these use: bfd_packet.go; tcpmd5.go, ttl.go and localaddress.go set up the socket.
package bgp
