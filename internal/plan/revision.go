package plan

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A revision is a set of addresses that were decided again: the new decisions, nil if no Service
// holds the address, and the old ones, nil if none did. All are in the order of addresses.
type revision struct {
	addrs    []netip.Addr
	was, now []*Address
}

// revisePart is how many addresses are decided sequentially. More are decided concurrently: a
// change that concerns 10,000 addresses takes one core 40 ms of the 250 ms that a pass may last.
const revisePart = 1000

// revise decides about these addresses.
func (in *Inputs) revise(last *Desired, snap *cluster.Snapshot, addrs []netip.Addr) revision {
	r := revision{addrs: addrs, was: make([]*Address, len(addrs)), now: make([]*Address, len(addrs))}
	var parts sync.WaitGroup
	var room atomic.Int64
	room.Store(maxWanted * int64(in.capacity.limits.Total))
	for from := 0; from < len(addrs); from += revisePart {
		part := revision{addrs[from:min(from+revisePart, len(addrs))], r.was[from:], r.now[from:]}
		if len(addrs) <= revisePart {
			in.revisePart(last, snap, part, &room)
			break
		}
		parts.Go(func() { in.revisePart(last, snap, part, &room) })
	}
	parts.Wait()
	return r
}

// maxWanted is how many entries the decisions of a revision may want together, as a multiple of what
// a node can have.
const maxWanted = 2

// keep sheds a decision if those of the revision, which have room left for some entries, want much
// more than the node has room for: thousands of refused addresses would fill the memory.
func (a *Address) keep(room *atomic.Int64) {
	if a.Refusal == "" && !a.partly && room.Add(-int64(a.use.entries)) < 0 {
		a.VIP, a.shed = &proxy.VIP{Addr: a.Addr}, true
	}
}

// revisePart fills in a part of a revision.
func (in *Inputs) revisePart(last *Desired, snap *cluster.Snapshot, r revision, room *atomic.Int64) {
	for i, addr := range r.addrs {
		r.was[i], _ = sortedset.Get(last.Addresses, addr, compareAddress)
		if all := snap.AssignmentsOf(addr); len(all) > 0 {
			r.now[i] = in.decide(addr, all[0].Pool, in.inputOf(snap, all)).reuse(r.was[i])
			r.now[i].keep(room)
		}
	}
}

// reuse returns the decision with the VIP of the last one, which may be nil, if they are equal: the
// proxy skips equal pointers.
func (d decision) reuse(last *Address) *Address {
	if last != nil && last.VIP.Equal(d.VIP) {
		d.VIP = last.VIP
	}
	return d.Address
}

// inputOf returns the input of the decision about the address of all these Assignments.
func (in *Inputs) inputOf(snap *cluster.Snapshot, all []cluster.Assignment) addressInput {
	h := addressInput{origin: snap.OriginOf(all[0]), services: make([]cluster.Service, 0, len(all))}
	for _, a := range all {
		if s, exists := snap.Services.Get(a.Service); exists {
			h.services = append(h.services, s)
		}
	}
	byPrecedence(h.services)
	if in.layer2.used {
		h.claim = snap.Claim(all[0].Addr)
	}
	return h
}
