// Package election decides which node answers for an address by ARP and NDP.
//
// Exactly one node should answer, and nodes do not negotiate: each computes the same owner
// from what all of them see, [Candidates] and an [Address]. The functions are pure: the
// result depends neither on the order of objects nor on the node that computes. A candidate
// is a node that
//
//   - is alive, Ready, not excluded, and has a network,
//   - is selected by an L2Advertisement that selects the address ([EligibilityOf]),
//   - has an interface in the address's subnet that it allows, or one that it names,
//   - has an endpoint, where externalTrafficPolicy is Local.
//
// Among the candidates, the owner is the first by these criteria in order: it is not about
// to leave; it serves the most of the Services that share the address; a Service names it
// by annotation; the address's AddressClaim names it; L2Advertisements prefer it; it has
// the highest hash of address and node. With rendezvous hashing, a removed node's addresses
// move to nodes all over the cluster, and no others move.
//
// A hash spreads evenly only on average: 30 addresses over three nodes may come to 14, 9 and 7.
// [Balance] computes which nodes claims should name, so that equal candidates have the same number
// of addresses, give or take one, and few addresses move. The controller writes the result into
// claims. Without a claim, or without an API server, the hash decides.
//
// The files: node.go and address.go are the input, eligibility.go what L2Advertisements allow,
// election.go ranks nodes and gives the reason, hash.go is the last criterion, and balance.go
// computes the nodes for claims.
package election
