// Package speaker is the agent that runs on every node: it applies what package
// internal/plan decides for the node, in an order that never announces what would
// be dropped. A pass applies a [plan.Desired] in three steps:
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
//     network. BGP has no acknowledgement; routers need a moment to receive and to
//     act, so lingering is a time.
//
// The one exception to I1 is another program that destroys the table. The time
// until it is repaired is not ours to promise; if it cannot be repaired, the
// addresses are withdrawn.
package speaker
