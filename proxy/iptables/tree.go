package iptables

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A ChainSet is chains of one table of iptables, with their rules as
// iptables-save shows them, without "-A" and the name.
type ChainSet map[string][]string

func (c ChainSet) Add(name string, rules ...string) { c[name] = append(c[name], rules...) }

// A Tree leads a packet to its VIP: iptables knows no maps, and to ask about ten
// thousand addresses one by one would take a packet a millisecond. Each chain asks
// about the next four bits in which its addresses differ, so that a packet is
// compared some eight times per level, and ten thousand VIPs are four levels.
type Tree struct {
	Root string
	Name func(netip.Prefix) string // of the chain for what is within
	Leaf func(*state.VIP) []string // the rules that lead on from there
}

// nibble is the bits that one chain tells apart.
const nibble = 4

// Add adds the chains for the VIPs, which are sorted and of one family.
func (t Tree) Add(to ChainSet, vips []*state.VIP) {
	to.Add(t.Root)
	t.branch(to, t.Root, vips)
}

func (t Tree) branch(to ChainSet, chain string, vips []*state.VIP) {
	for _, group := range split(vips) {
		if len(group) == 1 {
			to.Add(chain, t.Leaf(group[0])...)
			continue
		}
		p := commonPrefix(group)
		below := t.Name(p)
		to.Add(chain, fmt.Sprintf("-d %s -g %s", p, below))
		t.branch(to, below, group)
	}
}

// split groups VIPs by the first nibble in which not all are alike.
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

// commonPrefix is the longest prefix of whole nibbles that has all the addresses.
// They are sorted: the first and the last differ most.
func commonPrefix(vips []*state.VIP) netip.Prefix {
	first, last := vips[0].Addr, vips[len(vips)-1].Addr
	bits := first.BitLen()
	for !netip.PrefixFrom(first, bits).Contains(last) {
		bits -= nibble
	}
	return netip.PrefixFrom(first, bits).Masked()
}

// OfFamily is the VIPs of one family. They are sorted, IPv4 first.
func OfFamily(vips []*state.VIP, f state.SetID) []*state.VIP {
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
