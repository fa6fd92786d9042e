package iptables

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A rule of iptables chooses by hash with a program of the classic packet filter, whose
// first byte is that of the IP header. Such a program has 64 instructions at most
// (XT_BPF_MAX_NUM_INSTR), which are too few for the hash of nftables' rules. So nodes with
// iptables choose alike, and nodes with nftables do, but one kind not as the other.

// HashSeed is that of the rules of nftables, and xt_cluster hashes and scales as
// nft_hash does: a node with iptables chooses as those with nftables.
const HashSeed = 0xfa17

// Where the addresses of the client begin, and in how many words they are.
var (
	sourceOffset = [2]uint32{12, 8}
	sourceWords  = [2]uint32{1, 4}
)

// headerLength6 is that of IPv6. Headers that extend it are taken for the ports: their
// flows are not spread so well, and each still has one backend.
const headerLength6 = 40

// hashMatch matches the clients of one slot of so many. xt_cluster hashes the first 32
// bits of an IPv6 address only (NF_CT_TUPLE_L3SIZE counts words, and it takes them for
// bytes): all clients of a network would have one backend.
func hashMatch(f state.SetID, slots, slot int) string {
	if f == 0 && slots <= state.MaxHashed {
		return fmt.Sprintf("-m cluster --cluster-local-nodemask 0x%08x --cluster-total-nodes %d --cluster-hash-seed 0x%08x ", 1<<slot, slots, HashSeed)
	}
	return Bytecode(ClientProgram(f, slots, slot))
}

// Bytecode is the match of a program.
func Bytecode(program []bpf.Instruction) string {
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

// multiply and fold are what the programs hash by: a product, which goes to X as well,
// and the exclusive or with itself, shifted to the right. Multipliers and shifts are
// those of MurmurHash3's end, which lets each bit of a word move all.
func multiply(by uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: by}, bpf.TAX{}}
}

func fold(by uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: by}, bpf.ALUOpX{Op: bpf.ALUOpXor}}
}

// accept and refuse end a program: what is not zero matches.
var (
	accept = bpf.RetConstant{Val: math.MaxUint16}
	refuse = bpf.RetConstant{}
)

// ClientProgram matches the clients of one slot of so many, by a hash of the address.
func ClientProgram(f state.SetID, slots, slot int) []bpf.Instruction {
	program := []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegX, Val: HashSeed}}
	for word := range sourceWords[f] {
		program = append(program, bpf.LoadAbsolute{Off: sourceOffset[f] + 4*word, Size: 4}, bpf.ALUOpX{Op: bpf.ALUOpXor})
		program = append(append(append(program, multiply(0x85ebca6b)...), fold(13)...), bpf.TAX{})
	}
	program = append(append(program, multiply(0xc2b2ae35)...), fold(16)...)
	return append(program,
		bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(slots)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(slot), SkipFalse: 1}, accept, refuse)
}

// SlotsProgram matches the flows whose slot is the owner's. The slot is that of a hash of
// the client's address and port: those of the VIP are the same for all of the frontend's.
func SlotsProgram(f state.SetID, slots []int, owner int) []bpf.Instruction {
	program := append(flowHash(f), bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(len(slots))})
	return append(program, among(slots, owner)...)
}

// flowHash leaves the hash of a flow in the accumulator.
func flowHash(f state.SetID) []bpf.Instruction {
	program := []bpf.Instruction{bpf.LoadMemShift{Off: 0}, bpf.LoadIndirect{Off: 0, Size: 2}} // options may come before the ports
	if f == 1 {
		program = []bpf.Instruction{bpf.LoadAbsolute{Off: headerLength6, Size: 2}}
	}
	program = append(append(program, bpf.ALUOpConstant{Op: bpf.ALUOpXor, Val: HashSeed}), multiply(0x85ebca6b)...)
	for word := range sourceWords[f] {
		program = append(program, bpf.LoadAbsolute{Off: sourceOffset[f] + 4*word, Size: 4}, bpf.ALUOpX{Op: bpf.ALUOpXor})
		program = append(program, multiply(0x85ebca6b)...)
	}
	// Products move bits to the left only.
	program = append(append(program, fold(16)...), multiply(0x85ebca6b)...)
	program = append(append(program, fold(13)...), multiply(0xc2b2ae35)...)
	return append(program, fold(16)...)
}

// among matches if the number in the accumulator is a slot of the owner's: if its bit is
// set in the word that its upper bits choose.
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
		// Behind the words, of which each but the last takes three instructions.
		end := uint32(3*(last-i-1) + 1)
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(i), SkipFalse: 2}, bpf.LoadConstant{Dst: bpf.RegA, Val: word}, bpf.Jump{Skip: end})
	}
	return append(program, bpf.LoadConstant{Dst: bpf.RegA, Val: words[last]},
		bpf.ALUOpX{Op: bpf.ALUOpShiftRight},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 1, SkipFalse: 1}, accept, refuse)
}
