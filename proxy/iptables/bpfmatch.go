package iptables

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// To choose a backend by hash, a rule has a program of classic BPF (xt_bpf), which sees the
// packet from the first byte of the IP header. Such a program has 64 instructions at most
// (XT_BPF_MAX_NUM_INSTR), too few for the hash that the rules of nftables compute. So nodes in
// iptables mode agree with each other, but not with nodes in nftables mode.

// hashSeed is the seed of the rules of nftables too. xt_cluster hashes and scales as nft_hash
// does, so where a rule uses it, both modes choose the same backend.
const hashSeed = 0xfa17

// The offset of the source address in the IP header in bytes, and its length in words of 32
// bits, by family.
var (
	sourceOffset = [2]uint32{12, 8}
	sourceWords  = [2]uint32{1, 4}
)

// headerLength6 is the length of the fixed IPv6 header in bytes. In a packet with extension
// headers, the program reads those instead of the ports: such flows spread less evenly, but
// each still has one backend.
const headerLength6 = 40

// hashMatch returns the match for the clients of one slot. xt_cluster is not used for IPv6,
// because it hashes only the first 32 bits of the address: it takes NF_CT_TUPLE_L3SIZE, which
// counts words, for bytes. All clients of a network would have the same backend.
func hashMatch(f state.SetID, slots, slot int) string {
	if f == 0 && slots <= state.MaxHashed {
		return fmt.Sprintf("-m cluster --cluster-local-nodemask 0x%08x --cluster-total-nodes %d "+
			"--cluster-hash-seed 0x%08x ", 1<<slot, slots, hashSeed)
	}
	return bytecode(clientProgram(f, slots, slot))
}

// clientMatch returns the match for the clients with affinity of one backend, by its index among
// all. All nodes choose the same, and another number of backends moves few clients. With more
// backends than fit into a program it moves most.
func clientMatch(f state.SetID, backends []state.Backend, owner int) string {
	if len(backends) > state.MaxTabled {
		return bytecode(clientProgram(f, len(backends), owner))
	}
	slots := state.ClientSlots(backends, state.MaxSlots)
	program := append(clientHash(f), bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(len(slots))})
	return bytecode(append(program, among(slots, owner)...))
}

// bytecode returns the match of xt_bpf for a program, as iptables-save shows it. It panics for an
// instruction that cannot be assembled.
func bytecode(program []bpf.Instruction) string {
	raw, err := bpf.Assemble(program)
	if err != nil {
		panic("BUG: " + err.Error()) // numbers alone change
	}
	ops := []string{strconv.Itoa(len(raw))}
	for _, i := range raw {
		ops = append(ops, fmt.Sprintf("%d %d %d %d", i.Op, i.Jt, i.Jf, i.K))
	}
	return `-m bpf --bytecode "` + strings.Join(ops, ",") + `" `
}

// multiply and fold are the two steps of the hash: a product, which goes to X as well, and
// the exclusive or of the value with itself shifted to the right. Multipliers and shifts are
// those of the finalizer of MurmurHash3 (fmix32), in which each bit of the input affects all
// bits of the result.
func multiply(by uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: by}, bpf.TAX{}}
}

func fold(by uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: by}, bpf.ALUOpX{Op: bpf.ALUOpXor}}
}

// accept and refuse end a program. For xt_bpf, any result but zero is a match.
var (
	accept = bpf.RetConstant{Val: math.MaxUint16}
	refuse = bpf.RetConstant{}
)

// clientProgram returns a program that matches the clients of one slot, from 0 to slots-1, by a
// hash of the address.
func clientProgram(f state.SetID, slots, slot int) []bpf.Instruction {
	return append(clientHash(f),
		bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(slots)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(slot), SkipFalse: 1}, accept, refuse)
}

// clientHash returns instructions that leave the hash of a client's address in the accumulator.
func clientHash(f state.SetID) []bpf.Instruction {
	program := []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegX, Val: hashSeed}}
	for word := range sourceWords[f] {
		program = append(program, bpf.LoadAbsolute{Off: sourceOffset[f] + 4*word, Size: 4},
			bpf.ALUOpX{Op: bpf.ALUOpXor})
		program = append(append(program, multiply(0x85ebca6b)...), fold(13)...)
		if word < sourceWords[f]-1 {
			program = append(program, bpf.TAX{})
		}
	}
	return append(append(program, multiply(0xc2b2ae35)...), fold(16)...)
}

// slotsProgram returns a program that matches the flows of one backend: owner is its index, and
// slots holds the index of each slot's backend, at most state.MaxSlots of them. The hash covers
// the client's address and port; the VIP's are the same for all flows of a frontend.
func slotsProgram(f state.SetID, slots []int, owner int) []bpf.Instruction {
	program := append(flowHash(f), bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(len(slots))})
	return append(program, among(slots, owner)...)
}

// flowHash returns instructions that leave the hash of a flow in the accumulator.
func flowHash(f state.SetID) []bpf.Instruction {
	// options may come before the ports
	program := []bpf.Instruction{bpf.LoadMemShift{Off: 0}, bpf.LoadIndirect{Off: 0, Size: 2}}
	if f == 1 {
		program = []bpf.Instruction{bpf.LoadAbsolute{Off: headerLength6, Size: 2}}
	}
	program = append(append(program, bpf.ALUOpConstant{Op: bpf.ALUOpXor, Val: hashSeed}), multiply(0x85ebca6b)...)
	for word := range sourceWords[f] {
		program = append(program, bpf.LoadAbsolute{Off: sourceOffset[f] + 4*word, Size: 4},
			bpf.ALUOpX{Op: bpf.ALUOpXor})
		program = append(program, multiply(0x85ebca6b)...)
	}
	// A product carries bits to the left only: fold brings the high bits back.
	program = append(append(program, fold(16)...), multiply(0x85ebca6b)...)
	program = append(append(program, fold(13)...), multiply(0xc2b2ae35)...)
	return append(program, fold(16)...)
}

// among returns instructions that match if the number in the accumulator is a slot of the
// owner. The slots are a bit map of 32-bit words: the upper bits of the number choose the word
// and the lower five the bit. 251 slots are eight words, the most for which the whole program
// fits into 64 instructions.
func among(slots []int, owner int) []bpf.Instruction {
	words := make([]uint32, (len(slots)+31)/32)
	for slot, who := range slots {
		if who == owner {
			words[slot/32] |= 1 << (slot % 32)
		}
	}
	program := []bpf.Instruction{
		bpf.StoreScratch{Src: bpf.RegA, N: 0},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 31}, bpf.TAX{},
		bpf.LoadScratch{Dst: bpf.RegA, N: 0},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 5},
	}
	last := len(words) - 1
	for i, word := range words[:last] {
		// The jump leads behind the other words: three instructions each, one for the last.
		end := uint32(3*(last-i-1) + 1)
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(i), SkipFalse: 2},
			bpf.LoadConstant{Dst: bpf.RegA, Val: word}, bpf.Jump{Skip: end})
	}
	return append(program, bpf.LoadConstant{Dst: bpf.RegA, Val: words[last]},
		bpf.ALUOpX{Op: bpf.ALUOpShiftRight},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 1, SkipFalse: 1}, accept, refuse)
}
