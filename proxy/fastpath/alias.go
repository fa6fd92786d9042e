package fastpath

import "math"

// slotsOf shares out slots, one for each backend, by Vose's alias method: each is
// chosen as likely as any other and has a second backend for what the first is not
// worth. So a packet needs one lookup whatever the weights are.
func slotsOf(backends []Backend) []kernelSlot {
	var total uint64
	for _, b := range backends {
		total += share(b)
	}
	// A slot's content is total; a backend's is its share of all slots' content.
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
		content[i] = share(b) * uint64(len(backends))
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

// share is a weight; none counts as one, as everywhere.
func share(b Backend) uint64 { return uint64(max(b.Weight, 1)) }

// threshold is the largest of the random numbers, of 32 bits, that make part of whole.
func threshold(part, whole uint64) uint32 {
	// At most 65535 backends of weight 65535: part and whole are below 2^48.
	return uint32(max(float64(part)/float64(whole)*(1<<32), 1) - 1)
}
