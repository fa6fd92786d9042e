package proxytest

import (
	"encoding/binary"
	"net/netip"

	"github.com/fanfare-lb/fanfare/proxy/state"
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

// KernelSlot is the slot that the rules of nftables choose for these bytes.
func KernelSlot(b []byte, n int) int { return int(state.KernelHash(b, uint32(n))) }
