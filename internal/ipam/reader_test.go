package ipam

import (
	"net/netip"
	"slices"
	"testing"

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
		Services: []cluster.Service{
			{Spec: &cluster.Spec{Name: name("claimed")}}, {Spec: &cluster.Spec{Name: name("foreign")}},
			{Spec: &cluster.Spec{Name: name("taken")}}, {Spec: &cluster.Spec{Name: name("waiting")}},
		},
		Assignments: []cluster.Assignment{
			{Addr: addr("192.0.2.1"), Service: name("claimed")}, {Addr: addr("192.0.2.1"), Service: name("taken")},
			{Addr: addr("203.0.113.1"), Service: name("foreign")},
		},
		Claims: []*cluster.Claim{{Addr: addr("192.0.2.1"), Holders: []cluster.Holder{{Name: name("claimed")}}}},
	}
	source := &scripted{snap}
	r := NewReader(source)
	got := r.Snapshot()
	if want := snap.Assignments[:1]; !slices.Equal(got.Assignments, want) {
		t.Errorf("assignments %v, want %v", got.Assignments, want)
	}
	var codes []string
	for _, why := range got.Refusals {
		codes = append(codes, why.Service.Name+" "+string(why.Code))
	}
	if want := []string{"foreign NotOurs", "taken NotOurs", "waiting Unassigned"}; !slices.Equal(codes, want) {
		t.Errorf("refusals %v, want %v", codes, want)
	}

	// A change of endpoints alone leaves the slices as they are.
	next := *snap
	next.Services = slices.Clone(snap.Services)
	next.Services[0].Endpoints = &cluster.Endpoints{}
	source.snapshot = &next
	if again := r.Snapshot(); &again.Assignments[0] != &got.Assignments[0] || again.Services[0].Endpoints == nil {
		t.Error("assignments were copied, or the change was lost")
	}
}
