package state

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// tableSizes are the numbers of slots that a table can have. They are primes, so
// that each backend's walk meets every slot. The smallest is the rule: with 251
// slots of some 100 bytes in the kernel, 1,000 frontends take 25 MB; the paper's
// 65,537 would take 6.5 GB.
var tableSizes = []int{251, 1021, 4093, 16381, 65521}

// slotsPerBackend is how many slots each backend has at least, on average. Shares
// differ by one slot, so by a fifth of the mean at most.
const slotsPerBackend = 5

// tableSize is the number of slots for n backends. It depends on n alone, since all
// nodes must agree, and in few large steps, since each of them moves most flows:
// at 51, 205, 819 and 3,277 backends.
func tableSize(n int) int {
	for _, size := range tableSizes {
		if n*slotsPerBackend <= size {
			return size
		}
	}
	return tableSizes[len(tableSizes)-1]
}

// MaglevSlots is which backend has each slot, by its index: the population of Maglev's
// lookup table (Eisenbud et al., NSDI 2016, section 3.4), with weights. It depends
// on the addresses and weights of the backends and on nothing else. Each has at
// least one slot if there are no more backends than slots.
//
// Backends take turns, and who has its turn takes the next free slot on its own
// walk through the table. A backend of the largest weight has one every round;
// others when their weights have added up to the largest.
func MaglevSlots(backends []Backend) []int {
	slots := make([]int, tableSize(len(backends)))
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

// A walk is the order in which a backend would like to have the slots.
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

// next goes on to the next free slot.
func (w *walk) next(slots []int) int {
	for slots[w.at] >= 0 {
		w.at = (w.at + w.step) % len(slots)
	}
	return w.at
}

// EffectiveWeight is the share of a backend in relation to the others'.
func (b Backend) EffectiveWeight() int { return max(1, int(b.Weight)) }

// weighted reports whether backends differ in weight.
func weighted(backends []Backend) bool {
	return slices.ContainsFunc(backends, func(b Backend) bool { return b.EffectiveWeight() != backends[0].EffectiveWeight() })
}
