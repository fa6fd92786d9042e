package ipam

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A world is a random cluster. Its Services and Pools are few and its addresses
// scarce, so that everything that can go wrong does.
type world struct {
	*rand.Rand
	services map[cluster.Name]*cluster.Spec
	pools    map[string]*cluster.Pool
}

func newWorld(seed uint64) *world {
	w := &world{rand.New(rand.NewPCG(seed, 0)), map[cluster.Name]*cluster.Spec{}, map[string]*cluster.Pool{}}
	for i := range 1 + w.IntN(4) {
		p := w.pool(i)
		w.pools[p.Name] = p
	}
	for range w.IntN(12) {
		s := w.service()
		w.services[s.Name] = s
	}
	return w
}

// pool i is 192.0.2.(16i)-192.0.2.(16i+n) and four addresses of IPv6.
func (w *world) pool(i int) *cluster.Pool {
	p := &cluster.Pool{
		Name: fmt.Sprint("p", i),
		Allocation: []cluster.Allocation{cluster.Automatic, cluster.Automatic, cluster.OnRequest,
			cluster.Drained}[w.IntN(4)],
		AvoidBuggyIPs: w.IntN(2) == 0,
		Created:       w.time(),
	}
	if v6 := netip.MustParseAddr(fmt.Sprintf("2001:db8::%d0", i)); w.IntN(2) == 0 {
		p.Ranges = append(p.Ranges, netipx.IPRangeFrom(v6, v6.Next().Next().Next()))
	}
	if len(p.Ranges) == 0 || w.IntN(2) == 0 {
		p.Ranges = append(p.Ranges, netipx.IPRangeFrom(v4(16*i), v4(16*i+w.IntN(4))),
			netipx.IPRangeFrom(v4(16*i+8), v4(16*i+8)))
	}
	return p
}

func v4(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }

func (w *world) time() time.Time {
	if w.IntN(2) == 0 {
		return time.Time{}
	}
	return time.Unix(int64(w.IntN(5)), 0)
}

// addr returns an address, mostly of a pool.
func (w *world) addr() netip.Addr {
	if w.IntN(3) == 0 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::%d%d", w.IntN(4), w.IntN(5)))
	}
	return v4(16*w.IntN(4) + w.IntN(9))
}

// requests are one address or two, or the ends of some.
func (w *world) requests() []netip.Addr {
	all := []netip.Addr{w.addr()}
	switch w.IntN(4) {
	case 0:
		all = append(all, w.addr())
	case 1:
		all = append(all, netip.AddrFrom4([4]byte{3: byte(1 + w.IntN(60))}))
	case 2:
		all[0] = netip.MustParseAddr(fmt.Sprintf("::%d%d", w.IntN(4), 1+w.IntN(4)))
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func (w *world) service() *cluster.Spec {
	s := &cluster.Spec{
		Name: cluster.Name{
			Namespace: []string{"default", "default", "dev"}[w.IntN(3)], Name: string(rune('a' + w.IntN(20))),
		},
		Ports:          []cluster.Port{{Protocol: corev1.ProtocolTCP, Port: uint16(80 + w.IntN(4))}},
		Created:        w.time(),
		IPFamilies:     []corev1.IPFamily{corev1.IPv4Protocol},
		IPFamilyPolicy: corev1.IPFamilyPolicySingleStack,
	}
	switch w.IntN(4) {
	case 0:
		s.IPFamilies[0] = corev1.IPv6Protocol
	case 1:
		s.IPFamilies = append(s.IPFamilies, corev1.IPv6Protocol)
		s.IPFamilyPolicy = corev1.IPFamilyPolicyPreferDualStack
	case 2:
		s.IPFamilies = append(s.IPFamilies, corev1.IPv6Protocol)
		s.IPFamilyPolicy = corev1.IPFamilyPolicyRequireDualStack
	}
	if w.IntN(4) == 0 {
		s.Requested = w.requests()
	}
	if w.IntN(4) == 0 {
		s.RequestedPools = []string{fmt.Sprint("p", w.IntN(5)), fmt.Sprint("p", 5+w.IntN(2))}[:1+w.IntN(2)]
	}
	if w.IntN(2) == 0 {
		s.Sharing = &cluster.Sharing{Key: []string{"k", "k", "l"}[w.IntN(3)]}
		if w.IntN(2) == 0 {
			s.Sharing.Namespaces = []string{"default", "dev"}
		}
	}
	if w.IntN(6) == 0 {
		s.Status = []netip.Addr{w.addr()}
	}
	return s
}

// snapshot is as Parse makes it.
func (w *world) snapshot() *cluster.Snapshot {
	s := &cluster.Snapshot{}
	for _, name := range slices.Sorted(maps.Keys(w.pools)) {
		s.Pools = append(s.Pools, w.pools[name])
	}
	for _, name := range slices.SortedFunc(maps.Keys(w.services), cluster.Name.Compare) {
		spec := w.services[name]
		s.Services = s.Services.With(cluster.Service{Spec: spec})
		for _, a := range spec.Status {
			s.Assignments = s.Assignments.With(cluster.Assignment{
				Addr: a, Service: name, Pool: cluster.PoolOf(s.Pools, a),
			})
		}
	}
	return s
}

const worlds = 2000

// In any cluster: no address has two holders that may not share it, no Service has one that
// it may not have, and each Service with fewer than it requests has a reason.
func TestAllocateIsSound(t *testing.T) {
	sharing := 0
	for seed := range uint64(worlds) {
		s := newWorld(seed).snapshot()
		assigned, reasons := allocateAll(s)
		shared := false
		for i, a := range assigned {
			for _, b := range assigned[:i] {
				if b.Addr == a.Addr && !together(s, a.Addr, s.Service(b.Service), s.Service(a.Service)) {
					t.Fatalf("seed %d: %s is both %s's and %s's", seed, a.Addr, b.Service, a.Service)
				}
				shared = shared || b.Addr == a.Addr
			}
			checkOne(t, seed, s, a)
		}
		for svc := range s.Services.All() {
			told := slices.ContainsFunc(reasons, func(r cluster.Reason) bool { return r.Service == svc.Name })
			for _, f := range svc.IPFamilies {
				if !holds(assigned, svc.Name, f) && !told {
					t.Fatalf("seed %d: %s has no %s address, and no reason says why", seed, svc.Name, f)
				}
			}
			for _, want := range svc.Requested {
				if !told && !slices.ContainsFunc(assigned,
					func(a cluster.Assignment) bool {
						return a.Service == svc.Name && answers(s.Pools, want, a.Addr)
					}) {
					t.Fatalf("seed %d: %s does not get %s, and no reason says why", seed, svc.Name, want)
				}
			}
		}
		if shared {
			sharing++
		}
	}
	if sharing < worlds/10 {
		t.Errorf("in %d worlds something was shared: too few to show anything", sharing)
	}
}

// together reports whether two Services may share an address: both request it with the same
// key, their namespaces name each other, and they have no port in common. Or the snapshot
// has them together.
func together(s *cluster.Snapshot, a netip.Addr, x, y *cluster.Spec) bool {
	if x.Sharing == nil || y.Sharing == nil || x.Sharing.Key != y.Sharing.Key || x.Ports[0] == y.Ports[0] {
		return false
	}
	return slices.Contains(x.Status, a) && slices.Contains(y.Status, a) || x.Name.Namespace == y.Name.Namespace ||
		len(x.Sharing.Namespaces) != 0 && len(y.Sharing.Namespaces) != 0
}

// checkOne says whether a Service may have an address. What stands in its status
// it may keep, if any pool has it.
func checkOne(t *testing.T, seed uint64, s *cluster.Snapshot, a cluster.Assignment) {
	t.Helper()
	i := slices.IndexFunc(s.Services.Slice(), func(x cluster.Service) bool { return x.Name == a.Service })
	svc := s.Services.At(i)
	j := slices.IndexFunc(s.Pools, func(p *cluster.Pool) bool { return p.Contains(a.Addr) })
	if j < 0 || s.Pools[j].Name != a.Pool {
		t.Fatalf("seed %d: %v is in another pool, or in none", seed, a)
	}
	pool, asked := s.Pools[j], asked(s.Pools, svc.Spec, a.Addr)
	suits := len(svc.RequestedPools) == 0 || slices.Contains(svc.RequestedPools, pool.Name)
	switch {
	case !slices.Contains(svc.IPFamilies, cluster.FamilyOf(a.Addr)):
		t.Fatalf("seed %d: %v is of another family than %v", seed, a, svc.IPFamilies)
	case slices.Contains(svc.Status, a.Addr):
	case pool.Allocation == cluster.Drained:
		t.Fatalf("seed %d: %v is of a drained pool", seed, a)
	case pool.Allocation == cluster.OnRequest && !slices.Contains(svc.Requested, a.Addr) &&
		(!suits || len(svc.RequestedPools) == 0):
		t.Fatalf("seed %d: %v was not asked for", seed, a)
	case pool.AvoidBuggyIPs && a.Addr.Is4() && buggy(a.Addr):
		t.Fatalf("seed %d: %v should be avoided", seed, a)
	case !suits:
		t.Fatalf("seed %d: %v is not of pool %s", seed, a, svc.RequestedPools)
	case !asked && slices.ContainsFunc(svc.Requested, func(r netip.Addr) bool { return r.Is4() == a.Addr.Is4() }):
		t.Fatalf("seed %d: %v is not %v", seed, a, svc.Requested)
	}
}

func holds(assigned []cluster.Assignment, name cluster.Name, f corev1.IPFamily) bool {
	return slices.ContainsFunc(assigned, func(a cluster.Assignment) bool {
		return a.Service == name && cluster.FamilyOf(a.Addr) == f
	})
}

// The order in which a snapshot lists things does not matter, and what is put
// back as the status is the same again: the API server is the only memory.
func TestAllocateIgnoresOrder(t *testing.T) {
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		s := w.snapshot()
		want, reasons := allocateAll(s)
		shuffled := *s
		assigned := s.Assignments.Slice()
		w.Shuffle(len(assigned), func(i, j int) { assigned[i], assigned[j] = assigned[j], assigned[i] })
		shuffled.Assignments = cluster.AssignmentSet(assigned...)
		got, gotReasons := allocateAll(&shuffled)
		if d := gocmp.Diff(render(want, reasons), render(got, gotReasons)); d != "" {
			t.Fatalf("seed %d: another order, another result: %s", seed, d)
		}
		writeStatus(w, want)
		again, _ := allocateAll(w.snapshot())
		for _, a := range want {
			// There may be more: a Service with another's address had a status in its way.
			if !slices.Contains(again, a) {
				t.Fatalf("seed %d: not stable:\n%s", seed, gocmp.Diff(render(want, nil), render(again, nil)))
			}
		}
	}
}

// writeStatus does what a controller does with the result.
func writeStatus(w *world, assigned []cluster.Assignment) {
	for _, spec := range w.services {
		spec.Status = nil
	}
	for _, a := range assigned {
		spec := w.services[a.Service]
		spec.Status = append(spec.Status, a.Addr)
	}
}

// fixed is a Source with the snapshots that a test gives it.
type fixed struct{ s *cluster.Snapshot }

func (f *fixed) Snapshot() *cluster.Snapshot { return f.s }
func (f *fixed) Changed() <-chan struct{}    { return nil }

// Additions never move another Service's address. The exception is a Service with a status:
// writing one resolves a disagreement of nodes.
func TestAdditionsMoveNoService(t *testing.T) {
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		inner := &fixed{w.snapshot()}
		src := NewSource(inner, nil)
		before := src.Snapshot().Assignments.Slice()
		if w.IntN(4) == 0 {
			p := w.pool(7)
			w.pools[p.Name] = p
		}
		s := w.service()
		s.Name.Name += "-new"
		s.Status = nil
		w.services[s.Name] = s
		inner.s = w.snapshot()
		after := src.Snapshot().Assignments.Slice()
		for _, a := range before {
			if !slices.Contains(after, a) && !slices.ContainsFunc(before,
				func(b cluster.Assignment) bool { return b.Service == a.Service && b != a }) {
				moved(t, seed, w, a, after)
			}
		}
		// A restart of the speaker changes nothing.
		if again := NewSource(inner, after).Snapshot().Assignments.Slice(); !slices.Equal(again, after) {
			t.Fatalf("seed %d: not the same after a restart:\n%s", seed,
				gocmp.Diff(render(after, nil), render(again, nil)))
		}
	}
}

// moved fails unless the Service caused the move: it requests a pool or an address that has
// become available only now.
func moved(t *testing.T, seed uint64, w *world, a cluster.Assignment, after []cluster.Assignment) {
	t.Helper()
	s := w.services[a.Service]
	for _, b := range after {
		if b.Service == a.Service && (asked(w.snapshot().Pools, s, b.Addr) ||
			slices.Contains(s.RequestedPools, b.Pool)) {
			return
		}
	}
	t.Fatalf("seed %d: %v moved:\n%s", seed, a, render(after, nil))
}

// Services that move to another pool release their addresses to waiting Services: the
// oldest first, at once, and also to one another.
func TestMovingReleasesAddresses(t *testing.T) {
	pool := func(name string, n int) *cluster.Pool {
		return &cluster.Pool{
			Name: name, Allocation: cluster.Automatic, Ranges: []netipx.IPRange{netipx.IPRangeFrom(v4(n), v4(n))},
		}
	}
	s := &cluster.Snapshot{Pools: []*cluster.Pool{pool("p1", 1), pool("p2", 2), pool("p3", 3), pool("p4", 4)}}
	for i, asks := range []string{"", "p2", "p3", "p2"} {
		name := cluster.Name{Namespace: "default", Name: fmt.Sprint("s", i)}
		s.Services = s.Services.With(cluster.Service{Spec: &cluster.Spec{
			Name: name, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		}})
		if asks != "" {
			s.Services.At(i).RequestedPools = []string{asks}
		}
	}
	// s2 goes from p2 to p3 and leaves its address to s3, which leaves its own to
	// s0. For s1 it comes too late: when s1 was asked, p2 was full.
	held := []cluster.Assignment{
		{Addr: v4(1), Service: s.Services.At(3).Name, Pool: "p1"},
		{Addr: v4(2), Service: s.Services.At(2).Name, Pool: "p2"},
		{Addr: v4(4), Service: s.Services.At(1).Name, Pool: "p4"},
	}
	got, _ := allocate(s, held)
	want := []cluster.Assignment{
		{Addr: v4(1), Service: s.Services.At(0).Name, Pool: "p1"},
		{Addr: v4(2), Service: s.Services.At(3).Name, Pool: "p2"},
		{Addr: v4(3), Service: s.Services.At(2).Name, Pool: "p3"},
		{Addr: v4(4), Service: s.Services.At(1).Name, Pool: "p4"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%swant\n%s", render(got, nil), render(want, nil))
	}
}

// An address that is held survives the end of its pool.
func TestPoolDeletedKeepsAddress(t *testing.T) {
	w := newWorld(1)
	clear(w.services)
	clear(w.pools)
	name := cluster.Name{Namespace: "default", Name: "a"}
	w.services[name] = &cluster.Spec{Name: name, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}
	w.pools["p"] = &cluster.Pool{
		Name: "p", Announce: cluster.AnnounceL2, Allocation: cluster.Automatic,
		Ranges: []netipx.IPRange{netipx.IPRangeFrom(v4(1), v4(9))},
	}
	inner := &fixed{w.snapshot()}
	src := NewSource(inner, nil)
	addr := src.Snapshot().Assignments.Slice()[0].Addr
	clear(w.pools)
	inner.s = w.snapshot()
	for range 2 { // The second time it is remembered as one without a pool.
		s := src.Snapshot()
		want := []cluster.Assignment{{Addr: addr, Service: name,
			From: cluster.Origin{Pool: "p", Announce: cluster.AnnounceL2}}}
		if !slices.Equal(s.Assignments.Slice(), want) || len(s.Refusals) != 1 ||
			s.Refusals[0].Code != cluster.PoolGone {
			t.Fatalf("got %s", render(s.Assignments.Slice(), s.Refusals))
		}
		inner.s = w.snapshot()
		changed := inner.s.Services.At(0)
		changed.Spec = new(*changed.Spec)
		inner.s.Services = inner.s.Services.With(changed)
	}
}

// Nodes that started in different order disagree; writing the addresses that are
// meant into the files makes them agree again, without a restart.
func TestStatusResolvesCollision(t *testing.T) {
	specs := func(pinned ...netip.Addr) (a, c *cluster.Spec) {
		a = &cluster.Spec{
			Name: cluster.Name{Namespace: "default", Name: "a"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		}
		c = &cluster.Spec{
			Name: cluster.Name{Namespace: "default", Name: "c"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		}
		if len(pinned) != 0 {
			a.Status, c.Status = pinned[:1], pinned[1:]
		}
		return a, c
	}
	pools := []*cluster.Pool{{Name: "lan", Allocation: cluster.Automatic,
		Ranges: []netipx.IPRange{netipx.IPRangeFrom(v4(0), v4(3))}}}
	snap := func(specs ...*cluster.Spec) *cluster.Snapshot {
		s := &cluster.Snapshot{Pools: pools}
		for _, spec := range specs {
			s.Services = s.Services.With(cluster.Service{Spec: spec})
			for _, a := range spec.Status {
				s.Assignments = s.Assignments.With(cluster.Assignment{Addr: a, Service: spec.Name, Pool: "lan"})
			}
		}
		return s
	}
	a, c := specs()
	one, two := &fixed{snap(a)}, &fixed{snap(c)}
	first, second := NewSource(one, nil), NewSource(two, nil)
	first.Snapshot()
	second.Snapshot()
	one.s, two.s = snap(a, c), snap(a, c)
	if slices.Equal(first.Snapshot().Assignments.Slice(), second.Snapshot().Assignments.Slice()) {
		t.Fatal("a and c do not collide: this test needs other names")
	}
	for i, s := range []cluster.Source{first, second} {
		if r := s.Snapshot().Refusals; len(r) != 1 || r[0].Code != cluster.PositionConflict {
			t.Errorf("node %d: no reason says that nodes may disagree: %v", i, r)
		}
	}
	has := first.Snapshot().Assignments.Slice()
	a, c = specs(has[1].Addr, has[0].Addr)
	one.s, two.s = snap(a, c), snap(a, c)
	if d := gocmp.Diff(render(first.Snapshot().Assignments.Slice(), first.Snapshot().Refusals),
		render(second.Snapshot().Assignments.Slice(), second.Snapshot().Refusals)); d != "" {
		t.Errorf("the nodes still disagree:\n%s", d)
	}
}

// A change of endpoints alone costs no allocation, and a change that makes no
// difference leaves the slices what they are.
func TestSourceReusesSlices(t *testing.T) {
	w := newWorld(1772)
	inner := &fixed{w.snapshot()}
	src := NewSource(inner, nil)
	before := src.Snapshot()
	if before.Assignments.Len() == 0 || len(before.Refusals) == 0 {
		t.Fatal("this world is too simple: take another seed")
	}
	if src.Snapshot() != before {
		t.Error("another snapshot of the same one")
	}
	endpoints, changed := *inner.s, inner.s.Services.At(0)
	changed.Endpoints = &cluster.Endpoints{}
	endpoints.Services = endpoints.Services.With(changed)
	spec := endpoints
	changed.Spec = new(*changed.Spec)
	spec.Services = spec.Services.With(changed)
	for what, in := range map[string]*cluster.Snapshot{"Endpoints": &endpoints, "Spec": &spec} {
		inner.s = in
		after := src.Snapshot()
		if after == before || after.Services.At(0) != in.Services.At(0) {
			t.Errorf("%s: not the new snapshot", what)
		}
		if !after.Assignments.Same(before.Assignments) || &after.Refusals[0] != &before.Refusals[0] {
			t.Errorf("%s: other arrays", what)
		}
	}
	if inner.s = w.snapshot(); len(inner.s.Refusals) != 0 {
		t.Error("the inner snapshot was written to")
	}
}
