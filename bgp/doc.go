// Package bgp keeps the BGP sessions and routes of one node as a [State] says.
//
// It knows routers, sessions and prefixes, and nothing of Services. It embeds
// GoBGP, which stays hidden in it: sessions are opened by us, nothing is
// listened on but for a session that waits for its router (listen.go), nothing
// that a router sends is accepted or installed.
//
// Messages follow RFC 4271; IPv6 routes RFC 4760; IPv4 routes with
// IPv6 next hops RFC 8950; restarts without loss RFC 4724.
//
// # Who does what
//
// [Server.Set] compares the current with the wanted state (diff.go), hands routes to
// GoBGP (gobgp.go) and keeps one goroutine per session (session.go). That
// goroutine dials the router (dial.go) and gives the connection to GoBGP, which
// speaks BGP on it until it ends; then it dials again. Dialling ourselves has a
// reason: GoBGP waits 1.5 to 2 s before every attempt, the first included, and
// another 5 s after a session was lost, and neither can be configured. The wire also
// shows why a session does not come up, which GoBGP only logs. Where the router is
// the one at the other end of a link, [radv] finds it.
//
// The connection passes through a wire (wire.go), which reads along: it sees
// the router's OPEN, the NOTIFICATIONs of both sides and the End-of-RIB that we
// send, and so what [Status] reports is what was on the wire. It also writes the
// next hops into what GoBGP says (hop.go), which knows one for both families.
//
// # BFD
//
// A detector (bfd_detector.go) accompanies a session whose [Session] has a [BFD], and ends
// the connection when the router is lost. It gives a clock and sockets (bfd_socket.go) to a
// machine (bfd_machine.go), which is RFC 5880 section 6.8 as a value. Transcripts of real
// routers in testdata/bfd show what such a machine does.
//
// # Attributes
//
// A [Route] has [PeerAttributes]: the attributes for each router. Attributes
// that are equal for all stand in GoBGP's table; what differs, and what depends on the
// session, are marks on the route that GoBGP's export policy reads and takes away
// (selection.go, sets.go). No router sees a mark. A route's weight stands in the table,
// too, and the policy takes it away for routers that are not told (weight.go): each
// change of one is an UPDATE to all routers that have the route. A route whose attributes change is
// announced again, and not withdrawn before: the UPDATE replaces the old one
// (RFC 4271 §3.1). Attributes for each kind of router follow RFC 4271 §5.1:
// preferences go to iBGP routers only, our own AS number to eBGP routers only.
//
// # What others may rely on
//
// Routes and sessions are independent: a change of routes never touches a
// session, and a changed session is reset without touching the others: changing
// any field of a [Session] except Weights resets it, since
// all else is said in OPEN, set on the socket, or would have to be sent with every route.
// Another AS number, router ID or next hop of the State resets the sessions that use
// it.
//
// UPDATEs that a router sends end at the wire, whatever is in them: they cost no
// memory and end no session.
package bgp
