// Package redirect decides to which nodes this node sends packets of connections to Layer 2
// addresses that its kernel does not know: to the other nodes that answered for the address, in
// whose kernels the connections began.
//
// Read redirect.go first: [Redirects] are the rules. They follow from the owners of each address,
// which a [History] in history.go remembers. Package proxy programs them.
// docs/concepts/connections.md explains the path of a packet.
package redirect
