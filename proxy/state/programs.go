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
	if f.Scheduler != RoundRobin && x.Remote == i.Remote && slices.Equal(x.Backends, i.Backends) &&
		f.RefusesMidStream(External) == f.RefusesMidStream(Internal) {
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

// programs is the number of rules with a BPF program that a frontend has in iptables mode: one for each
// backend but the last.
func (f *Frontend) programs(vip netip.Addr) (n int) {
	for _, s := range []Side{External, Internal} {
		t := f.Target(s)
		scheduler := f.XtScheduler(t)
		byHash := scheduler == SourceHash && (Family(vip) == 1 || len(t.Backends) > MaxHashed)
		if (f.Affinity != 0 || scheduler == Maglev || byHash) && f.ChainSide(s).Prefix == s.Prefix {
			n += max(len(t.Backends)-1, 0)
		}
	}
	return n
}

// Programs is that number for all ports of an address; zero for nil.
func (v *VIP) Programs() (n int) {
	if v == nil {
		return 0
	}
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
