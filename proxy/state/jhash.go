package state

import (
	"encoding/binary"
	"math/bits"
)

// KernelHash is what the kernel makes of "jhash … mod n seed 0xfa17" over these bytes, a multiple of
// four (linux/jhash.h, and reciprocal_scale in nft_hash.c).
func KernelHash(b []byte, n uint32) uint32 {
	word := func() (w uint32) {
		if len(b) >= 4 {
			w = binary.NativeEndian.Uint32(b)
			b = b[4:]
		}
		return w
	}
	start := 0xdeadbeef + uint32(len(b)) + 0xfa17
	x, y, z := start, start, start
	for len(b) > 12 {
		x, y, z = mixHash(x+word(), y+word(), z+word())
	}
	x, y, z = x+word(), y+word(), z+word()
	for _, m := range []struct {
		to, from *uint32
		by       int
	}{{&z, &y, 14}, {&x, &z, 11}, {&y, &x, 25}, {&z, &y, 16}, {&x, &z, 4}, {&y, &x, 14}, {&z, &y, 24}} {
		*m.to ^= *m.from
		*m.to -= bits.RotateLeft32(*m.from, m.by)
	}
	return uint32(uint64(z) * uint64(n) >> 32)
}

// mixHash is __jhash_mix.
func mixHash(x, y, z uint32) (a, b, c uint32) {
	for _, by := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
		x -= z
		x ^= bits.RotateLeft32(z, by[0])
		z += y
		y -= x
		y ^= bits.RotateLeft32(x, by[1])
		x += z
		z -= y
		z ^= bits.RotateLeft32(y, by[2])
		y += x
	}
	return x, y, z
}
