// Package controller allocates addresses to Services, where there is an API server.
//
// It reads a snapshot of the cluster, has internal/ipam decide which Service gets
// which address, and writes the difference: AddressClaims, the Services' status
// and Events. The API server is the database; this package remembers
// only its recent writes.
//
// # No address twice
//
// Two controllers may write at the same time, in spite of the Lease: one that was
// suspended for a minute does not know that it no longer leads. Caches lag, and
// responses get lost. These rules hold in all cases, because the API server
// checks them:
//
//   - Claim before status. The controller writes an address into a status only if the
//     Service has its AddressClaim. A claim's name is the address: there cannot be two.
//   - A claim is bound to the version of the Service that was read before it
//     was written, and the status is written over that version only.
//   - Status before release. A claim goes, or loses a holder, only when the
//     Service, read after the claim, does not have the address and is at another
//     version than the one the claim is bound to; if it is not, it is touched
//     first. A status write that is still in flight then fails.
//   - A claim is changed and deleted only at the version that was read.
//
// If the API server has another version than the snapshot, nothing is written: the next pass has a newer
// snapshot.
//
// # Files
//
// controller.go is the loop: plan.go decides what to write, with balance.go (nodes) and
// reservations.go. write.go writes it by client.go: claims.go has the AddressClaims, servicestatus.go
// the status of a Service, and contest.go limits how often it is written back after another controller
// has changed it. poolstatus.go and advertisementstatus.go report on objects, and events.go on Services.
// leaderelection.go holds the Lease.
//
// # Balance over nodes
//
// If addresses are announced by ARP and NDP, claims also name the node that should answer, so
// that nodes that can have the same addresses have equally many (package
// internal/election). That is only for balance: speakers decide which
// node answers, and do not wait for the controller. So the controller accepts a change of
// a node only when it has lasted.
//
// debouncer.go and poolusage.go support balancing and pool status, diagnosis.go and conditionreason.go
// explain conditions, and claimannounce.go keeps claims equal to their pools. memberskey.go creates
// the speakers' key. health.go and metrics.go are for the kubelet and Prometheus.
package controller
