package state

import (
	"iter"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A Change turns one set of elements into another. A key with a new value is in both lists, because
// the kernel cannot overwrite an element.
type Change struct {
	Del, Add []Element
}

func (c *Change) Empty() bool { return len(c.Del) == 0 && len(c.Add) == 0 }

// ByKey returns the deletion and the addition of each key, nil if there is none. Both lists must be sorted.
func (c *Change) ByKey() iter.Seq2[*Element, *Element] {
	return sortedset.Merge(c.Del, c.Add, Element.Compare, sortedset.Equal)
}

func (c *Change) append(o Change) {
	c.Del = append(c.Del, o.Del...)
	c.Add = append(c.Add, o.Add...)
}

// Steps splits a change, whose lists are sorted, into three that are applied one after the other.
// A packet looks up one set after another while the kernel changes from one State to the next.
// What an element makes packets look up must be added before that element and removed after it.
// Within a transaction this holds for most sets, because their elements take effect together. The
// exceptions are:
//
//   - Sets of ranges take effect after the others (nft_set_commit_update in nf_tables_commit): a
//     frontend would be restricted for a moment without any allowed source.
//   - A packet that is on its way to a removed element finds nothing. A key that only gets another
//     value is always found.
func (c *Change) Steps() (before, now, after Change) {
	for _, e := range c.Add {
		switch {
		case Base(e.Set) == SetAllowed && c.changesRestriction(e):
			before.Add = append(before.Add, e)
		default:
			now.Add = append(now.Add, e)
		}
	}
	for _, e := range c.Del {
		if isDependentSet(e.Set) && !hasKey(c.Add, e) || Base(e.Set) == SetAllowed && c.changesRestriction(e) {
			after.Del = append(after.Del, e)
		} else {
			now.Del = append(now.Del, e)
		}
	}
	return before, now, after
}

// changesRestriction reports whether the frontend of an allowed source becomes restricted, or
// unrestricted. If it remains restricted, all changes of its list take effect together.
func (c *Change) changesRestriction(allowed Element) bool {
	set := SetExtInRange + allowed.Set - SetAllowed
	inRange := Element{Set: set, Key: allowed.Key[:FieldsSize(Specs[set].Key)]}
	return hasKey(c.Add, inRange) != hasKey(c.Del, inRange)
}

// hasKey reports whether a sorted list has an element with that set and key.
func hasKey(all []Element, e Element) bool {
	_, found := slices.BinarySearchFunc(all, e, Element.Compare)
	return found
}

// isDependentSet reports whether packets look up a set because of an element of another one.
func isDependentSet(id SetID) bool {
	switch Base(id) {
	case SetExtInRange, SetIntInRange, SetExtSched, SetIntSched, SetExtRoundRobin, SetIntRoundRobin, SetExtEps,
		SetIntEps, setExtSlots, setIntSlots, setExtTable, setIntTable, SetTables, setExtBack, setIntBack, setLearn,
		setExtMasq, setIntMasq, setHairpin, setPostrouting, SetReplies, SetRepliers:
		return true
	default:
		return false
	}
}

// DiffElements compares two sorted lists.
func DiffElements(have, want []Element) Change {
	del, add := sortedset.Diff(have, want, Element.Compare)
	return Change{del, add}
}

// A VIPChange is a VIP before and after a change; nil if it does not exist.
type VIPChange struct {
	Have, Want *VIP
}

// DiffVIPs returns the VIPs whose pointers differ, in order. It skips what both versions share.
func DiffVIPs(have, want VIPs) []VIPChange {
	var changes []VIPChange
	for v, isWanted := range sortedset.Differences(have, want, CompareVIPs) {
		last := len(changes) - 1
		switch {
		case !isWanted:
			changes = append(changes, VIPChange{Have: v})
		case last >= 0 && changes[last].Want == nil && changes[last].Have.Addr == v.Addr:
			changes[last].Want = v // Differences returned the old value just before
		default:
			changes = append(changes, VIPChange{Want: v})
		}
	}
	return changes
}

// DiffStates returns the change of elements from have to want, given the VIPs that differ and the
// Replies of have. Both must be for the same node.
func DiffStates(have, want State, vips []VIPChange, replies Replies) Change {
	var c Change
	if !SameShared(have, want) {
		c = DiffElements(renderShared(have), renderShared(want))
	}
	for _, v := range vips {
		c.append(DiffElements(renderMaybe(v.Have, have.Node), renderMaybe(v.Want, want.Node)))
	}
	c.append(replies.diff(vips))
	return c
}

func renderMaybe(v *VIP, node string) []Element {
	if v == nil {
		return nil
	}
	return renderVIP(v, node)
}

// SameShared reports whether the parts that belong to no VIP are the same.
func SameShared(a, b State) bool {
	return slices.Equal(a.Owned, b.Owned) &&
		slices.Equal(a.Clients.CIDRs, b.Clients.CIDRs) &&
		a.Clients.InterfacePrefix == b.Clients.InterfacePrefix &&
		a.Clients.Bridge == b.Clients.Bridge &&
		a.SNAT.equal(b.SNAT)
}

func (c VIPChange) Family() SetID {
	if c.Want != nil {
		return Family(c.Want.Addr)
	}
	return Family(c.Have.Addr)
}
