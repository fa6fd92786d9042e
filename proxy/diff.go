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

// splitSlots parts the deletion of slots that are not given to another backend from
// what else is deleted. Both lists of c are sorted.
func (c *change) splitSlots() (rest, slots []element) {
	for _, e := range c.del {
		_, again := slices.BinarySearchFunc(c.add, e, element.compare)
		if isSlots(e.set) && !again {
			slots = append(slots, e)
		} else {
			rest = append(rest, e)
		}
	}
	return rest, slots
}

func isSlots(id setID) bool {
	switch base(id) {
	case setExtEps, setIntEps, setExtSlots, setIntSlots:
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
