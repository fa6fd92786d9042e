// Package membership decides which nodes are alive, as one node sees it: [Members].
//
// A [Tracker] combines two sources. Package gossip, below it, probes the speakers of all nodes,
// within a fraction of a second. Each speaker also renews a Lease in the API server, slowly while
// gossip reaches all nodes. The Leases of nodes that do not respond are watched: a node that still
// renews its Lease is alive, even if gossip does not reach it.
//
// The endpoints of a dead node are left out while fewer than half of the nodes are dead: otherwise
// this node itself may be cut off. A node that returns has a [HoldDown].
//
// Speakers also use the Tracker to exchange the interfaces by which they can answer for addresses
// ([NodeMeta]), and the messages of package speaker.
//
// The files, from the outside in: tracker.go combines the sources into members.go; leases.go renews
// this node's Lease, leasewatch.go watches those of others, both by leaseclient.go; interfaces.go
// encodes a node's metadata, holddown.go delays a node that returned, status.go reports.
package membership
