package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A chainSet is chains of one table of iptables, with their rules as
// iptables-save shows them, without "-A" and the name.
type chainSet map[string][]string

func (c chainSet) add(name string, rules ...string) { c[name] = append(c[name], rules...) }

// A tree leads a packet to its VIP: iptables knows no maps, and to ask about ten
// thousand addresses one by one would take a packet a millisecond. Each chain asks
// about the next four bits in which its addresses differ, so that a packet is
// compared some eight times per level, and ten thousand VIPs are four levels.
type tree struct {
	root string
	name func(netip.Prefix) string // of the chain for what is within
	leaf func(*VIP) []string       // the rules that lead on from there
}

// nibble is the bits that one chain tells apart.
const nibble = 4

// add adds the chains for the VIPs, which are sorted and of one family.
func (t tree) add(to chainSet, vips []*VIP) {
	to.add(t.root)
	t.branch(to, t.root, vips)
}

func (t tree) branch(to chainSet, chain string, vips []*VIP) {
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

// split groups VIPs by the first nibble in which not all are alike.
func split(vips []*VIP) (groups [][]*VIP) {
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
func commonPrefix(vips []*VIP) netip.Prefix {
	first, last := vips[0].Addr, vips[len(vips)-1].Addr
	bits := first.BitLen()
	for !netip.PrefixFrom(first, bits).Contains(last) {
		bits -= nibble
	}
	return netip.PrefixFrom(first, bits).Masked()
}

// ofFamily is the VIPs of one family. They are sorted, IPv4 first.
func ofFamily(vips []*VIP, f state.SetID) []*VIP {
	n, _ := slices.BinarySearchFunc(vips, struct{}{}, func(v *VIP, _ struct{}) int {
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
