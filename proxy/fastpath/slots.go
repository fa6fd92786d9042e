package fastpath

import "math"

// slotsOf returns one slot for each backend, by Vose's alias method: all slots are equally
// likely, and each has a second backend for the share that the first does not fill. So a
// packet needs one lookup, whatever the weights.
func slotsOf(backends []Backend) []kernelSlot {
	var total uint64
	for _, b := range backends {
		total += effectiveWeight(b)
	}
	// Each slot holds total; a backend fills its share of all slots' content.
	slots, content := make([]kernelSlot, len(backends)), make([]uint64, len(backends))
	var poor, rich []int
	sort := func(i int) {
		if content[i] < total {
			poor = append(poor, i)
		} else {
			rich = append(rich, i)
		}
	}
	for i, b := range backends {
		k := kernelBackend{Address: addressOf(b.Addr.Addr()), Port: b.Addr.Port()}
		slots[i] = kernelSlot{Backend: k, Other: k, Keep: math.MaxUint32}
		content[i] = effectiveWeight(b) * uint64(len(backends))
		sort(i)
	}
	for len(poor) > 0 && len(rich) > 0 {
		p, r := poor[len(poor)-1], rich[len(rich)-1]
		poor, rich = poor[:len(poor)-1], rich[:len(rich)-1]
		slots[p].Other, slots[p].Keep = slots[r].Backend, threshold(content[p], total)
		content[r] -= total - content[p]
		sort(r)
	}
	return slots
}

// effectiveWeight returns a backend's weight; 0 counts as 1.
func effectiveWeight(b Backend) uint64 { return uint64(max(b.Weight, 1)) }

// threshold returns the n for which a random 32-bit number is at most n with probability
// part/whole.
func threshold(part, whole uint64) uint32 {
	// At most 65535 backends of weight 65535: part and whole are below 2^48.
	return uint32(max(float64(part)/float64(whole)*(1<<32), 1) - 1)
}
