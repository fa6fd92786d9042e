package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
)

// maxNamespaces is how many namespaces a pool's status names. A status that grows with the cluster
// could become too large to be written.
const maxNamespaces = 100

// poolStatuses is the wanted status of each pool.
func poolStatuses(snap *cluster.Snapshot, assignments []cluster.Assignment) map[string]v1alpha1.AddressPoolStatus {
	u := newUsage(snap, assignments)
	out := make(map[string]v1alpha1.AddressPoolStatus, len(snap.Pools))
	for _, p := range snap.Pools {
		c := u.pools[p.Name]
		s := v1alpha1.AddressPoolStatus{IPv4: c.of(p, corev1.IPv4Protocol), IPv6: c.of(p, corev1.IPv6Protocol)}
		s.Namespaces, s.OtherNamespaces = c.most()
		s.Conditions = []metav1.Condition{poolReady(p, s, c, snap.Problems)}
		out[p.Name] = s
	}
	for _, v := range snap.Versions {
		if v.Kind == "AddressPool" {
			out[v.Name] = observed(snap, out, v)
		}
	}
	return out
}

// observed adds the generation that the status is about. A pool that was never valid is in no
// snapshot, but has a condition too.
func observed(snap *cluster.Snapshot, statuses map[string]v1alpha1.AddressPoolStatus,
	v cluster.Version) v1alpha1.AddressPoolStatus {
	s, used := statuses[v.Name]
	if d := diagnose(snap.Problems, v.Object()); !used {
		s.Conditions = []metav1.Condition{{Type: ready, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Now(),
			Reason: reasonFaulty, Message: cut(strings.Join(d.wrong, "; "))}}
	}
	s.Conditions[0].ObservedGeneration = v.Generation
	return s
}

// usage counts each pool's addresses in use.
type usage struct{ pools map[string]*count }

// A count has the addresses in use of one pool.
type count struct {
	pool       *cluster.Pool
	v4, v6     familyCount
	namespaces map[string]*v1alpha1.NamespaceAddresses
}

// familyCount counts the addresses of one family.
type familyCount struct {
	assigned int64 // held by Services
	reserved int64 // reserved and not held
	spent    int64 // assigned or only claimed, among the addresses that the pool gives out
}

// newUsage counts each address once, even if Services share it. Assignments must be sorted by
// address.
func newUsage(snap *cluster.Snapshot, assignments []cluster.Assignment) usage {
	u, all := usage{make(map[string]*count, len(snap.Pools))}, assignments
	for _, p := range snap.Pools {
		u.pools[p.Name] = &count{pool: p, namespaces: map[string]*v1alpha1.NamespaceAddresses{}}
	}
	for len(assignments) != 0 {
		n := 1 // Services may share it.
		for n < len(assignments) && assignments[n].Addr == assignments[0].Addr {
			n++
		}
		if c := u.pools[assignments[0].Pool]; c != nil {
			c.assign(assignments[:n])
		}
		assignments = assignments[n:]
	}
	for claim := range snap.Claims.All() {
		c := u.pools[cluster.PoolOf(snap.Pools, claim.Addr)]
		i, assigned := slices.BinarySearchFunc(all, claim.Addr,
			func(as cluster.Assignment, a netip.Addr) int { return as.Addr.Compare(a) })
		if c == nil {
			continue
		}
		if !assigned {
			c.spend(claim.Addr)
		}
		if !assigned && (claim.Reserved || len(claim.ReservedFor) != 0) {
			c.family(claim.Addr).reserved++
		}
		c.reserve(claim, all[i:])
	}
	return u
}

// reserve counts an address for the namespaces that it is reserved for, unless one of their
// Services has it. The first of assigned is such a Service, if there is one.
func (c *count) reserve(claim *cluster.Claim, assigned []cluster.Assignment) {
	for _, ns := range namespacesOf(claim.ReservedFor) {
		n := 0
		for n < len(assigned) && assigned[n].Addr == claim.Addr && assigned[n].Service.Namespace != ns {
			n++
		}
		if n == len(assigned) || assigned[n].Addr != claim.Addr {
			c.namespace(ns).Reserved++
		}
	}
}

// namespace returns the count of a namespace, to be changed.
func (c *count) namespace(name string) *v1alpha1.NamespaceAddresses {
	n := c.namespaces[name]
	if n == nil {
		n = &v1alpha1.NamespaceAddresses{Namespace: name}
		c.namespaces[name] = n
	}
	return n
}

// family returns the count of the family of a, to be changed.
func (c *count) family(a netip.Addr) *familyCount {
	if a.Is4() {
		return &c.v4
	}
	return &c.v6
}

// spend counts an address that is not free. Addresses that the pool does not give out are in no
// total.
func (c *count) spend(a netip.Addr) {
	if ipam.Gives(c.pool, a) {
		c.family(a).spent++
	}
}

// assign counts the assignments of one address.
func (c *count) assign(shared []cluster.Assignment) {
	a := shared[0].Addr
	c.family(a).assigned++
	c.spend(a)
	for i, as := range shared {
		ns := as.Service.Namespace
		if slices.ContainsFunc(shared[:i], func(o cluster.Assignment) bool { return o.Service.Namespace == ns }) {
			continue
		}
		n := c.namespace(ns)
		if a.Is4() {
			n.IPv4++
		} else {
			n.IPv6++
		}
	}
}

// of returns the usage of a family for the pool's status, nil if the pool has no addresses of the
// family.
func (c *count) of(p *cluster.Pool, f corev1.IPFamily) *v1alpha1.PoolAddresses {
	n := c.v4
	if f == corev1.IPv6Protocol {
		n = c.v6
	}
	total := ipam.Count(p, f)
	if total == 0 && n.assigned == 0 {
		return nil
	}
	return &v1alpha1.PoolAddresses{
		Total: total, Assigned: n.assigned, Reserved: n.reserved, Available: max(0, total-n.spent),
	}
}

// most returns the namespaces with the most addresses, at most maxNamespaces, and the number of the
// others: the size of a status is limited.
func (c *count) most() (list []v1alpha1.NamespaceAddresses, others int64) {
	for _, n := range c.namespaces {
		list = append(list, *n)
	}
	slices.SortFunc(list, func(a, b v1alpha1.NamespaceAddresses) int {
		return cmp.Or(cmp.Compare(b.IPv4+b.IPv6+b.Reserved, a.IPv4+a.IPv6+a.Reserved),
			cmp.Compare(a.Namespace, b.Namespace))
	})
	if others = int64(len(list) - maxNamespaces); others > 0 {
		return list[:maxNamespaces], others
	}
	return list, 0
}

// over returns the namespaces that exceed the pool's quota, sorted.
func (c *count) over() (names []string) {
	if c.pool.Quota == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.namespaces)) {
		if n := c.namespaces[name]; max(n.IPv4, n.IPv6) > int64(c.pool.Quota) {
			names = append(names, name)
		}
	}
	return names
}

// poolReady returns whether a Service may get an address of the pool. The message contains no
// number that changes with every Service, because each new message is an Event.
func poolReady(p *cluster.Pool, s v1alpha1.AddressPoolStatus, n *count, problems []cluster.Problem) metav1.Condition {
	c := metav1.Condition{Type: ready, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Now()}
	d := diagnose(problems, cluster.Named("AddressPool", p.Name))
	full := spent(s.IPv4) && spent(s.IPv6)
	switch {
	case len(d.wrong) != 0:
		c.Reason, c.Message = d.reason, strings.Join(d.wrong, "; ")
	case p.Allocation == cluster.Drained && n.v4.assigned+n.v6.assigned == 0:
		c.Reason, c.Message = reasonDrain, "gives out no addresses, and no Service has one: it can be removed"
	case p.Allocation == cluster.Drained:
		c.Reason, c.Message = reasonDrain, "gives out no addresses; Services keep the addresses that they have"
	case full:
		c.Reason, c.Message = string(cluster.PoolExhausted), whyExhausted(p, s)
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReady, "has addresses to give"
		if p.Allocation == cluster.OnRequest {
			c.Message += " to Services that ask for them"
		}
		switch {
		case s.IPv4 != nil && spent(s.IPv4):
			c.Message += "; every IPv4 address is taken"
		case s.IPv6 != nil && spent(s.IPv6):
			c.Message += "; every IPv6 address is taken"
		}
	}
	if names := n.over(); len(names) != 0 {
		c.Message += fmt.Sprintf("; over the quota of %d, and keep what they have: namespaces %s", p.Quota,
			strings.Join(names, ", "))
	}
	c.Message = cut(c.Message)
	return c
}

// whyExhausted explains that a pool has no address left, and what to do.
func whyExhausted(p *cluster.Pool, s v1alpha1.AddressPoolStatus) string {
	var causes []string
	for family, n := range map[corev1.IPFamily]*v1alpha1.PoolAddresses{
		corev1.IPv4Protocol: s.IPv4, corev1.IPv6Protocol: s.IPv6,
	} {
		if why := ipam.Excluded(p, family); n != nil && why != "" {
			causes = append(causes, fmt.Sprintf("of the %s addresses, %s", family, why))
		}
	}
	if len(causes) == 0 {
		return "every address is taken; add addresses"
	}
	slices.Sort(causes)
	return fmt.Sprintf("no address is free: %s; add addresses, or end what excludes them", strings.Join(causes, "; "))
}

// spent reports whether no address of a family is left, or there never was one.
func spent(n *v1alpha1.PoolAddresses) bool { return n == nil || n.Available == 0 }
