package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A community has the same name in output as in objects.
func TestCommunityNames(t *testing.T) {
	for name, c := range bgp.CommunityNames {
		if got := c.String(); got != name {
			t.Errorf("%s is shown as %s", name, got)
		}
	}
}

// The attributes of an aggregate depend on several addresses: a Service that adds a community
// changes that route, but not the decisions for other Services' addresses.
func TestAggregateAttributes(t *testing.T) {
	const cl = corev1.ServiceExternalTrafficPolicyCluster
	snap := advertWorld(&cluster.Advertisement{Name: "a", Length4: 24, Length6: 128, MED: new(uint32(5))})
	give(snap, "a", "192.0.2.5", cl, 80)
	give(snap, "b", "192.0.2.6", cl, 80)
	give(snap, "c", "198.51.100.1", cl, 80)
	d := NewDecider(Config{Node: "n1"})
	is := func(want string) *Desired {
		t.Helper()
		got := d.Decide(snap)
		if text := routesText(got.BGP.Routes); text != want {
			t.Errorf("announces %s\nwant      %s", text, want)
		}
		return got
	}
	first := is("192.0.2.0/24 med 5; 198.51.100.0/24 med 5")

	next, spec := *snap, *snap.Services[1].Spec
	spec.Communities = &cluster.Communities{Standard: []bgp.Community{64500<<16 | 1}}
	next.Services = append([]cluster.Service{}, snap.Services...)
	next.Services[1].Spec = &spec
	snap = &next
	second := is("192.0.2.0/24 med 5 community 64500:1; 198.51.100.0/24 med 5")
	for i, same := range []bool{true, false, true} {
		if (first.Addresses[i] == second.Addresses[i]) != same {
			t.Errorf("%s: decided again: %v", first.Addresses[i].Addr, !same)
		}
	}
	if got := second.AttributesOf(PrefixesOf(second.Addresses[0].Routes)); len(got) != 1 || got[0] != "med 5 community 64500:1" {
		t.Errorf("status: %v", got)
	}
}
