package ipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A scripted Source returns the given snapshot.
type scripted struct{ snapshot *cluster.Snapshot }

func (s *scripted) Snapshot() *cluster.Snapshot { return s.snapshot }
func (s *scripted) Changed() <-chan struct{}    { return nil }

func TestReaderNeedsClaims(t *testing.T) {
	name := func(n string) cluster.Name { return cluster.Name{Namespace: "shop", Name: n} }
	addr := netip.MustParseAddr
	snap := &cluster.Snapshot{
		Services: cluster.ServiceSet([]cluster.Service{
			{Spec: &cluster.Spec{Name: name("claimed"), Status: []netip.Addr{addr("192.0.2.1")}}},
			{Spec: &cluster.Spec{Name: name("foreign"), Status: []netip.Addr{addr("203.0.113.1")}}},
			{Spec: &cluster.Spec{Name: name("taken"), Status: []netip.Addr{addr("192.0.2.1")}}},
			{Spec: &cluster.Spec{Name: name("waiting")}},
		}...),
		Assignments: cluster.AssignmentSet(
			cluster.Assignment{Addr: addr("192.0.2.1"), Service: name("claimed")},
			cluster.Assignment{Addr: addr("192.0.2.1"), Service: name("taken")},
			cluster.Assignment{Addr: addr("203.0.113.1"), Service: name("foreign")},
		),
		Claims: cluster.ClaimSet(&cluster.Claim{
			Addr: addr("192.0.2.1"), Holders: []cluster.Holder{{Name: name("claimed")}},
		}),
	}
	source := &scripted{snap}
	r := NewReader(source)
	got := r.Snapshot()
	if want := snap.Assignments.Slice()[:1]; !slices.Equal(got.Assignments.Slice(), want) {
		t.Errorf("assignments %v, want %v", got.Assignments.Slice(), want)
	}
	if want := []netip.Addr{addr("203.0.113.1")}; !slices.Equal(got.Unclaimed, want) {
		t.Errorf("unclaimed %v, want %v", got.Unclaimed, want)
	}
	var codes []string
	for _, why := range got.Refusals {
		codes = append(codes, why.Service.Name+" "+string(why.Code))
	}
	if want := []string{"foreign NotOurs", "taken NotOurs", "waiting Unassigned"}; !slices.Equal(codes, want) {
		t.Errorf("refusals %v, want %v", codes, want)
	}

	// A change of endpoints alone leaves the slices as they are.
	next, changed := *snap, snap.Services.At(0)
	changed.Endpoints = &cluster.Endpoints{}
	next.Services = snap.Services.With(changed)
	source.snapshot = &next
	if again := r.Snapshot(); !again.Assignments.Same(got.Assignments) || again.Services.At(0).Endpoints == nil {
		t.Error("assignments were copied, or the change was lost")
	}
}

// After any sequence of snapshots, a Reader says the same as one that has seen only the last.
func TestReaderEqualsANewOne(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		specs, held := make([]*cluster.Spec, 6), make([]*cluster.Claim, 4)
		source := &scripted{}
		reader := NewReader(source)
		var pools []*cluster.Pool
		for range 30 {
			changeAtRandom(r, specs, held)
			if r.IntN(5) == 0 {
				pools = somePools(r)
			}
			source.snapshot = snapshotOf(specs, held)
			source.snapshot.Pools = pools
			got, want := reader.Snapshot(), NewReader(source).Snapshot()
			if !slices.Equal(got.Assignments.Slice(), want.Assignments.Slice()) ||
				!slices.Equal(got.Refusals, want.Refusals) || !slices.Equal(got.Unclaimed, want.Unclaimed) {
				t.Fatalf("seed %d: got\n%v\n%v\n%v\nwant\n%v\n%v\n%v", seed, got.Assignments.Slice(), got.Refusals,
					got.Unclaimed, want.Assignments.Slice(), want.Refusals, want.Unclaimed)
			}
		}
	}
}

// somePools is one pool with some of the addresses, or none.
func somePools(r *rand.Rand) []*cluster.Pool {
	if r.IntN(3) == 0 {
		return nil
	}
	end := netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(4))})
	return []*cluster.Pool{{Name: "lan", Ranges: []netipx.IPRange{netipx.IPRangeFrom(netip.MustParseAddr("192.0.2.0"),
		end)}}}
}

// The claim proves ownership: an address stays assigned while another controller overwrites the
// status, for as long as the claim names the Service.
func TestReaderTrustsClaims(t *testing.T) {
	addr := netip.MustParseAddr
	name := cluster.Name{Namespace: "shop", Name: "web"}
	claim := &cluster.Claim{
		Addr: addr("192.0.2.1"), Pool: "was", Announce: cluster.AnnounceL2, Holders: []cluster.Holder{{Name: name}},
	}
	said := cluster.AddressCondition{Assigned: true, Code: cluster.Assigned, Message: "has 192.0.2.1"}
	for _, tt := range []struct {
		title string
		spec  cluster.Spec
		claim *cluster.Claim
		want  []string
	}{
		{"another address", cluster.Spec{Status: []netip.Addr{addr("203.0.113.9")}, Reported: said}, claim,
			[]string{"192.0.2.1", "StatusOverwritten 192.0.2.1"}},
		{"another one beside its own", cluster.Spec{Status: []netip.Addr{addr("192.0.2.1"), addr("203.0.113.9")},
			Reported: said}, claim, []string{"192.0.2.1", "NotOurs 203.0.113.9"}},
		{"a host name", cluster.Spec{StatusHost: "lb.example.com", Reported: said}, claim,
			[]string{"192.0.2.1", "StatusOverwritten 192.0.2.1"}},
		{"a host name, without the condition", cluster.Spec{StatusHost: "lb.example.com"}, claim,
			[]string{"192.0.2.1", "StatusOverwritten 192.0.2.1"}},
		{"emptied", cluster.Spec{Reported: said}, claim, []string{"192.0.2.1", "StatusOverwritten 192.0.2.1"}},
		{"not assigned yet", cluster.Spec{}, claim, []string{"Unassigned invalid IP"}},
		{"released", cluster.Spec{Status: []netip.Addr{addr("203.0.113.9")}, Reported: said}, nil,
			[]string{"NotOurs 203.0.113.9"}},
		{"of another Service", cluster.Spec{Status: []netip.Addr{addr("203.0.113.9")}, Reported: said},
			&cluster.Claim{Addr: addr("192.0.2.1"),
				Holders: []cluster.Holder{{Name: cluster.Name{Namespace: "shop", Name: "other"}}}},
			[]string{"NotOurs 203.0.113.9"}},
	} {
		before := cluster.Spec{Name: name, Status: []netip.Addr{addr("192.0.2.1")}, Reported: said}
		now := tt.spec
		now.Name = name
		held := []*cluster.Claim{claim}
		source := &scripted{snapshotOf([]*cluster.Spec{&before}, held)}
		reader := NewReader(source)
		reader.Snapshot()
		source.snapshot = snapshotOf([]*cluster.Spec{&now}, []*cluster.Claim{tt.claim})
		snap := reader.Snapshot()
		var got []string
		for a := range snap.Assignments.All() {
			got = append(got, a.Addr.String())
			if tt.title != "another one beside its own" &&
				snap.OriginOf(a) != (cluster.Origin{Pool: "was", Announce: cluster.AnnounceL2}) {
				t.Errorf("%s: origin %v, want that of the claim", tt.title, snap.OriginOf(a))
			}
		}
		for _, why := range snap.Refusals {
			got = append(got, fmt.Sprint(why.Code, " ", why.VIP))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.title, got, tt.want)
		}
	}
}

// changeAtRandom changes a Service, or a claim, or both.
func changeAtRandom(r *rand.Rand, specs []*cluster.Spec, held []*cluster.Claim) {
	name := func() cluster.Name { return cluster.Name{Namespace: "shop", Name: fmt.Sprint(r.IntN(len(specs)))} }
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(len(held)))}) }
	if n := r.IntN(2 * len(specs)); n < len(specs) {
		specs[n] = nil
		if r.IntN(4) > 0 {
			specs[n] = &cluster.Spec{Name: cluster.Name{Namespace: "shop", Name: fmt.Sprint(n)}}
			specs[n].Reported.Assigned = r.IntN(2) == 0
			specs[n].StatusHost = []string{"", "", "lb.example.com"}[r.IntN(3)]
			for range r.IntN(3) {
				if a := addr(); !slices.Contains(specs[n].Status, a) {
					specs[n].Status = append(specs[n].Status, a)
				}
			}
		}
	}
	if n := r.IntN(2 * len(held)); n < len(held) {
		held[n] = nil
		if r.IntN(4) > 0 {
			held[n] = &cluster.Claim{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})}
			for range r.IntN(3) {
				held[n].Holders = append(held[n].Holders, cluster.Holder{Name: name()})
			}
		}
	}
}

// snapshotOf has the Services and claims that are not nil.
func snapshotOf(specs []*cluster.Spec, held []*cluster.Claim) *cluster.Snapshot {
	snap := &cluster.Snapshot{}
	for _, s := range specs {
		if s == nil {
			continue
		}
		snap.Services = snap.Services.With(cluster.Service{Spec: s})
		for _, a := range s.Status {
			snap.Assignments = snap.Assignments.With(cluster.Assignment{Addr: a, Service: s.Name})
		}
	}
	for _, c := range held {
		if c != nil {
			snap.Claims = snap.Claims.With(c)
		}
	}
	return snap
}
