// Package plan decides what one node does: [Decide] is a pure function from a
// [cluster.Snapshot] and a [Config] to a [Desired], with a Reason for every yes and no.
// `fanfare plan` prints it.
//
// A Desired is keyed by address, never by Service, and has three parts: what the
// kernel forwards (proxy.State), what routers receive (bgp.State), and what this node
// answers for by ARP and NDP (l2.State).
//
// The decision runs in this order, and no value returns to an earlier step:
//
//   - view.go: what does not depend on Services: the node, its routers (peers.go), candidates
//     for owners (election.go), and which nodes are silent (silent.go).
//   - holders.go: which Services hold which address.
//   - decide.go, for each address: endpoints.go (which endpoints get new flows and which only
//     keep existing ones) with hints.go, frontends.go with sources.go, election.go (the owner
//     over Layer 2), sharing.go (an address of several Services), refusals.go (what the proxy
//     cannot hold), advertise.go, attributes.go and weights.go (the routes), reasons.go.
//   - announcements.go: the routes of all addresses, with aggregates.go; healthchecks.go.
//   - lingering.go: how a withdrawn address is still forwarded.
//
// A [Decider] computes the same incrementally: what has not changed since the last snapshot
// keeps its pointers and slices, so that callers compare only these.
//
// Nothing here touches the kernel, the network or the API server; package speaker
// applies a Desired, and package internal/election elects.
package plan
