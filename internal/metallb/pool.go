package metallb

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// PoolLabel of a Service: the name of a pool that it may use. A pool has it in its
// serviceSelector if MetalLB's serviceSelectors do not become one.
const PoolLabel = "fanfare.io/pool"

// addPool converts a pool. All are Advertised: like MetalLB's, they are announced as advertisements say.
func (c *converter) addPool(p *IPAddressPool) {
	about := c.about("IPAddressPool", p.Name)
	pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}
	pool.Spec = v1alpha1.AddressPoolSpec{
		Addresses: addressesOf(p.Spec.Addresses), Announce: v1alpha1.AnnounceAdvertised,
		AvoidBuggyIPs: p.Spec.AvoidBuggyIPs,
	}
	// A Service can still name the pool, as in MetalLB by the annotation address-pool.
	if p.Spec.AutoAssign != nil && !*p.Spec.AutoAssign {
		pool.Spec.Allocation = v1alpha1.OnRequest
	}
	if a := p.Spec.ServiceAllocation; a != nil {
		if !about.valid("spec.serviceAllocation.namespaceSelectors", a.NamespaceSelectors) ||
			!about.valid("spec.serviceAllocation.serviceSelectors", a.ServiceSelectors) {
			// MetalLB's webhook refuses such an object, so there is no behaviour to convert. Services
			// keep their addresses, and no other gets one.
			pool.Spec.Allocation = v1alpha1.Drained
		} else {
			c.setServices(about, &pool.Spec, p.Name, a)
			pool.Spec.Priority = c.priority(a.Priority)
		}
	}
	c.Pools = append(c.Pools, pool)
}

// addressesOf returns CIDRs without host bits, which MetalLB ignores (ParseCIDR) and Fanfare refuses:
// they are more often a typo than intended. All else means the same.
func addressesOf(list []string) []string {
	out := make([]string, len(list))
	for i, a := range list {
		out[i] = strings.TrimSpace(a)
		if p, err := netip.ParsePrefix(out[i]); err == nil {
			out[i] = p.Masked().String()
		}
	}
	return out
}

// priority returns a pool's priority in Fanfare, where the highest comes first and pools
// without one have 0. In MetalLB the lowest comes first, 0 is the last of the pools with a
// serviceAllocation, and pools without one come after these (pinnedPoolsForService and sortPools).
// So the number itself does not matter, only how many come later. The steps of 10 leave room for
// pools to come.
func (c *converter) priority(p int) int32 {
	// Equal ranks stay equal: MetalLB chooses at random among them.
	rank := func(p int) int { return cmp.Or(p, math.MaxInt) } // the larger, the later
	after := sets.Set[int]{}                                  // the priorities that come after p
	for _, pool := range c.in.Pools {
		if a := pool.Spec.ServiceAllocation; a != nil && rank(a.Priority) > rank(p) {
			after.Insert(a.Priority)
		}
	}
	return int32(10 * (1 + len(after)))
}

// setServices sets which Services may use the pool. Both programs also refuse a Service that names the
// pool or one of its addresses and is not among them (MetalLB: isPoolCompatibleWithService in Assign).
func (c *converter) setServices(about subject, spec *v1alpha1.AddressPoolSpec, pool string, a *ServiceAllocation) {
	c.setNamespaces(about, spec, a)
	switch list := unite(a.ServiceSelectors); {
	case len(a.ServiceSelectors) == 0:
	case len(list) == 1:
		spec.ServiceSelector = list[0].selector()
	default:
		// Two pools with the same addresses would do for advertisements' selectors, but Fanfare
		// refuses pools that overlap. A label on the Services is what remains.
		spec.ServiceSelector = &v1alpha1.LabelSelector{
			MatchLabels: map[string]v1alpha1.LabelValue{PoolLabel: v1alpha1.LabelValue(pool)}}
		about.todo("spec.serviceAllocation.serviceSelectors",
			"one selector of Fanfare's does not select what any of these selects, so the AddressPool is for Services "+
				"with the label %s=%s; give it to the matching Services. Services keep the addresses that they have%s",
			PoolLabel, pool, c.labelCommands(pool, a.ServiceSelectors))
	}
}

// labelCommands lists the commands that label today's Services, each on a line of its own, for a
// user to copy out of the comment.
func (c *converter) labelCommands(pool string, selectors []metav1.LabelSelector) string {
	var b strings.Builder
	for _, s := range c.in.Services {
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && matchesAny(selectors, s.Labels) {
			fmt.Fprintf(&b, "\n  kubectl -n %s label service %s %s=%s", s.Namespace, s.Name, PoolLabel, pool)
		}
	}
	return b.String()
}

// setNamespaces sets the namespaces. MetalLB's namespaces and namespaceSelectors add up, and
// Fanfare's fields restrict each other: so names become values of the label that each namespace has.
func (c *converter) setNamespaces(about subject, spec *v1alpha1.AddressPoolSpec, a *ServiceAllocation) {
	if len(a.NamespaceSelectors) == 0 {
		spec.Namespaces = a.Namespaces
		return
	}
	selectors := slices.Clone(a.NamespaceSelectors)
	for _, name := range a.Namespaces {
		selectors = append(selectors, metav1.LabelSelector{
			MatchLabels: map[string]string{corev1.LabelMetadataName: name}})
	}
	if list := unite(selectors); len(list) == 1 {
		spec.NamespaceSelector = list[0].selector()
		return
	}
	// Names are the last resort: a namespace that gets the label later is not among them.
	names := sets.New(a.Namespaces...)
	for _, n := range c.in.Namespaces {
		if matchesAny(a.NamespaceSelectors, n.Labels) {
			names.Insert(n.Name)
		}
	}
	spec.Namespaces = sets.List(names)
	about.todo("spec.serviceAllocation.namespaceSelectors",
		"one selector of Fanfare's does not select what namespaces and namespaceSelectors select "+
			"together, so the AddressPool "+
			"lists the namespaces of today; add later ones, or give all of them one label and use namespaceSelector")
	if len(spec.Namespaces) == 0 {
		spec.Allocation = v1alpha1.Drained // for no namespace; an empty list would be for all
		about.todo("spec.serviceAllocation.namespaceSelectors",
			"no known namespace matches, so the AddressPool is Drained")
	}
}

// poolsOf returns the pools that an advertisement selects, sorted, and ok false if it selects none
// although it has names or selectors. No names: all pools.
func (c *converter) poolsOf(about subject, s *Selection) (pools []string, ok bool) {
	names, selectors := s.IPAddressPools, s.IPAddressPoolSelectors
	if !about.valid("spec.ipAddressPoolSelectors", selectors) {
		return nil, false
	}
	if len(names) == 0 && len(selectors) == 0 {
		return nil, true
	}
	selected := sets.New(slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return about.unknown("spec.ipAddressPools", n, named(c.in.Pools, n))
	})...)
	if len(selectors) > 0 {
		for _, p := range c.in.Pools {
			if matchesAny(selectors, p.Labels) {
				selected.Insert(p.Name)
			}
		}
		about.todo("spec.ipAddressPoolSelectors",
			"Fanfare's advertisements name their pools, and this one names the pools that match today: %s. "+
				"Name later pools in it",
			cmp.Or(strings.Join(sets.List(selected), ", "), "none"))
	}
	if len(selected) == 0 {
		about.todo("spec.ipAddressPools", "no pool remains, so the object is not converted")
	}
	return sets.List(selected), len(selected) > 0
}
