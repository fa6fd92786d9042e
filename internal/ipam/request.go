package ipam

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// hostIn returns the address of r with the given host part: in the smallest network around r or, if
// r does not contain it, in the /24 or /64 in which r begins, for pools that list ranges of a
// network.
func hostIn(r netipx.IPRange, host netip.Addr) (a netip.Addr, ok bool) {
	if r.From().Is4() != host.Is4() {
		return netip.Addr{}, false
	}
	subnet := 64
	if host.Is4() {
		subnet = 24
	}
	whole := common(r.From(), r.To())
	for _, length := range []int{whole, min(whole, subnet)} {
		mask := netip.PrefixFrom(host, length).Masked().Addr()
		if !mask.IsUnspecified() {
			continue // the host part overlaps the network part
		}
		network := netip.PrefixFrom(r.From(), length).Masked().Addr()
		if a = toUint128(network).add(toUint128(host)).addr(host.Is4()); r.Contains(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// common returns the length of the common prefix of two addresses of one family.
func common(a, b netip.Addr) int {
	x, y := toUint128(a), toUint128(b)
	n := bits.LeadingZeros64(x.hi ^ y.hi)
	if n == 64 {
		n += bits.LeadingZeros64(x.lo ^ y.lo)
	}
	return n - (128 - a.BitLen())
}

// answers reports whether want requests address a.
func answers(pools []*cluster.Pool, want, a netip.Addr) bool {
	if want == a || !cluster.IsHostPart(want) {
		return want == a
	}
	for _, p := range pools {
		for _, r := range p.Ranges {
			if r.Contains(a) {
				b, ok := hostIn(r, want)
				return ok && a == b
			}
		}
	}
	return false
}

// asked reports whether a Service requests address a.
func asked(pools []*cluster.Pool, s *cluster.Spec, a netip.Addr) bool {
	return slices.ContainsFunc(s.Requested, func(want netip.Addr) bool { return answers(pools, want, a) })
}

// asks reports whether h requests an address of family.
func (s *service) asks(family corev1.IPFamily) bool {
	return slices.ContainsFunc(s.Requested, func(a netip.Addr) bool { return cluster.FamilyOf(a) == family })
}

// grant gives h the addresses that it requests.
func (p *plan) grant(h *service) {
	if h.Deleting {
		p.refuseDeleting(h)
		return
	}
	for _, bad := range h.Problems {
		if bad.Code == cluster.RequestRefused {
			p.refuse(h, bad.Code, "%s", bad.Clause())
			h.exclude(h.IPFamilies...)
		}
	}
	for _, name := range unknown(p.Snap.Pools, h.Spec) {
		p.refuse(h, cluster.RequestRefused, "asks for pool %s as well, which does not exist; %s", name,
			p.describePools())
	}
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		if h.asks(family) {
			p.grantFamily(h, family)
		}
	}
}

// refuseDeleting excludes a Service that is being deleted from further allocation: finalizers may
// keep it for long, and it would take an address from Services that stay.
func (p *plan) refuseDeleting(h *service) {
	h.exclude(h.IPFamilies...)
	if len(h.addrs) == 0 {
		p.refuse(h, cluster.Unassigned, "is being deleted, and gets no new address")
	}
}

// grantFamily gives h the addresses of family that it requests. Once h has one of them, it releases
// the others.
func (p *plan) grantFamily(h *service, family corev1.IPFamily) {
	h.exclude(family)
	if !slices.Contains(h.IPFamilies, family) {
		h.exclude(h.IPFamilies...) // the family of the request is unknown
	}
	var got []netip.Addr
	for _, want := range h.Requested {
		if cluster.FamilyOf(want) != family {
			continue
		}
		if a := p.grantOne(h, want); a.IsValid() {
			got = append(got, a)
		}
	}
	if len(got) == 0 {
		return
	}
	for _, a := range slices.Clone(h.addrs) {
		if cluster.FamilyOf(a) == family && !slices.Contains(got, a) {
			p.release(h, a)
		}
	}
}

// grantOne gives h an address for want, perhaps its present one; invalid if none is available.
func (p *plan) grantOne(h *service, want netip.Addr) netip.Addr {
	for _, a := range h.addrs {
		if want == a || answers(p.Snap.Pools, want, a) && h.suits(p.poolOf(a)) {
			return a
		}
	}
	var code cluster.Code
	var why string
	for _, a := range p.options(h, want) {
		c, w := p.refusal(h, a)
		if w == "" {
			p.take(h, a)
			return a
		}
		if a != want {
			w = fmt.Sprintf("which is %s, %s", a, w)
		}
		if why == "" {
			code, why = c, w
		}
	}
	if why == "" {
		from := "Automatic pool"
		if len(h.RequestedPools) != 0 {
			from = "pool that it names"
		}
		code, why = cluster.RequestRefused, fmt.Sprintf("and no %s has an address that ends so; %s", from,
			p.describePools())
	}
	p.refuse(h, code, "asks for %s, %s", want, why)
	return netip.Addr{}
}

// unknown returns the pools that a Service names and that do not exist. If it also names existing
// pools, each family gets its own reason instead.
func unknown(pools []*cluster.Pool, s *cluster.Spec) (names []string) {
	for _, name := range s.RequestedPools {
		if !slices.ContainsFunc(pools, func(p *cluster.Pool) bool { return p.Name == name }) {
			names = append(names, name)
		}
	}
	if len(names) == len(s.RequestedPools) {
		return nil
	}
	return names
}

// options returns the addresses that want may mean, in the order in which they are tried. A host
// part means one address in each pool that h names, or in each pool that is open to all.
func (p *plan) options(h *service, want netip.Addr) (options []netip.Addr) {
	if !cluster.IsHostPart(want) {
		return []netip.Addr{want}
	}
	for _, pool := range p.pools {
		if !h.suits(pool) || len(h.RequestedPools) == 0 && pool.Allocation != cluster.Automatic {
			continue
		}
		for _, r := range pool.Ranges {
			if a, ok := hostIn(r, want); ok {
				options = append(options, a)
			}
		}
	}
	return options
}

// suits reports whether h accepts addresses of a pool, which may be nil. It accepts all pools
// unless it names some.
func (s *service) suits(pool *pool) bool {
	return len(s.RequestedPools) == 0 || pool != nil && slices.Contains(s.RequestedPools, pool.Name)
}
