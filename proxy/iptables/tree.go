package iptables

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A chainSet maps names of chains of one table to their rules, as iptables-save shows them but
// without "-A" and the chain. A chain without rules has an entry too.
type chainSet map[string][]string

// add appends rules to a chain, and adds the chain if it is missing, even without rules.
func (c chainSet) add(name string, rules ...string) { c[name] = append(c[name], rules...) }

// A tree is chains that lead a packet to its VIP. iptables has no maps, and comparing a packet
// with ten thousand addresses one by one would take a millisecond. Each chain matches the next
// four bits in which its addresses differ, so a packet is compared some eight times per level, and
// ten thousand VIPs are four levels.
type tree struct {
	root string                    // the chain in which a packet starts
	name func(netip.Prefix) string // returns the name of the chain for a prefix
	leaf func(*state.VIP) []string // returns the rules for one VIP
}

// nibble is how many bits one chain distinguishes. It must divide 32: commonPrefix steps by it.
const nibble = 4

// add adds the chains for the VIPs, which must be sorted and of one family.
func (t tree) add(to chainSet, vips []*state.VIP) {
	to.add(t.root)
	t.branch(to, t.root, vips)
}

func (t tree) branch(to chainSet, chain string, vips []*state.VIP) {
	for _, group := range split(vips) {
		if len(group) == 1 {
			to.add(chain, t.leaf(group[0])...)
			continue
		}
		p := commonPrefix(group)
		below := t.name(p)
		to.add(chain, fmt.Sprintf("-d %s -g %s", p, below))
		t.branch(to, below, group)
	}
}

// split groups sorted VIPs by the first nibble in which they differ.
func split(vips []*state.VIP) (groups [][]*state.VIP) {
	if len(vips) < 2 {
		return slices.Collect(slices.Chunk(vips, 1))
	}
	bits := commonPrefix(vips).Bits() + nibble
	for len(vips) > 0 {
		p := netip.PrefixFrom(vips[0].Addr, bits).Masked()
		n := 1
		for n < len(vips) && p.Contains(vips[n].Addr) {
			n++
		}
		groups = append(groups, vips[:n])
		vips = vips[n:]
	}
	return groups
}

// commonPrefix returns the longest prefix of whole nibbles that contains all addresses. They
// are sorted, so the first and the last differ most.
func commonPrefix(vips []*state.VIP) netip.Prefix {
	first, last := vips[0].Addr, vips[len(vips)-1].Addr
	bits := first.BitLen()
	for !netip.PrefixFrom(first, bits).Contains(last) {
		bits -= nibble
	}
	return netip.PrefixFrom(first, bits).Masked()
}

// ofFamily returns a copy of the VIPs of one family as a list: a tree is made of subslices. IPv4 comes
// first in a State.
func ofFamily(all state.VIPs, f state.SetID) []*state.VIP {
	vips := all.Slice()
	n, _ := slices.BinarySearchFunc(vips, struct{}{}, func(v *state.VIP, _ struct{}) int {
		if v.Addr.Is4() {
			return -1
		}
		return 1
	})
	if f == 0 {
		return vips[:n]
	}
	return vips[n:]
}
