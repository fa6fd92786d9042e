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
// # Files
//
// [Server.Set] (bgp.go) compares the current with the wanted state (diff.go), hands routes to
// GoBGP (routes.go, gobgp.go) and keeps one goroutine per session (session.go). That
// goroutine dials the router (dial.go) and hands the connection to GoBGP (accept.go) until it
// ends; then it dials again. GoBGP's own dialler waits 1.5 to 2 s before every
// attempt, the first included, and another 5 s after a session was lost; neither can be
// configured. It also logs only why an attempt failed. For the router at the other end of a link,
// [radv] finds the address.
//
// The connection passes through a wire (wire.go), which parses the router's OPEN,
// the NOTIFICATIONs of both sides and the End-of-RIB of this node: so [Status] reports what
// was on the wire. It also writes the next hops into UPDATEs (nexthop.go): GoBGP has one
// for both families.
//
// state.go has the contract, and check.go what a State must fulfil. tcpmd5.go, ttl.go and localaddress.go
// set up the socket; addresswatch.go ends sessions whose local address leaves the node; gracefulrestart.go has the capability and the wait for End-of-RIB, and gracefulshutdown.go
// adds GRACEFUL_SHUTDOWN to the routes of a node that leaves (RFC 8326); status.go reports, with
// reason.go (why a session ended), advertised.go (the routes of a session), log.go and metrics.go.
//
// # BFD
//
// The state machine with its timers (bfd.go) is RFC 5880 section 6.8 as a value. A detector
// (bfd_detector.go) gives it a clock and sockets (bfd_socket.go). The detector accompanies a session whose
// [Session] has a [BFD] (bfd_config.go), and ends the connection when the router is lost. bfd_packet.go
// encodes packets. Transcripts of real routers in testdata/bfd show what such a machine does.
//
// # Attributes
//
// A [Route] has [PeerAttributes] (attributes.go): the attributes for each router. GoBGP's table has the attributes
// that are equal for all routers. The others, and attributes that depend on the
// session, are marks on the route. GoBGP's export policy replaces a mark by its attributes
// (policy.go, exportpolicy.go, definedsets.go), so that no router sees one. The table also has a route's weight, and the policy
// removes it for routers without weights (linkbandwidth.go): each
// change of a weight is an UPDATE to all routers that have the route. A route whose attributes change is
// announced again, and not withdrawn before: the UPDATE replaces the old one
// (RFC 4271 §3.1). Attributes for each kind of router follow RFC 4271 §5.1:
// preferences go to iBGP routers only, the local AS number to eBGP routers only.
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
package bgp
