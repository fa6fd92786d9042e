// Package plan decides what one node does: [Decide] is a pure function from a
// [cluster.Snapshot] and a [Config] to a [Desired], with a Reason for every yes and no.
// `fanfare plan` prints it.
//
// A Desired is keyed by address, never by Service, and has three parts: what the
// kernel forwards (proxy.State), what routers receive (bgp.State), and what this node
// answers for by ARP and NDP (l2.State).
//
// The files are in this order, which is that of the decision: a function calls only functions
// of its own file and of later ones, and no value returns to an earlier file.
//
//   - config.go, desired.go: the contract.
//   - decider.go: [Decider] computes the same as Decide about successive snapshots. It decides
//     only about the addresses that a change concerns; everything else keeps its pointers and
//     slices, so that callers compare only these.
//     share.go: which of them have to yield to others where the node lacks room; revision.go: what is
//     different.
//   - inputs.go: what does not depend on Services: the node, its pools and its candidates;
//     podnetwork.go: its pods; drain.go: why it announces nothing, as when it is drained.
//   - announcements.go: the lists of all addresses; healthchecks.go.
//   - decide.go decides about one address, and reason.go explains that when it is asked for;
//     unserved.go: why ports have no endpoint.
//   - frontends.go, with endpoints.go (which endpoints get new flows and which only keep
//     existing ones), unresponsive.go (nodes whose endpoints are left out) and topologyhints.go.
//   - election.go (the owner over Layer 2), sharing.go (ports without a common node),
//     refusals.go (what the proxy cannot hold), obstructed.go (what the kernel certainly drops),
//     room.go (how namespaces share what a node has room for).
//   - The routes: advertise.go, aggregate.go, attributes.go, weights.go, peers.go.
//   - What several of these use: addressservice.go, portendpoints.go, sourceranges.go,
//     lookup.go.
//
// Nothing here touches the kernel, the network or the API server; package speaker
// applies a Desired, and package internal/election elects.
package plan
