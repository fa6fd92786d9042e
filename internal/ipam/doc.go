// Package ipam decides which Service holds which address.
//
// [Allocate] is a pure function of a snapshot. It keeps what Services hold and
// gives addresses to those that have none, the oldest first. An address that is
// served is never taken away for a reason that its own Service did not give: not
// because a pool shrank, is for others now or belongs to a node, not because another
// Service asks for it. An address of a pool that is not for it no Service is given.
//
// Where nothing else decides, an address's place in its pool is a hash of the
// Service's name, so that nodes that decide alone come to the same address; what
// that can and cannot promise is in docs/decisions/0001. [NewSource] is for
// speakers without an API server, where nobody else decides.
package ipam
