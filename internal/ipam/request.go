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

// hostIn is the address of r that ends in a host part: that of the smallest network
// around r, or if it is not in r, that of the /24 or /64 in which r begins, as
// those mean it who list ranges of a network.
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
			continue // The host part reaches into the network's.
		}
		network := netip.PrefixFrom(r.From(), length).Masked().Addr()
		if a = toUint128(network).add(toUint128(host)).addr(host.Is4()); r.Contains(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// common is how many bits two addresses of one family begin with in common.
func common(a, b netip.Addr) int {
	x, y := toUint128(a), toUint128(b)
	n := bits.LeadingZeros64(x.hi ^ y.hi)
	if n == 64 {
		n += bits.LeadingZeros64(x.lo ^ y.lo)
	}
	return n - (128 - a.BitLen())
}

// answers says whether address a is what want asks for.
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

// asked says whether a Service asks for a by name.
func asked(pools []*cluster.Pool, s *cluster.Spec, a netip.Addr) bool {
	return slices.ContainsFunc(s.Requested, func(want netip.Addr) bool { return answers(pools, want, a) })
}

// asks says whether h asks for an address of family by name.
func (h *holder) asks(family corev1.IPFamily) bool {
	return slices.ContainsFunc(h.Requested, func(a netip.Addr) bool { return cluster.FamilyOf(a) == family })
}

// grant gives h the addresses that it names.
func (p *plan) grant(h *holder) {
	if h.Contradiction != "" {
		p.refuse(h, cluster.Contradiction, "%s", h.Contradiction)
	}
	if h.BadRequest != "" {
		p.refuse(h, cluster.RequestRefused, "%s", h.BadRequest)
		h.settle(h.IPFamilies...)
	}
	for _, name := range unknown(p.Snap.Pools, h.Spec) {
		p.refuse(h, cluster.RequestRefused, "asks for pool %s as well, which does not exist; %s", name, p.describePools())
	}
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		if h.asks(family) {
			p.grantFamily(h, family)
		}
	}
}

// grantFamily gives h the addresses of family that it names. Once it has one of
// them, it keeps none that it does not name.
func (p *plan) grantFamily(h *holder, family corev1.IPFamily) {
	h.settle(family)
	if !slices.Contains(h.IPFamilies, family) {
		h.settle(h.IPFamilies...) // Whichever it meant.
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

// grantOne gives h what want asks for, which it may have already. The address is
// invalid when it cannot be had.
func (p *plan) grantOne(h *holder, want netip.Addr) netip.Addr {
	for _, a := range h.addrs {
		if want == a || answers(p.Snap.Pools, want, a) && p.suits(h, p.poolOf(a)) {
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
		code, why = cluster.RequestRefused, fmt.Sprintf("and no %s has an address that ends so; %s", from, p.describePools())
	}
	p.refuse(h, code, "asks for %s, %s", want, why)
	return netip.Addr{}
}

// unknown are the pools of several that a Service names and that do not exist. If
// there is none but those, it is told for each family.
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

// options are the addresses that want may mean, in the order in which they are
// tried. A host part means one in the pools that h names, or in those that give
// to any.
func (p *plan) options(h *holder, want netip.Addr) (options []netip.Addr) {
	if !cluster.IsHostPart(want) {
		return []netip.Addr{want}
	}
	for _, pool := range p.pools {
		if !p.suits(h, pool) || len(h.RequestedPools) == 0 && pool.Allocation != cluster.Automatic {
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

// suits says whether h takes addresses of a pool, which is nil for none: that is
// of any, unless it names some.
func (p *plan) suits(h *holder, pool *pool) bool {
	return len(h.RequestedPools) == 0 || pool != nil && slices.Contains(h.RequestedPools, pool.Name)
}
