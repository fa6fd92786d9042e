// Package redirect decides to which nodes this node sends packets of connections to Layer 2
// addresses that its kernel does not know: to the other nodes that answered for the address, in
// whose kernels the connections began.
//
// A [History] has the owners of each address, and [Redirects] are the rules that follow from it.
// Package proxy programs them. docs/concepts/connections.md explains the way of a packet.
package redirect
