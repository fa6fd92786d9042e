package proxytest

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// hashSeed is the seed of the rules of all backends: a change would send clients elsewhere.
const hashSeed = 0xfa17

// ProgramSlot is what clientProgram computes.
func ProgramSlot(client netip.Addr, slots int) int {
	hash := uint32(hashSeed)
	for b := client.AsSlice(); len(b) > 0; b = b[4:] {
		hash = (hash ^ binary.BigEndian.Uint32(b)) * 0x85ebca6b
		hash ^= hash >> 13
	}
	hash *= 0xc2b2ae35
	return int((hash ^ hash>>16) % uint32(slots))
}

// ProgramFlowSlot is what slotsProgram computes.
func ProgramFlowSlot(client netip.AddrPort, slots int) int {
	hash := (uint32(client.Port()) ^ hashSeed) * 0x85ebca6b
	for b := client.Addr().AsSlice(); len(b) > 0; b = b[4:] {
		hash = (hash ^ binary.BigEndian.Uint32(b)) * 0x85ebca6b
	}
	hash = (hash ^ hash>>16) * 0x85ebca6b
	hash = (hash ^ hash>>13) * 0xc2b2ae35
	return int((hash ^ hash>>16) % uint32(slots))
}

// KernelSlot is what the kernel makes of "jhash … mod n seed 0xfa17" over these
// bytes, a multiple of four (linux/jhash.h, and reciprocal_scale in nft_hash.c).
func KernelSlot(b []byte, n int) int {
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
		x, y, z = x+word(), y+word(), z+word()
		x -= z
		x ^= bits.RotateLeft32(z, 4)
		z += y
		y -= x
		y ^= bits.RotateLeft32(x, 6)
		x += z
		z -= y
		z ^= bits.RotateLeft32(y, 8)
		y += x
		x -= z
		x ^= bits.RotateLeft32(z, 16)
		z += y
		y -= x
		y ^= bits.RotateLeft32(x, 19)
		x += z
		z -= y
		z ^= bits.RotateLeft32(y, 4)
		y += x
	}
	x, y, z = x+word(), y+word(), z+word()
	for _, m := range []struct {
		to, from *uint32
		by       int
	}{{&z, &y, 14}, {&x, &z, 11}, {&y, &x, 25}, {&z, &y, 16}, {&x, &z, 4}, {&y, &x, 14}, {&z, &y, 24}} {
		*m.to ^= *m.from
		*m.to -= bits.RotateLeft32(*m.from, m.by)
	}
	return int(uint64(z) * uint64(n) >> 32)
}
