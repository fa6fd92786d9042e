package ipam

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// To leave out what is settled is to say the same sooner: in any cluster, with
// any claims, whatever has changed since addresses were given out.
func TestSettledServicesNeedNoAllocation(t *testing.T) {
	settled, kept := 0, 0
	for seed := range uint64(4 * worlds) {
		w := newWorld(seed)
		before := w.snapshot()
		assigned, _ := allocateAll(before)
		writeStatus(w, assigned)
		claims := w.claims(assigned)
		for range w.IntN(4) {
			w.disturb()
		}
		s := w.snapshot()
		s.Claims = cluster.ClaimSet(claims...)
		for svc := range s.Services.All() {
			if Settled(s, svc.Spec) {
				settled++
			}
		}
		got, gotReasons := allocateAll(s)
		kept += checkKept(t, seed, s, got)
		want, wantReasons := NewAllocator(s, neverSettled).Allocate(time.Time{})
		if diff := gocmp.Diff(want, got, cmpopts.EquateComparable(cluster.Assignment{}),
			cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: assignments (-everything +unsettled)\n%s", seed, diff)
		}
		if diff := gocmp.Diff(wantReasons, gotReasons, cmpopts.EquateComparable(cluster.Reason{}),
			cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: reasons (-everything +unsettled)\n%s", seed, diff)
		}
	}
	if settled < worlds {
		t.Errorf("%d Services were settled in all worlds: too few to show anything", settled)
	}
	if kept < worlds/20 {
		t.Errorf("%d reserved addresses were given out: too few to show anything", kept)
	}
}

// checkKept counts the reserved addresses that go to a Service that does not request them.
func checkKept(t *testing.T, seed uint64, s *cluster.Snapshot, assigned []cluster.Assignment) (kept int) {
	t.Helper()
	for _, a := range assigned {
		c, spec := s.Claim(a.Addr), s.Service(a.Service)
		if c == nil || !c.Reserved && len(c.ReservedFor) == 0 || len(c.Holders) != 0 ||
			slices.Contains(spec.Status, a.Addr) {
			continue
		}
		kept++
		if slices.Contains(c.ReservedFor, a.Service) {
			continue
		}
		same := func(k cluster.Name) bool { return k.Namespace == a.Service.Namespace }
		if !asked(s.Pools, spec, a.Addr) || len(c.ReservedFor) != 0 && !slices.ContainsFunc(c.ReservedFor, same) {
			t.Fatalf("seed %d: %v, which is reserved (%v)", seed, a, c.ReservedFor)
		}
	}
	return kept
}

// claims are what a controller would have written, and now and then something
// else: one is missing, or names another, or one more, or one who is gone.
func (w *world) claims(assigned []cluster.Assignment) []*cluster.Claim {
	var claims []*cluster.Claim
	other := func() cluster.Holder {
		return cluster.Holder{Name: cluster.Name{Namespace: "default", Name: string(rune('a' + w.IntN(20)))}}
	}
	for i, a := range assigned {
		if i > 0 && assigned[i-1].Addr == a.Addr { // It shares the claim.
			if n := len(claims) - 1; n >= 0 && claims[n].Addr == a.Addr && w.IntN(8) != 0 {
				claims[n].Holders = append(claims[n].Holders, cluster.Holder{Name: a.Service})
			}
			continue
		}
		c := &cluster.Claim{
			Addr: a.Addr, Pool: a.Pool, Holders: []cluster.Holder{{Name: a.Service}}, Reserved: w.IntN(8) == 0,
		}
		switch w.IntN(10) {
		case 0:
			continue
		case 1:
			c.Holders = []cluster.Holder{other()}
		case 2:
			c.Holders = append(c.Holders, other())
		case 3:
			c.Holders = nil
		case 4:
			c.ReservedFor = []cluster.Name{a.Service}
		}
		claims = append(claims, c)
	}
	for range w.IntN(3) { // left over, or reserved
		a := w.addr()
		if slices.ContainsFunc(claims, func(c *cluster.Claim) bool { return c.Addr == a }) {
			continue
		}
		c := &cluster.Claim{Addr: a, Holders: []cluster.Holder{other()}, Reserved: w.IntN(2) == 0}
		if w.IntN(2) == 0 {
			c.Holders, c.ReservedFor = nil, []cluster.Name{other().Name}
			if w.IntN(3) == 0 {
				c.ReservedFor[0].Name = ""
			}
		}
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(a, b *cluster.Claim) int { return a.Addr.Compare(b.Addr) })
	for _, c := range claims {
		slices.SortFunc(c.Holders, func(a, b cluster.Holder) int { return a.Name.Compare(b.Name) })
		c.Holders = slices.CompactFunc(c.Holders, func(a, b cluster.Holder) bool { return a.Name == b.Name })
	}
	return claims
}

// disturb changes a thing or two.
func (w *world) disturb() {
	switch w.IntN(3) {
	case 0:
		s := w.service()
		w.services[s.Name] = s
	case 1:
		p := w.pool(w.IntN(4))
		w.pools[p.Name] = p
	}
	names := slices.SortedFunc(maps.Keys(w.services), cluster.Name.Compare)
	if len(names) == 0 {
		return
	}
	s := new(*w.services[names[w.IntN(len(names))]]) // a change is another pointer
	w.services[s.Name] = s
	switch w.IntN(4) {
	case 0:
		delete(w.services, s.Name)
	case 1:
		s.Status = append(slices.Clone(s.Status), w.addr())
		slices.SortFunc(s.Status, netip.Addr.Compare)
		s.Status = slices.Compact(s.Status)
	case 2:
		s.Requested, s.RequestedPools, s.Sharing = w.service().Requested, w.service().RequestedPools,
			w.service().Sharing
	}
}

// An Allocator made by Next equals one made by NewAllocator.
func TestAllocatorNext(t *testing.T) {
	type visible struct {
		Held  []cluster.Assignment
		Open  []*cluster.Spec
		Loose []*cluster.Claim
	}
	see := func(s *Allocator) visible { return visible{s.Held, s.Open, s.Loose} }
	kept := 0
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		for range 12 { // so many that a change of one is not one of most
			s := w.service()
			s.Name.Name += "x"
			w.services[s.Name] = s
		}
		assigned, _ := allocateAll(w.snapshot())
		writeStatus(w, assigned)
		snap := w.snapshot()
		snap.Claims = cluster.ClaimSet(w.claims(assigned)...)
		allocator := NewAllocator(snap, Settled)
		for range 10 {
			snap = w.next(snap)
			allocator = allocator.Next(snap)
			if len(allocator.Open) < snap.Services.Len() {
				kept++
			}
			got, want := see(allocator), see(NewAllocator(snap, Settled))
			if !slices.Equal(got.Held, want.Held) || !slices.Equal(got.Open, want.Open) ||
				!slices.Equal(got.Loose, want.Loose) {
				t.Fatalf("seed %d:\ngot\n%+v\nwant\n%+v", seed, got, want)
			}
		}
	}
	if kept < worlds {
		t.Errorf("something was settled in %d worlds: too few to show anything", kept)
	}
}

// next is another snapshot, with something changed and the rest the same pointers.
func (w *world) next(was *cluster.Snapshot) *cluster.Snapshot {
	claims := was.Claims.Slice()
	if n := w.IntN(8); n == 0 {
		w.disturb()
	} else if n < 4 && len(claims) > 0 {
		i := w.IntN(len(claims))
		if other := w.claims([]cluster.Assignment{{Addr: claims[i].Addr,
			Service: cluster.Name{Namespace: "default", Name: string(rune('a' + w.IntN(20)))}}}); len(other) == 1 &&
			other[0].Addr == claims[i].Addr {
			claims[i] = other[0]
		} else {
			claims = slices.Delete(claims, i, i+1)
		}
	} else if names := slices.SortedFunc(maps.Keys(w.services), cluster.Name.Compare); len(names) > 0 {
		spec := *w.services[names[w.IntN(len(names))]]
		if spec.Status = nil; w.IntN(2) == 0 && was.Claims.Len() > 0 {
			spec.Status = []netip.Addr{was.Claims.At(w.IntN(was.Claims.Len())).Addr}
		}
		w.services[spec.Name] = &spec
	}
	snap := w.snapshot()
	snap.Claims = cluster.ClaimSet(claims...)
	return snap
}
