package state

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// tableSizes are the possible numbers of slots in a table. They are primes, so that each backend's
// permutation visits every slot. The smallest is the usual one: with 251 slots of some 100 bytes in
// the kernel, 1,000 frontends take 25 MB; the paper's 65,537 would take 6.5 GB.
var tableSizes = []int{251, 1021, 4093, 16381, 65521}

// slotsPerBackend is the least average number of slots for each backend. Shares differ by one slot,
// so by at most a fifth of the average.
const slotsPerBackend = 5

// tableSize returns the number of slots for n backends. It depends on n alone, because all nodes
// must agree. It has few, large steps, because each moves most flows: at 51, 205, 819 and 3,277
// backends.
func tableSize(n int) int {
	for _, size := range tableSizes {
		if n*slotsPerBackend <= size {
			return size
		}
	}
	return tableSizes[len(tableSizes)-1]
}

// MaglevSlots returns the index of the backend for each slot: it populates Maglev's lookup table
// (Eisenbud et al., NSDI 2016, section 3.4), with weights. It depends only on the addresses and
// weights of the backends. Each backend has at least one slot, if there are enough.
//
// Backends take turns. In its turn, a backend takes the next free slot of its own permutation. A
// backend of the largest weight has a turn in every round; others have one when their accumulated
// weight reaches the largest.
func MaglevSlots(backends []Backend) []int { return maglevSlots(backends, tableSize(len(backends))) }

// maglevSlots is like MaglevSlots with this number of slots, which must be a prime.
func maglevSlots(backends []Backend, size int) []int {
	slots := make([]int, size)
	for i := range slots {
		slots[i] = -1
	}
	walks, largest := walksOf(backends, len(slots))
	for taken := 0; taken < len(slots); {
		for i := range walks {
			w := &walks[i]
			if w.credit += w.weight; w.credit < largest {
				continue
			}
			w.credit -= largest
			slots[w.next(slots)] = i
			if taken++; taken == len(slots) {
				break
			}
		}
	}
	return slots
}

// A walk is the permutation of the slots by a backend's preference.
type walk struct {
	at, step       int
	credit, weight int
}

func walksOf(backends []Backend, size int) (walks []walk, largest int) {
	for _, b := range backends {
		largest = max(largest, b.EffectiveWeight())
	}
	walks = make([]walk, len(backends))
	for i, b := range backends {
		h := sha256.Sum256(Encoding(nil).AddrPort(b.Addr))
		walks[i] = walk{
			at:     int(binary.BigEndian.Uint64(h[:]) % uint64(size)),
			step:   1 + int(binary.BigEndian.Uint64(h[8:])%uint64(size-1)),
			weight: b.EffectiveWeight(),
			credit: largest - b.EffectiveWeight(), // all have a turn in the first round
		}
	}
	return walks, largest
}

// next returns the next free slot.
func (w *walk) next(slots []int) int {
	for slots[w.at] >= 0 {
		w.at = (w.at + w.step) % len(slots)
	}
	return w.at
}

// EffectiveWeight is the backend's share, relative to the others.
func (b Backend) EffectiveWeight() int { return max(1, int(b.Weight)) }

// weighted reports whether backends have different weights.
func weighted(backends []Backend) bool {
	return slices.ContainsFunc(backends, func(b Backend) bool {
		return b.EffectiveWeight() != backends[0].EffectiveWeight()
	})
}
