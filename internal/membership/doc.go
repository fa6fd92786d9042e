// Package membership says which nodes are alive, as one node knows it: [Members].
//
// A member is alive while its speaker answers, or while it still renews its Lease.
// The endpoints of a dead node are left out as long as fewer than half of the nodes
// are dead: otherwise this node may be the one that is cut off.
//
// The package only evaluates. Package gossip, below it, probes the nodes, and package
// speaker combines its result with the Leases.
package membership
