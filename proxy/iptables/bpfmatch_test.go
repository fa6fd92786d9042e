package iptables

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// xtProgram is a program as a rule has it, on a packet from a client to a VIP.
func xtProgram(t *testing.T, f state.SetID, program []bpf.Instruction) func(client netip.AddrPort) bool {
	t.Helper()
	text := strings.Trim(strings.TrimPrefix(bytecode(program), "-m bpf --bytecode "), `" `)
	if n, _ := strconv.Atoi(strings.Split(text, ",")[0]); n > 64 || n != strings.Count(text, ",") {
		t.Fatalf("a program of %d instructions, %s", n, text)
	}
	run, err := proxytest.FilterProgram(text)
	if err != nil {
		t.Fatal(err)
	}
	return func(client netip.AddrPort) bool {
		return run(&proxytest.Packet{Src: client, Dst: netip.AddrPortFrom(proxytest.At("vip", f), 80)})
	}
}

// even fails unless each of the slots has so many, to some five standard deviations.
func even(t *testing.T, counts []int, each int) {
	t.Helper()
	for slot, n := range counts {
		if n < each-each/4 || n > each+each/4 {
			t.Errorf("%d of slot %d of %d; want %d", n, slot, len(counts), each)
		}
	}
}

var firstClients = []netip.Addr{netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("2001:db8::")}

// Every client is of one slot, and slots have equal shares of clients in a row.
func TestClientProgram(t *testing.T) {
	const each = 400
	for f, client := range firstClients {
		for _, slots := range []int{2, 3, 33, 100} {
			runs := make([]func(netip.AddrPort) bool, slots)
			for slot := range runs {
				runs[slot] = xtProgram(t, state.SetID(f), clientProgram(state.SetID(f), slots, slot))
			}
			counts := make([]int, slots)
			for range each * slots {
				client = client.Next()
				want := proxytest.ProgramSlot(client, slots)
				counts[want]++
				if from := netip.AddrPortFrom(client, 1); !runs[want](from) || runs[(want+1)%slots](from) {
					t.Fatalf("%s is not of slot %d of %d alone", client, want, slots)
				}
			}
			even(t, counts, each)
		}
	}
}

// Every flow is of the backend that has its slot in the table, and slots have equal shares:
// of one client's ports, and of one port of clients in a row.
func TestSlotsProgram(t *testing.T) {
	const each = 400
	for f, first := range firstClients {
		for _, n := range []int{2, 7, state.MaxTabled} {
			names := proxytest.Crowd(0, proxytest.At("pod1", state.SetID(f)), n-1).Backends
			slots := state.MaglevSlots(names)
			if len(slots) != state.MaxSlots {
				t.Fatalf("%d slots for %d backends; want %d", len(slots), n, state.MaxSlots)
			}
			runs := make([]func(netip.AddrPort) bool, n)
			for owner := range runs {
				runs[owner] = xtProgram(t, state.SetID(f), slotsProgram(state.SetID(f), slots, owner))
			}
			for _, next := range []func(i int, before netip.AddrPort) netip.AddrPort{
				func(i int, before netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(first, uint16(i)) },
				func(_ int, before netip.AddrPort) netip.AddrPort {
					return netip.AddrPortFrom(before.Addr().Next(), 40000)
				},
			} {
				counts := make([]int, state.MaxSlots)
				client := netip.AddrPortFrom(first, 0)
				for i := range min(each*state.MaxSlots, 1<<16) {
					client = next(i, client)
					slot := proxytest.ProgramFlowSlot(client, state.MaxSlots)
					counts[slot]++
					if i%50 != 0 {
						continue // each takes all programs
					}
					for owner, run := range runs {
						if got, want := run(client), owner == slots[slot]; got != want {
							t.Fatalf("%s has slot %d, which is of backend %d; that of %d says %v", client, slot,
								slots[slot], owner, got)
						}
					}
				}
				even(t, counts, min(each*state.MaxSlots, 1<<16)/state.MaxSlots)
			}
		}
	}
}
