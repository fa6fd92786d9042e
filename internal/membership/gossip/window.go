package gossip

const (
	windowWords = 16
	// windowSize is how many numbers below the newest one a window distinguishes. A node
	// numbers its packets across all receivers, of which each receives one in many.
	windowSize = (windowWords - 1) * 64
)

// A window detects copies of what one sender has numbered. It is that of IPsec (RFC 4303
// §3.4.3), in the ring of RFC 6479.
type window struct {
	newest uint64
	seen   [windowWords]uint64 // bit i%64 of word i/64, of the ring: number i has arrived
}

// accept reports whether a number is new, and records it. One that is older than the window
// is taken for a copy.
func (w *window) accept(seq uint64) bool {
	if seq > w.newest {
		first, last := w.newest/64+1, seq/64
		for i := range min(last+1-min(first, last+1), windowWords) {
			w.seen[(last-i)%windowWords] = 0
		}
		w.newest = seq
	}
	word, bit := &w.seen[seq/64%windowWords], uint64(1)<<(seq%64)
	if w.newest-seq >= windowSize || *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// A bootWindow detects copies of one node's messages, and messages of its earlier processes,
// whose boot numbers are lower.
type bootWindow struct {
	boot uint64
	window
}

// isBehind reports whether a number is of an earlier process, or too old to be distinguished.
func (w *bootWindow) isBehind(boot, seq uint64) bool {
	return boot < w.boot || boot == w.boot && w.newest > seq && w.newest-seq >= windowSize
}

// accept reports whether message seq of the process with this boot number is new.
func (w *bootWindow) accept(boot, seq uint64) bool {
	switch {
	case boot < w.boot:
		return false
	case boot > w.boot:
		*w = bootWindow{boot: boot}
	}
	return w.window.accept(seq)
}
