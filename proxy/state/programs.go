package state

import (
	"net/netip"
	"slices"
)

func (f *Frontend) Target(s Side) *Target {
	if s.Prefix == External.Prefix {
		return &f.External
	}
	return &f.Internal
}

// ChainSide is the side whose chain a side uses: internal clients that are treated
// as external ones need none of their own.
func (f *Frontend) ChainSide(s Side) Side {
	x, i := &f.External, &f.Internal
	// Each kind has its own turn.
	if f.Scheduler != RoundRobin && x.Remote == i.Remote && slices.Equal(x.Backends, i.Backends) && f.RefusesMidStream(External) == f.RefusesMidStream(Internal) {
		return External
	}
	return s
}

// RefusesMidStream is what countChain's is. Where iptables falls back to chance, it is by luck
// as well that one of several backends would be the right one.
func (f *Frontend) RefusesMidStream(s Side) bool {
	t := f.Target(s)
	switch {
	case f.Protocol != TCP || len(t.Backends) == 0:
		return false
	case len(t.Backends) > 1:
		return !f.XtScheduler(t).schedule(t.Backends).seeded
	}
	return !f.Scheduler.schedule(t.Backends).seeded && s.Prefix != Internal.Prefix
}

// XtScheduler is the scheduler that iptables has for a target of the frontend: Maglev's
// table must fit into a rule.
func (f *Frontend) XtScheduler(t *Target) Scheduler {
	if f.Scheduler == Maglev && tableSize(len(t.Backends)) > MaxSlots {
		return Random
	}
	return f.Scheduler
}

// maxPrograms is how many rules with a program of the packet filter all addresses of a node may
// have together. Linux 6.18 stops for good when more than 1,024 of them are deleted at
// once, and iptables-legacy deletes and makes all rules with every change.
const maxPrograms = 900

// programs is how many rules with a program of the packet filter a frontend has in iptables mode.
func (f *Frontend) programs(vip netip.Addr) int {
	if f.Scheduler != SourceHash && f.Scheduler != Maglev {
		return 0
	}
	n := 0
	for _, s := range []Side{External, Internal} {
		if f.ChainSide(s).Prefix != s.Prefix {
			continue
		}
		t := f.Target(s)
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

// MaxHashed is the number of backends that the match cluster can tell apart.
const MaxHashed = 32

// maxSlots is the size of the largest table whose slots a program can tell apart, and
// maxTabled the number of backends that it is for.
const (
	MaxSlots  = 251
	MaxTabled = MaxSlots / slotsPerBackend
)
