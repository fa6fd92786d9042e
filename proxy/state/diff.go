package state

import (
	"fmt"
	"slices"
)

// A Change is what turns one set of elements into another. A key whose value
// differs is in both lists: the kernel overwrites no element.
type Change struct {
	Del, Add []Element
}

func (c *Change) Empty() bool { return len(c.Del) == 0 && len(c.Add) == 0 }

func (c *Change) append(o Change) {
	c.Del = append(c.Del, o.Del...)
	c.Add = append(c.Add, o.Add...)
}

// Steps parts a change, whose lists are sorted, into three that are made one after
// the other. A packet asks set after set, while the kernel goes from one State to
// the next: what it may ask for because of an element that it met must be there
// before, and go after. For most sets that holds within a transaction, whose elements
// come into force at one moment. There are these exceptions:
//
//   - Sets of ranges follow the others (nft_set_commit_update in nf_tables_commit), so
//     that a frontend would be restricted, for a moment, and no source allowed.
//   - What goes is missing to a packet that was sent there. A key that gets another
//     value is not.
//   - A packet that chose its backend before a change must not be judged by the ones
//     after it: learning begins when no packet comes from before.
//   - Flows in flight still reach a removed backend; affinity no longer records it: it expires.
func (c *Change) Steps() (before, now, after Change) {
	for _, e := range c.Add {
		switch {
		case Base(e.Set) == SetAllowed && c.changesRestriction(e):
			before.Add = append(before.Add, e)
		case Base(e.Set) == SetLearn && !hasKey(c.Del, e):
			after.Add = append(after.Add, e)
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
	expiring := c.expiring()
	now.Add = append(now.Add, expiring...)
	after.Del = append(after.Del, expiring...)
	return before, now, after
}

// expiring is the backends that the change takes from frontends with affinity, as elements
// that are there while it is made.
func (c *Change) expiring() []Element {
	var all []Element
	for _, e := range c.Del {
		if set := Base(e.Set); set == SetExtBack || set == SetIntBack {
			all = append(all, Element{Set: SetExpiring + e.Set - set, Key: e.Key})
		}
	}
	slices.SortFunc(all, Element.Compare)
	return slices.Compact(all)
}

// changesRestriction reports whether the frontend of an allowed source becomes restricted or ceases to be. If
// it keeps it, all changes of its list come into force at one moment.
func (c *Change) changesRestriction(allowed Element) bool {
	set := SetExtInRange + allowed.Set - SetAllowed
	inRange := Element{Set: set, Key: allowed.Key[:FieldsSize(Specs[set].Key)]}
	return hasKey(c.Add, inRange) != hasKey(c.Del, inRange)
}

// hasKey reports whether a sorted list has an element of that set and key.
func hasKey(all []Element, e Element) bool {
	_, found := slices.BinarySearchFunc(all, e, Element.Compare)
	return found
}

// isDependentSet reports whether packets ask a set because of what another one said.
func isDependentSet(id SetID) bool {
	switch Base(id) {
	case SetExtInRange, SetIntInRange, SetExtSched, SetIntSched, SetExtTurn, SetIntTurn, SetExtEps, SetIntEps, setExtSlots, setIntSlots,
		SetExtBack, SetIntBack, setExtMasq, setIntMasq, setHairpin, setLate:
		return true
	default:
		return false
	}
}

// DiffElements compares two sorted lists.
func DiffElements(have, want []Element) Change {
	var c Change
	if len(have) == 0 || len(want) == 0 {
		return Change{Del: have, Add: want}
	}
	for len(have) > 0 || len(want) > 0 {
		switch order := CompareHeads(have, want); {
		case order < 0:
			c.Del = append(c.Del, have[0])
			have = have[1:]
		case order > 0:
			c.Add = append(c.Add, want[0])
			want = want[1:]
		default:
			if have[0].Data != want[0].Data {
				c.Del = append(c.Del, have[0])
				c.Add = append(c.Add, want[0])
			}
			have, want = have[1:], want[1:]
		}
	}
	return c
}

// CompareHeads orders the first elements; an exhausted list comes last.
func CompareHeads(have, want []Element) int {
	switch {
	case len(have) == 0:
		return 1
	case len(want) == 0:
		return -1
	default:
		return have[0].Compare(want[0])
	}
}

// A VipChange is an address before and after; nil where it is not.
type VipChange struct {
	Have, Want *VIP
}

// DiffVIPs finds the VIPs whose pointer is another. Both lists are sorted; that
// want is, it checks as far as it must: what is the same as in have is in order.
func DiffVIPs(have, want []*VIP) ([]VipChange, error) {
	var changes []VipChange
	i, j := 0, 0
	for i < len(have) || j < len(want) {
		// The common case, of which there are thousands.
		if i < len(have) && j < len(want) && have[i] == want[j] {
			i, j = i+1, j+1
			continue
		}
		order := compareVIPs(have[i:], want[j:])
		if order >= 0 && j > 0 && want[j-1].Addr.Compare(want[j].Addr) >= 0 {
			return nil, fmt.Errorf("vip %s: comes after %s; VIPs must be sorted by address, no two alike", want[j].Addr, want[j-1].Addr)
		}
		switch {
		case order < 0:
			changes = append(changes, VipChange{Have: have[i]})
			i++
		case order > 0:
			changes = append(changes, VipChange{Want: want[j]})
			j++
		default:
			changes = append(changes, VipChange{Have: have[i], Want: want[j]})
			i, j = i+1, j+1
		}
	}
	return changes, nil
}

// compareVIPs orders the first addresses; an exhausted list comes last.
func compareVIPs(have, want []*VIP) int {
	switch {
	case len(have) == 0:
		return 1
	case len(want) == 0:
		return -1
	default:
		return have[0].Addr.Compare(want[0].Addr)
	}
}

// DiffStates is the change of elements from have to want, given the VIPs that
// differ. Both must be for the same node.
func DiffStates(have, want State, vips []VipChange) Change {
	var c Change
	if !SameShared(have, want) {
		c = DiffElements(renderShared(have), renderShared(want))
	}
	for _, v := range vips {
		c.append(DiffElements(renderMaybe(v.Have, have.Node), renderMaybe(v.Want, want.Node)))
	}
	return c
}

func renderMaybe(v *VIP, node string) []Element {
	if v == nil {
		return nil
	}
	return renderVIP(v, node)
}

// SameShared reports whether what belongs to no VIP is the same.
func SameShared(a, b State) bool {
	return slices.Equal(a.Owned, b.Owned) &&
		slices.Equal(a.Clients.CIDRs, b.Clients.CIDRs) &&
		a.Clients.InterfacePrefix == b.Clients.InterfacePrefix &&
		a.Clients.Bridge == b.Clients.Bridge &&
		a.SNAT.equal(b.SNAT)
}

func (c VipChange) Family() SetID {
	if c.Want != nil {
		return Family(c.Want.Addr)
	}
	return Family(c.Have.Addr)
}
