package nftables

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A transaction is one message to the kernel, which must fit into the socket's send buffer. For
// each program that listens to nftables changes, the kernel holds some kilobytes for every element
// until a transaction is done. So a large change is made in parts, each a transaction of its own.
const (
	// maxBatch is the size of a part: some 20,000 elements.
	maxBatch = 1 << 20
	// maxChains is the number of chains that one part adds or deletes.
	maxChains = 256
)

// room returns the size of the largest transaction that the kernel accepts from the socket.
func room(s *nfnl.Socket) int {
	size, err := unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return maxBatch
	}
	return min(maxBatch, size/2)
}

// A move is the part of a change that concerns one key.
type move struct {
	rank     int
	del, add *state.Element // nil: none
}

func (m move) element() *state.Element {
	if m.add != nil {
		return m.add
	}
	return m.del
}

// size is an upper bound of a move's bytes in a transaction.
func (m move) size() int {
	n := 0
	for _, e := range []*state.Element{m.del, m.add} {
		if e != nil {
			n += 64 + len(e.Key) + len(e.Data)
		}
	}
	return n
}

// rankOf orders the parts of a change. What an element makes packets look up is added before it.
// Elements that belong to no VIP come last, in one part: an owned prefix makes the rules reject
// addresses that are not VIPs yet.
func rankOf(id state.SetID) int {
	switch state.Base(id) {
	case state.SetOwned, state.SetClients, state.SetNever, state.SetFrom, state.SetClientIf, state.SetSources,
		state.SetMarks:
		return 5
	case state.SetVIPs, state.SetExtSvc, state.SetIntSvc, state.SetAllowed:
		return 4
	case state.SetExtInRange, state.SetIntInRange:
		return 3
	case state.SetExtSched, state.SetIntSched:
		return 2
	// tables come before what leads to them
	case state.SetExtRoundRobin, state.SetIntRoundRobin, state.SetTables, state.External.Table, state.Internal.Table:
		return 1
	default: // the backends
		return 0
	}
}

// partsOf splits a change, whose lists are sorted, into changes of at most about room bytes. A
// change that fits is one part, so packets see either the old or the new State. Otherwise, each key
// still changes at one moment, and so do the sources of a frontend, and all elements that belong to
// no VIP. Between the parts, a packet may find an old or a new backend.
func partsOf(c state.Change, room int) []state.Change {
	moves := movesOf(c)
	total := 0
	for _, m := range moves {
		total += m.size()
	}
	if total <= room {
		return []state.Change{c}
	}
	slices.SortStableFunc(moves, func(a, b move) int { return cmp.Compare(a.rank, b.rank) })
	var all []state.Change
	for len(moves) > 0 {
		n, size := 0, 0
		for n < len(moves) && (n == 0 || size+moves[n].size() <= room || moves[n].joins(moves[n-1])) {
			size += moves[n].size()
			n++
		}
		all = append(all, partOf(moves[:n]))
		moves = moves[n:]
	}
	return all
}

// joins reports whether a move must be in the same part as the one before it.
func (m move) joins(before move) bool {
	e, was := m.element(), before.element()
	switch {
	case m.rank == rankOf(state.SetOwned):
		return before.rank == m.rank
	case state.Base(e.Set) == state.SetAllowed && e.Set == was.Set:
		n := state.FieldsSize(state.Specs[e.Set].Key[:3])
		return e.Key[:n] == was.Key[:n]
	}
	return false
}

// movesOf pairs the deletion and the addition of each key.
func movesOf(c state.Change) []move {
	all := make([]move, 0, max(len(c.Del), len(c.Add)))
	for del, add := range c.ByKey() {
		m := move{del: del, add: add}
		m.rank = rankOf(m.element().Set)
		all = append(all, m)
	}
	return all
}

// partOf returns a change with these moves only. Both lists are sorted, as apply needs.
func partOf(moves []move) (c state.Change) {
	for _, m := range moves {
		if m.del != nil {
			c.Del = append(c.Del, *m.del)
		}
		if m.add != nil {
			c.Add = append(c.Add, *m.add)
		}
	}
	slices.SortFunc(c.Del, state.Element.Compare)
	slices.SortFunc(c.Add, state.Element.Compare)
	return c
}

// applyParts applies a change in as many transactions as it needs. last adds to the last one.
func (n *Renderer) applyParts(c state.Change, last func(*batch)) error {
	slices.SortFunc(c.Del, state.Element.Compare)
	slices.SortFunc(c.Add, state.Element.Compare)
	parts := partsOf(c, min(room(n.Sock), cmp.Or(n.part, maxBatch)))
	for i, part := range parts {
		more := last
		if i < len(parts)-1 {
			more = nil
		}
		if err := n.apply(part, more); err != nil {
			return err
		}
	}
	return nil
}
