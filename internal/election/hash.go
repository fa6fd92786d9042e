package election

import "net/netip"

// The hash must be the same in every version of Fanfare and on every machine: nodes of two
// versions must agree during an upgrade. Addresses and names are hashed by FNV-1a, which is
// fast for a few bytes but changes the upper bits little; mix, the finalizer of
// MurmurHash3, makes every bit depend on every other.

const (
	fnvOffset = 0xcbf29ce484222325
	fnvPrime  = 0x100000001b3
)

func hashName(name string) uint64 { return mix(fnv1a(name)) }

func hashAddr(a netip.Addr) uint64 {
	b := a.As16()
	return mix(fnv1a(b[:]))
}

func fnv1a[T string | []byte](data T) uint64 {
	h := uint64(fnvOffset)
	for i := range len(data) {
		h = (h ^ uint64(data[i])) * fnvPrime
	}
	return h
}

// score returns the weight of a node for an address in rendezvous hashing (highest random
// weight): the node with the highest score is the owner.
func score(addr, node uint64) uint64 { return mix(addr ^ node) }

func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
