// Package plan decides what one node does: [Decide] is a pure function from a
// [cluster.Snapshot] and a [Config] to a [Desired], with a Reason for every yes and
// no. It is what `fanfare plan` prints.
//
// A Desired is keyed by address, never by Service, and has three parts: what the
// kernel forwards (proxy.State), what routers receive (bgp.State), and what this node
// answers for by ARP and NDP (l2.State).
//
// The decision runs in this order:
//
//   - view.go: what does not depend on Services: the node itself, its routers, the
//     pools, and which nodes are silent (silent.go).
//   - holders.go: which Services hold which address.
//   - endpoints.go: which endpoints of a Service get new flows, which only keep theirs.
//   - decider.go, decide.go: for each address its frontends, and why the node may
//     announce it; shared.go for an address that several Services share, refused.go
//     for one that the proxy cannot hold.
//   - elect.go: which node answers for the address over Layer 2.
//   - advertise.go, attributes.go, weight.go: the BGP routes and their attributes;
//     announce.go adds up those of all addresses.
//   - health.go: which healthCheckNodePorts to serve.
//
// A [Decider] computes the same incrementally: what did not change since the last
// snapshot keeps its pointers and slices, so that a caller can compare them without
// reading them.
//
// Nothing here touches the kernel, the network or the API server; package speaker
// applies a Desired, and package internal/election elects.
package plan
