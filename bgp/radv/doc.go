// Package radv finds the router at the other end of a link by its router
// advertisements, and sends advertisements of its own by which the router finds this
// node (RFC 4861). It is what BGP sessions without configured addresses begin with.
//
// The advertisements offer nothing: their router lifetime is 0, so that nobody takes
// this node for a default router (§6.2.3), and no prefix is in them. Of what others
// advertise only the sender's address is used; the kernel does with the rest what it
// does without this package.
//
// A link is meant to have two ends. On one with several routers, the one heard last
// counts.
package radv
