// Package speaker is what runs on every node: it decides what this node shall
// forward and announce, and makes the kernel and the network match in an order
// that never advertises what would be dropped.
//
// [Decide] is a pure function from a [cluster.Snapshot] to a [Desired]. A pass
// applies a Desired in three steps:
//
//  1. shrink: what is announced and no longer wanted is withdrawn,
//  2. forward: the kernel is given everything that is wanted, still announced or
//     lingering, in one transaction,
//  3. grow: what is wanted and programmed is announced.
//
// Two invariants follow, whatever fails:
//
//   - I1: announced is a subset of programmed, at every instant.
//   - I2: an address is forwarded for at least the linger time after it left the
//     network. BGP has no acknowledgement; routers need a moment to hear and to
//     act, so lingering is a time.
//
// The one exception to I1 is somebody else who destroys the table. The time
// until it is repaired is not ours to promise; if it cannot be repaired, the
// addresses are withdrawn.
package speaker
