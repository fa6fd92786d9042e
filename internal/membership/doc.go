// Package membership says which nodes are alive, as one node knows it: [Members].
//
// A [Tracker] combines two sources. Package gossip, below it, probes the speakers of all
// nodes, within a fraction of a second. Each speaker also renews a Lease in the API
// server; the Leases of nodes that do not answer are watched: a node that still renews
// its Lease is alive, even if gossip does not reach it.
//
// The endpoints of a dead node are left out as long as fewer than half of the nodes are
// dead: otherwise this node may be the one that is cut off.
//
// Speakers also exchange, through a Tracker, by which interfaces they can answer for
// addresses ([EncodeInterfaces]), and messages whose meaning package speaker knows.
package membership
