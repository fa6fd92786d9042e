// Package radv discovers the router at the other end of a link by its router
// advertisements, and sends advertisements by which the router discovers this node (RFC
// 4861). BGP unnumbered sessions begin with it.
//
// The advertisements offer nothing: their router lifetime is 0, so that hosts do not use
// this node as default router (§6.2.3), and they contain no prefix. Of received
// advertisements only the sender's address is used; the kernel processes them as without
// this package.
//
// A link should have two ends. If it has several routers, the first one counts until it is silent,
// so that another host cannot take the session over; [Watch.Other] reports such a host.
//
// radv.go is the loop over a link; conn.go sends and receives on it, link.go describes this node's
// end, and routers.go chooses the router.
package radv
