// Package speaker is the agent that runs on every node: it applies what package
// internal/plan decides for the node, in an order that never announces what would
// be dropped. A pass applies a [plan.Desired] in three steps:
//
//  1. shrink: withdraw what is announced and no longer wanted,
//  2. forward: program everything that is wanted, still announced or lingering, in
//     one transaction,
//  3. grow: announce what is wanted and programmed.
//
// Two invariants hold, whatever fails:
//
//   - I1: announced addresses are a subset of programmed addresses, at every instant.
//   - I2: an address is forwarded for at least the linger time after it left the
//     network. BGP has no acknowledgement, and routers need a moment to receive and
//     apply a withdrawal, so lingering is a time.
//
// The only exception to I1 is another program that destroys the table. The speaker repairs
// the table, and withdraws the addresses if the repair fails.
//
// The files, in reading order:
//
//   - speaker.go has the options and the loop, shutdown.go the end of it.
//   - pass.go is one pass over its announce paths, BGP and L2: announcepath.go and linger.go,
//     with bgpannouncer.go and l2announcer.go below them.
//   - layer2.go is what L2 needs from other nodes: which interfaces they know (interfaces.go),
//     what speakers report to each other about addresses (handover.go, message.go), which
//     addresses need not wait for another node (admission.go). Package redirect follows where
//     established connections go.
//   - gateway.go and uplinks.go follow the node's network configuration by netwatch.go.
//   - status.go is the state after a pass, for `fanfare status` (server.go), with
//     attention.go and healthcheck.go. speakerstatus.go reports it to the API server,
//     with the addresses that other hosts use (conflictreport.go).
//   - events.go and addressevents.go derive Events, and eventrecorder.go writes them.
//   - Package rundir, below this one, saves state for the next speaker in the run directory.
//   - What several of these use: podnetwork.go, metrics.go.
//     eventreason.go has the reasons of Events.
package speaker
