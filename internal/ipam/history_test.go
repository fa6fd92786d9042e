package ipam

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A history is a cluster in which one thing happens after another, and a controller
// that writes what was decided: claims and status.
type history struct {
	*rand.Rand
	services   map[cluster.Name]*cluster.Spec
	pools      map[string]*cluster.Pool
	namespaces map[string]*cluster.Namespace
	claims     map[netip.Addr]*cluster.Claim
	conflicts  uint64 // a bit for each address that another host uses
	clock      int64
}

func newHistory(seed uint64) *history {
	h := &history{
		rand.New(rand.NewPCG(seed, 7)), map[cluster.Name]*cluster.Spec{}, map[string]*cluster.Pool{},
		map[string]*cluster.Namespace{}, map[netip.Addr]*cluster.Claim{}, 0, 0,
	}
	for i := range 3 {
		h.setPool(i)
		h.setNamespace(i)
	}
	return h
}

func (h *history) label() labels.Set {
	return labels.Set{"tier": []string{"a", "b"}[h.IntN(2)]}
}

// selector is one of labels, now and then none.
func (h *history) selector() cluster.Selector {
	if h.IntN(2) == 0 {
		return cluster.Selector{}
	}
	return cluster.Selecting(labels.SelectorFromSet(h.label()))
}

func (h *history) setNamespace(i int) {
	name := fmt.Sprint("ns", i)
	h.namespaces[name] = &cluster.Namespace{Name: name, Labels: h.label()}
}

// setPool makes pool i another one than it was: larger or smaller, for others, of
// another quota, with a node in it, drained.
func (h *history) setPool(i int) {
	p := &cluster.Pool{
		Name: fmt.Sprint("p", i), Priority: int32(h.IntN(3)), Quota: h.IntN(3), AvoidBuggyIPs: h.IntN(2) == 0,
		Allocation: []cluster.Allocation{cluster.Automatic, cluster.Automatic, cluster.OnRequest,
			cluster.Drained}[h.IntN(4)],
		NamespaceSelector: h.selector(), ServiceSelector: h.selector(),
		Ranges: []netipx.IPRange{netipx.IPRangeFrom(v4(16*i), v4(16*i+h.IntN(5)))},
	}
	if h.IntN(3) == 0 {
		p.Namespaces = []string{"ns0", "ns1"}[:1+h.IntN(2)]
	}
	if h.IntN(2) == 0 {
		six := netip.MustParseAddr(fmt.Sprintf("2001:db8::%d0", i))
		p.Ranges = append(p.Ranges, netipx.IPRangeFrom(six, six.Next()))
	}
	if h.IntN(3) == 0 {
		p.Occupied = []cluster.Occupied{{Range: netipx.IPRangeFrom(v4(16*i), v4(16*i+h.IntN(2))), By: "Node n1"}}
	}
	h.pools[p.Name] = p
}

func (h *history) newService() {
	h.clock++
	s := &cluster.Spec{
		Name:    cluster.Name{Namespace: fmt.Sprint("ns", h.IntN(4)), Name: fmt.Sprint("s", h.IntN(8))},
		Created: time.Unix(h.clock, 0), Labels: h.label(), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}
	switch h.IntN(4) {
	case 0:
		s.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		s.IPFamilyPolicy = corev1.IPFamilyPolicyPreferDualStack
	case 1:
		s.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		s.IPFamilyPolicy = corev1.IPFamilyPolicyRequireDualStack
	}
	switch h.IntN(4) {
	case 0:
		s.RequestedPools = []string{fmt.Sprint("p", h.IntN(3))}
	case 1:
		s.Requested = []netip.Addr{v4(16*h.IntN(3) + h.IntN(5))}
	}
	if h.services[s.Name] == nil {
		h.services[s.Name] = s
	}
}

// happen lets one thing happen that no Service asks for, or that leaves what it asks
// for as it is; or a Service comes or goes.
func (h *history) happen() {
	names := slices.SortedFunc(maps.Keys(h.services), cluster.Name.Compare)
	if h.IntN(4) == 0 {
		h.conflicts ^= 1 << h.IntN(48)
	}
	switch n := h.IntN(10); {
	case n < 4 || len(names) == 0:
		h.newService()
	case n < 5:
		delete(h.services, names[h.IntN(len(names))])
	case n < 6:
		s := new(*h.services[names[h.IntN(len(names))]])
		s.Labels = h.label()
		h.services[s.Name] = s
	case n < 7:
		h.setNamespace(h.IntN(4))
	case n < 8:
		delete(h.pools, fmt.Sprint("p", h.IntN(3)))
	default:
		h.setPool(h.IntN(3))
	}
}

func (h *history) snapshot() *cluster.Snapshot {
	s := &cluster.Snapshot{}
	for _, name := range slices.Sorted(maps.Keys(h.pools)) {
		s.Pools = append(s.Pools, h.pools[name])
	}
	for _, name := range slices.Sorted(maps.Keys(h.namespaces)) {
		s.Namespaces = append(s.Namespaces, h.namespaces[name])
	}
	for _, name := range slices.SortedFunc(maps.Keys(h.services), cluster.Name.Compare) {
		spec := h.services[name]
		s.Services = s.Services.With(cluster.Service{Spec: spec})
		for _, a := range spec.Status {
			s.Assignments = s.Assignments.With(cluster.Assignment{
				Addr: a, Service: name, Pool: cluster.PoolOf(s.Pools, a),
			})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(h.claims), netip.Addr.Compare) {
		s.Claims = s.Claims.With(h.claims[a])
	}
	for i := range 48 {
		if h.conflicts>>i&1 != 0 {
			s.Conflicts = append(s.Conflicts, cluster.Conflict{Addr: v4(i), Node: "n1"})
		}
	}
	return s
}

// write does what a controller does with what was decided.
func (h *history) write(assigned []cluster.Assignment) {
	was := h.claims
	h.claims = map[netip.Addr]*cluster.Claim{}
	status := map[cluster.Name][]netip.Addr{}
	for _, a := range assigned {
		status[a.Service] = append(status[a.Service], a.Addr)
		c := was[a.Addr]
		if c == nil || c.Holders[0].Name != a.Service {
			c = &cluster.Claim{Addr: a.Addr, Pool: a.Pool, Holders: []cluster.Holder{{Name: a.Service}}}
		}
		h.claims[a.Addr] = c
	}
	for name, s := range h.services {
		if !slices.Equal(s.Status, status[name]) {
			s = new(*s)
			s.Status = status[name]
			h.services[name] = s
		}
	}
}

// After any events in any order: no address is held twice, no Service gets an address from
// a pool that excludes it, and no Service loses its address unless it goes. A restarted
// controller decides the same.
func TestAnySequenceOfEvents(t *testing.T) {
	kept, given := 0, 0
	for seed := range uint64(160) {
		h := newHistory(seed)
		allocator := NewAllocator(h.snapshot(), Settled)
		for step := range 40 {
			h.happen()
			snap := h.snapshot()
			allocator = allocator.Next(snap)
			assigned, reasons := allocator.Allocate(time.Time{})
			if fresh, why := allocateAll(snap); !slices.Equal(fresh, assigned) || !slices.Equal(why, reasons) {
				t.Fatalf("seed %d, step %d: after a restart\n%swant\n%s", seed, step, render(fresh, why),
					render(assigned, reasons))
			}
			for i, a := range assigned {
				if i > 0 && assigned[i-1].Addr == a.Addr {
					t.Fatalf("seed %d, step %d: %s is given twice", seed, step, a.Addr)
				}
				if slices.Contains(h.services[a.Service].Status, a.Addr) {
					kept++
					continue
				}
				given++
				if why := h.mistaken(snap, assigned, a); why != "" {
					t.Fatalf("seed %d, step %d: %v: %s", seed, step, a, why)
				}
			}
			for _, c := range h.claims {
				if lostAddress(h, assigned, c) {
					t.Fatalf("seed %d, step %d: %s has lost %s:\n%s", seed, step, c.Holders[0].Name, c.Addr,
						render(assigned, reasons))
				}
			}
			h.write(assigned)
		}
	}
	if kept < 10_000 || given < 1000 {
		t.Errorf("%d addresses were kept and %d given: too few to show anything", kept, given)
	}
}

// mistaken says why an address should not have been given.
func (h *history) mistaken(snap *cluster.Snapshot, assigned []cluster.Assignment, a cluster.Assignment) string {
	s, p := h.services[a.Service], h.pools[a.Pool]
	if p == nil {
		return "it is of no pool"
	}
	asked := slices.Contains(s.Requested, a.Addr) || slices.Contains(s.RequestedPools, p.Name)
	var others []cluster.Assignment
	for _, o := range assigned {
		if o.Pool == a.Pool && o.Service.Namespace == a.Service.Namespace && o.Addr.Is4() == a.Addr.Is4() {
			others = append(others, o)
		}
	}
	switch {
	case p.Excludes(s, snap.Namespaces) != "":
		return "the pool " + p.Excludes(s, snap.Namespaces)
	case p.OccupiedBy(a.Addr) != "":
		return "it belongs to " + p.OccupiedBy(a.Addr)
	case p.Allocation == cluster.Drained, p.Allocation == cluster.OnRequest && !asked:
		return "the pool is " + string(p.Allocation)
	case p.AvoidBuggyIPs && a.Addr.Is4() && buggy(a.Addr):
		return "its pool avoids it"
	case p.Quota != 0 && len(others) > p.Quota:
		return fmt.Sprintf("the namespace has %d, and the quota is %d", len(others), p.Quota)
	}
	return ""
}

func hasAssignment(list []cluster.Assignment, addr netip.Addr, service cluster.Name, pool string) bool {
	return slices.ContainsFunc(list, func(a cluster.Assignment) bool {
		return a.Addr == addr && a.Service == service && a.Pool == pool
	})
}

// lostAddress reports whether a holder of a claim that still exists has lost the address,
// without one of the family that it requests in its place.
func lostAddress(h *history, assigned []cluster.Assignment, c *cluster.Claim) bool {
	s := h.services[c.Holders[0].Name]
	if s == nil || hasAssignment(assigned, c.Addr, s.Name, cluster.PoolOf(h.snapshot().Pools, c.Addr)) {
		return false
	}
	for _, a := range assigned {
		named := slices.Contains(s.Requested, a.Addr) || slices.Contains(s.RequestedPools, a.Pool)
		if a.Service == s.Name && a.Addr.Is4() == c.Addr.Is4() && named && !slices.Contains(s.RequestedPools, c.Pool) {
			return false
		}
	}
	// A Service that was deleted and created again may be excluded now.
	return slices.Contains(s.Status, c.Addr)
}

// Of each range of a pool as much is used as of any other.
func TestSpread(t *testing.T) {
	pool := &cluster.Pool{Name: "lan", Allocation: cluster.Automatic, Ranges: []netipx.IPRange{
		netipx.MustParseIPRange("10.0.0.0-10.0.3.255"), netipx.MustParseIPRange("192.0.2.0-192.0.2.255"),
		netipx.MustParseIPRange("172.16.0.0-172.16.3.255"),
	}}
	s := &cluster.Snapshot{Pools: []*cluster.Pool{pool}}
	for i := range 1152 { // half of the addresses
		s.Services = s.Services.With(cluster.Service{Spec: &cluster.Spec{
			Name:       cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%05d", i)},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		}})
	}
	assigned, _ := allocateAll(s)
	for _, r := range pool.Ranges {
		size, n := float64(length(r).lo), 0.
		for _, a := range assigned {
			if r.Contains(a.Addr) {
				n++
			}
		}
		if n < 0.4*size || n > 0.6*size {
			t.Errorf("of %s %.0f of %.0f are used, want half", r, n, size)
		}
	}
}
