// Package ipam decides which Service holds which address.
//
// [Allocator.Allocate] is a pure function of a snapshot. Services keep the addresses that they hold,
// and Services without one get one, the oldest first. A held address is taken away only for
// a reason that its own Service gives: not because a pool shrinks, excludes the Service now
// or overlaps with a node, nor because another Service requests it. A Service never gets an
// address from a pool that excludes it.
//
// Where nothing else decides, an address's position in its pool is a hash of the Service's
// name, so that nodes that decide alone agree; docs/decisions/0001 says what that can and
// cannot promise. [NewSource] is for speakers without an API server, where no controller
// decides.
//
// Read allocate.go first, the order of decisions, then holdings.go (which Service has which address, and what says so),
// request.go (what a Service asks for), pools.go and find.go (a search for an address in the pools that it may use),
// position.go (the order of a pool's addresses), eligibility.go, sharing.go and quota.go. allocator.go allocates for
// successive snapshots.
//
// foreign.go leaves addresses of other implementations alone, or ignores them where Claims decide, keep.go lets
// Services keep theirs, and says where they would not get them now, exhausted.go explains that no address is free,
// reserve.go holds addresses of deleted Services, conflict.go replaces new addresses that other hosts use, and count.go
// counts a pool's. For speakers, source.go allocates without a controller, and reader.go reads what a controller has
// allocated.
package ipam
