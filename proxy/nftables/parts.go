package nftables

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A transaction is one message to the kernel, which must fit into the socket's send
// buffer. For a program that listens to changes of nftables the kernel keeps some
// kilobytes for each element until a transaction is done, also of other programs. So a large
// change is made in parts, which are transactions of their own.
const (
	// maxBatch is the size of a part: some 20,000 elements.
	maxBatch = 1 << 20
	// maxChains is the number of chains that one part adds or deletes.
	maxChains = 256
)

// room is the size of a transaction that the kernel takes from the socket.
func room(s *nfnl.Socket) int {
	size, err := unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return maxBatch
	}
	return min(maxBatch, size/2)
}

// A move is what a change does to one key.
type move struct {
	rank     int
	del, add *state.Element // nil: nothing
}

func (m move) element() *state.Element {
	if m.add != nil {
		return m.add
	}
	return m.del
}

// size is how many bytes of a transaction a move takes, at most.
func (m move) size() int {
	n := 0
	for _, e := range []*state.Element{m.del, m.add} {
		if e != nil {
			n += 64 + len(e.Key) + len(e.Data)
		}
	}
	return n
}

// rankOf orders the parts of a change: what a packet may ask for because of an element that
// it met is there before that. The elements that belong to no VIP come last, in one part:
// a prefix that is ours refuses what is no VIP.
func rankOf(id state.SetID) int {
	switch state.Base(id) {
	case state.SetOwned, state.SetClients, state.SetNever, state.SetFrom, state.SetClientIf, state.SetSources, state.SetMarks:
		return 5
	case state.SetVIPs, state.SetExtSvc, state.SetIntSvc, state.SetAllowed, state.SetLearn, state.SetRecall:
		return 4
	case state.SetExtInRange, state.SetIntInRange:
		return 3
	case state.SetExtSched, state.SetIntSched:
		return 2
	case state.SetExtTurn, state.SetIntTurn:
		return 1
	default: // the backends
		return 0
	}
}

// partsOf splits a change, whose lists are sorted, into changes of about so many bytes. All
// of one that fits is one part, so that packets meet either the old or the new State.
// Otherwise each key still changes at one moment, and so do the sources that may use a
// frontend, and all that belongs to no VIP. Between the parts, a packet finds a backend
// of before or of after.
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

// joins reports whether a move must be made with the one before it.
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

// movesOf pairs what a change does to the same keys.
func movesOf(c state.Change) []move {
	all := make([]move, 0, max(len(c.Del), len(c.Add)))
	for i, j := 0, 0; i < len(c.Del) || j < len(c.Add); {
		order := state.CompareHeads(c.Del[i:], c.Add[j:])
		var m move
		if order <= 0 {
			m.del = &c.Del[i]
			i++
		}
		if order >= 0 {
			m.add = &c.Add[j]
			j++
		}
		m.rank = rankOf(m.element().Set)
		all = append(all, m)
	}
	return all
}

// partOf is a change of these moves only; both lists are sorted, as apply wants them.
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

// applyParts makes a change in as many transactions as it needs; last is made in the last.
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
