// Package cluster turns Kubernetes objects into values that the rest of Fanfare
// can decide on: parsed once, checked once, and immutable.
//
// A [Snapshot] is the cluster at one instant. Parts that did not change between
// two snapshots are the same pointers, so that a reader that keeps the previous one
// finds changes by comparing pointers. An object that does not parse is
// not an error: it becomes a [Problem], and everything else continues to work.
//
// A [Builder] makes snapshots of objects: builder.go accepts objects, assemble.go makes the snapshot,
// and each kind has a file that parses it. A Builder reads no files and
// sends no requests: internal/watch does, and has the implementations of [Source].
//
// Package cluster decides nothing: internal/ipam decides which Service gets an address, and
// internal/plan which node announces it.
//
// # Files
//
//   - snapshot.go is the result, with assignment.go (which Service has which address), sets.go, source.go,
//     key.go (the names of objects), problem.go (what is wrong with objects), suggestion.go (the name that was
//     meant), reason.go (Reason and the codes of both), version.go and configuration.go (the last valid versions).
//   - builder.go, assemble.go and table.go make it; trim.go drops what is never read.
//   - AddressPool: pool.go, address.go (ranges), eligibility.go (which Services), permission.go (what
//     they may change); occupied.go and duplicate.go find overlaps. AddressClaim: claim.go.
//   - BGPPeer: peer.go, secret.go (passwords). BGPAdvertisement: advertisement.go, aggregate.go,
//     community.go. L2Advertisement: l2advertisement.go. SpeakerStatus: speaker.go.
//   - Service: service.go, annotations.go (requests), unknownannotation.go, unserved.go (why not), affinity.go,
//     scheduler.go, sourceranges.go; endpoints.go (EndpointSlices), serviceports.go, renamedports.go (which of their
//     ports a Service has), join.go (all slices of a Service), portgroup.go and readiness.go (what decisions need).
//     node.go and namespace.go.
//   - What several of these use: selector.go. references.go checks names between objects.
package cluster
