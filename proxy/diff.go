package proxy

import (
	"fmt"
	"slices"
)

// A change is what turns one set of elements into another. A key whose value
// differs is in both lists: the kernel overwrites no element.
type change struct {
	del, add []element
}

func (c *change) empty() bool { return len(c.del) == 0 && len(c.add) == 0 }

func (c *change) append(o change) {
	c.del = append(c.del, o.del...)
	c.add = append(c.add, o.add...)
}

// steps parts a change, whose lists are sorted, into three that are made one after
// the other. A packet asks set after set, while the kernel goes from one State to
// the next: what it may ask for because of an element that it met must be there
// before, and go after. For most sets that holds within a transaction, whose elements
// come into force at one moment. There are these exceptions:
//
//   - Sets of ranges follow the others (nft_set_commit_update in nf_tables_commit), so
//     that a frontend would be fenced, for a moment, and no source allowed.
//   - What goes is missing to a packet that was sent there. A key that gets another
//     value is not.
//   - A packet that chose its backend before a change must not be judged by the ones
//     after it: learning begins when no packet comes from before.
//   - Flows in flight still reach a removed backend; affinity no longer records it: it expires.
func (c *change) steps() (before, now, after change) {
	for _, e := range c.add {
		switch {
		case base(e.set) == setAllowed && c.refences(e):
			before.add = append(before.add, e)
		case base(e.set) == setLearn && !hasKey(c.del, e):
			after.add = append(after.add, e)
		default:
			now.add = append(now.add, e)
		}
	}
	for _, e := range c.del {
		if isAskedLate(e.set) && !hasKey(c.add, e) || base(e.set) == setAllowed && c.refences(e) {
			after.del = append(after.del, e)
		} else {
			now.del = append(now.del, e)
		}
	}
	expiring := c.expiring()
	now.add = append(now.add, expiring...)
	after.del = append(after.del, expiring...)
	return before, now, after
}

// expiring is the backends that the change takes from frontends with affinity, as elements
// that are there while it is made.
func (c *change) expiring() []element {
	var all []element
	for _, e := range c.del {
		if set := base(e.set); set == setExtBack || set == setIntBack {
			all = append(all, element{set: setExpiring + e.set - set, key: e.key})
		}
	}
	slices.SortFunc(all, element.compare)
	return slices.Compact(all)
}

// refences says whether the frontend of an allowed source gets or loses its fence. If
// it keeps it, all changes of its list come into force at one moment.
func (c *change) refences(allowed element) bool {
	set := setExtFenced + allowed.set - setAllowed
	fence := element{set: set, key: allowed.key[:fieldsSize(specs[set].key)]}
	return hasKey(c.add, fence) != hasKey(c.del, fence)
}

// hasKey says whether a sorted list has an element of that set and key.
func hasKey(all []element, e element) bool {
	_, found := slices.BinarySearchFunc(all, e, element.compare)
	return found
}

// isAskedLate says whether packets ask a set because of what another one said.
func isAskedLate(id setID) bool {
	switch base(id) {
	case setExtFenced, setIntFenced, setExtSched, setIntSched, setExtTurn, setIntTurn, setExtEps, setIntEps, setExtSlots, setIntSlots,
		setExtBack, setIntBack, setExtMasq, setIntMasq, setHairpin, setLate:
		return true
	default:
		return false
	}
}

// diffElements compares two sorted lists.
func diffElements(have, want []element) change {
	var c change
	if len(have) == 0 || len(want) == 0 {
		return change{del: have, add: want}
	}
	for len(have) > 0 || len(want) > 0 {
		switch order := compareHeads(have, want); {
		case order < 0:
			c.del = append(c.del, have[0])
			have = have[1:]
		case order > 0:
			c.add = append(c.add, want[0])
			want = want[1:]
		default:
			if have[0].data != want[0].data {
				c.del = append(c.del, have[0])
				c.add = append(c.add, want[0])
			}
			have, want = have[1:], want[1:]
		}
	}
	return c
}

// compareHeads orders the first elements; an exhausted list comes last.
func compareHeads(have, want []element) int {
	switch {
	case len(have) == 0:
		return 1
	case len(want) == 0:
		return -1
	default:
		return have[0].compare(want[0])
	}
}

// A vipChange is an address before and after; nil where it is not.
type vipChange struct {
	have, want *VIP
}

// diffVIPs finds the VIPs whose pointer is another. Both lists are sorted; that
// want is, it checks as far as it must: what is the same as in have is in order.
func diffVIPs(have, want []*VIP) ([]vipChange, error) {
	var changes []vipChange
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
			changes = append(changes, vipChange{have: have[i]})
			i++
		case order > 0:
			changes = append(changes, vipChange{want: want[j]})
			j++
		default:
			changes = append(changes, vipChange{have: have[i], want: want[j]})
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

// diffStates is the change of elements from have to want, given the VIPs that
// differ. Both must be for the same node.
func diffStates(have, want State, vips []vipChange) change {
	var c change
	if !sameShared(have, want) {
		c = diffElements(renderShared(have), renderShared(want))
	}
	for _, v := range vips {
		c.append(diffElements(renderMaybe(v.have, have.Node), renderMaybe(v.want, want.Node)))
	}
	return c
}

func renderMaybe(v *VIP, node string) []element {
	if v == nil {
		return nil
	}
	return renderVIP(v, node)
}

// sameShared says whether what belongs to no VIP is the same.
func sameShared(a, b State) bool {
	return slices.Equal(a.Owned, b.Owned) &&
		slices.Equal(a.Clients.CIDRs, b.Clients.CIDRs) &&
		a.Clients.InterfacePrefix == b.Clients.InterfacePrefix &&
		a.Clients.Bridge == b.Clients.Bridge &&
		a.SNAT.equal(b.SNAT)
}

func (c vipChange) family() setID {
	if c.want != nil {
		return family(c.want.Addr)
	}
	return family(c.have.Addr)
}
