// Package election says which node answers for an address by ARP and NDP.
//
// Exactly one node shall, and no node asks another: each computes the same from what all
// of them see, an [Electorate] and an [Address]. It is pure, and neither the order in
// which objects came nor who computes makes a difference. Candidates are nodes that
//
//   - are alive, Ready, not excluded, and have a network,
//   - are selected by an L2Advertisement that selects the address ([TermsOf]),
//   - have an interface in the address's subnet that it allows, or one that it names,
//   - have an endpoint, where externalTrafficPolicy is Local.
//
// Of these the one comes first that is not about to leave; that can serve the most of the
// Services that share the address; that a Service names by annotation; that the
// address's AddressClaim names; that L2Advertisements prefer; and last the one with the
// highest hash of address and node (rendezvous hashing: when a node goes, only its own
// addresses move, and to nodes all over the cluster).
//
// A hash spreads evenly only by chance: 30 addresses over three nodes may come to
// 14, 9 and 7. [Prefer] says what nodes claims should name, so that those that are
// candidates alike have the same number of addresses, give or take one, and as few move
// as can be. The controller writes that into claims; without one, or without an API
// server, the hash decides.
package election
