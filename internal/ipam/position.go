package ipam

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A space has the addresses of one family of a pool, in ascending order: the order of the ranges in
// the object has no meaning. It may have 2^127 addresses, so they are counted, not enumerated.
type space struct {
	ranges     []netipx.IPRange
	size       uint128
	avoidBuggy bool
	pool       *cluster.Pool
}

// newSpace returns the addresses of one family of p, with the addresses that p does not give out.
func newSpace(p *cluster.Pool, ipv4 bool) space {
	s := space{avoidBuggy: p.AvoidBuggyIPs && ipv4, pool: p}
	for _, r := range p.Ranges {
		if r.From().Is4() == ipv4 {
			s.ranges = append(s.ranges, r)
			s.size = s.size.add(length(r))
		}
	}
	slices.SortFunc(s.ranges, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
	return s
}

// length returns the number of addresses in r. It is 0 for the whole of IPv6, which no pool
// contains.
func length(r netipx.IPRange) uint128 {
	return toUint128(r.To()).sub(toUint128(r.From())).add(uint128{lo: 1})
}

// positions yields each address of the space once, in name's order of preference: first its own
// position, then the addresses after it, and after the last one the first.
//
// The position is the first 128 bits of SHA-256 over "namespace/name", as a fraction of the space.
// It must never change, because other versions of Fanfare must find the same one.
func (s space) positions(name cluster.Name) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if len(s.ranges) == 0 {
			return
		}
		i, start := s.at(hash(name).fraction(s.size))
		if !s.walk(start, s.ranges[i].To(), yield) {
			return
		}
		for n := 1; n < len(s.ranges); n++ {
			r := s.ranges[(i+n)%len(s.ranges)]
			if !s.walk(r.From(), r.To(), yield) {
				return
			}
		}
		if first := s.ranges[i].From(); first != start {
			s.walk(first, start.Prev(), yield)
		}
	}
}

// at returns the address at an offset into the space, and the index of its range.
func (s space) at(offset uint128) (int, netip.Addr) {
	for i, r := range s.ranges {
		if n := length(r); !offset.less(n) {
			offset = offset.sub(n)
			continue
		}
		return i, toUint128(r.From()).add(offset).addr(r.From().Is4())
	}
	panic("BUG: offset is outside of the space")
}

// walk yields the addresses from one to another, both included, except addresses that the pool does
// not give out. It returns false if yield did.
func (s space) walk(from, to netip.Addr, yield func(netip.Addr) bool) bool {
	for a := from; ; a = a.Next() {
		if o := s.pool.OccupiedAt(a); o.By != "" {
			a = o.Range.To() // it may be half of the Internet
			if a.Compare(to) >= 0 {
				return true
			}
			continue
		}
		if !(s.avoidBuggy && buggy(a)) && !yield(a) {
			return false
		}
		if a == to {
			return true
		}
	}
}

// buggy reports whether a client from the time of address classes could take an address for a
// network or broadcast address.
func buggy(a netip.Addr) bool {
	b := a.As4()
	return b[3] == 0 || b[3] == 255
}

// home returns the first of positions: the address of name if no other Service has it.
func (s space) home(name cluster.Name) netip.Addr {
	for a := range s.positions(name) {
		return a
	}
	return netip.Addr{}
}

// hash returns the first 128 bits of the SHA-256 sum of "namespace/name".
func hash(name cluster.Name) uint128 {
	sum := sha256.Sum256([]byte(name.String()))
	return uint128{binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])}
}

// A uint128 counts IPv6 addresses. Arithmetic is modulo 2^128.
type uint128 struct{ hi, lo uint64 }

// toUint128 returns the address as a number, for IPv4 of 32 bits.
func toUint128(a netip.Addr) uint128 {
	if a.Is4() {
		b := a.As4()
		return uint128{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return uint128{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

// addr returns the address with the number u. For IPv4 only the lower 32 bits count.
func (u uint128) addr(ipv4 bool) netip.Addr {
	if ipv4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(u.lo))))
	}
	return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, u.hi), u.lo)))
}

func (u uint128) add(v uint128) uint128 {
	lo, carry := bits.Add64(u.lo, v.lo, 0)
	hi, _ := bits.Add64(u.hi, v.hi, carry)
	return uint128{hi, lo}
}

func (u uint128) sub(v uint128) uint128 {
	lo, borrow := bits.Sub64(u.lo, v.lo, 0)
	hi, _ := bits.Sub64(u.hi, v.hi, borrow)
	return uint128{hi, lo}
}

func (u uint128) less(v uint128) bool {
	return u.hi < v.hi || u.hi == v.hi && u.lo < v.lo
}

// fraction returns u/2^128 of size: the upper half of their product, which is less than size.
// Unlike a remainder it needs no 128-bit division.
func (u uint128) fraction(size uint128) uint128 {
	a1, _ := bits.Mul64(u.lo, size.lo)
	b1, b0 := bits.Mul64(u.hi, size.lo)
	c1, c0 := bits.Mul64(u.lo, size.hi)
	d1, d0 := bits.Mul64(u.hi, size.hi)
	mid, carry1 := bits.Add64(a1, b0, 0)
	_, carry2 := bits.Add64(mid, c0, 0)
	return uint128{d1, d0}.add(uint128{lo: b1}).add(uint128{lo: c1}).add(uint128{lo: carry1 + carry2})
}
