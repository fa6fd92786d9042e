package state

import (
	"net/netip"
	"slices"
)

// ChainSide returns the side whose chain a side uses: internal clients that are treated like
// external ones need no chain of their own.
func (f *Frontend) ChainSide(s Side) Side {
	x, i := &f.External, &f.Internal
	// Each kind of clients takes its own turns.
	if f.Scheduler != RoundRobin && x.Remote == i.Remote && slices.Equal(x.Backends, i.Backends) && f.RefusesMidStream(External) == f.RefusesMidStream(Internal) {
		return External
	}
	return s
}

// XtScheduler returns the scheduler that iptables uses for a target of the frontend: Maglev's table
// must fit into a rule.
func (f *Frontend) XtScheduler(t *Target) Scheduler {
	if f.Scheduler == Maglev && tableSize(len(t.Backends)) > MaxSlots {
		return Random
	}
	return f.Scheduler
}

// maxPrograms is how many rules with a BPF program all addresses of a node may have together. Linux
// 6.18 hangs for good when more than 1,024 of them are deleted at once, and iptables-legacy
// replaces all rules with every change.
const maxPrograms = 900

// programs is the number of rules with a BPF program that a frontend has in iptables mode.
func (f *Frontend) programs(vip netip.Addr) int {
	if f.Affinity == 0 && f.Scheduler != SourceHash && f.Scheduler != Maglev {
		return 0
	}
	n := 0
	for _, s := range []Side{External, Internal} {
		if f.ChainSide(s).Prefix != s.Prefix {
			continue
		}
		t := f.Target(s)
		if f.Affinity != 0 {
			n += max(len(t.Backends)-1, 0)
			continue
		}
		switch f.XtScheduler(t) {
		case SourceHash:
			if Family(vip) == 0 && len(t.Backends) <= MaxHashed {
				continue
			}
		case Maglev:
		default:
			continue
		}
		n += max(len(t.Backends)-1, 0)
	}
	return n
}

func (v *VIP) Programs() int {
	n := 0
	for i := range v.Frontends {
		n += v.Frontends[i].programs(v.Addr)
	}
	return n
}

// MaxHashed is the number of backends that the match cluster can distinguish. The kernel's limit is 32, one bit
// each, but iptables 1.8.9 takes the range of nodes (1 to 32) for that of the mask: 1<<5 is the highest bit that it
// accepts, and it refuses what it has saved itself of others.
const MaxHashed = 6

// maxSlots is the largest table whose slots a program can distinguish, and maxTabled its number of
// backends.
const (
	MaxSlots  = 251
	MaxTabled = MaxSlots / slotsPerBackend
)
