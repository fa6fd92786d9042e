package plan

import (
	"strings"
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

// A Service's annotation never changes an aggregate, which other Services' addresses depend
// on: blackhole would take all of them down. The Service's own address is decided again.
func TestAggregateWithoutServiceCommunities(t *testing.T) {
	const cl = corev1.ServiceExternalTrafficPolicyCluster
	snap := advertWorld(&cluster.Advertisement{Name: "a", Length4: 24, Length6: 128, MED: new(uint32(5))})
	blackhole := &cluster.Communities{Standard: []bgp.Community{bgp.CommunityNames["blackhole"]}}
	snap.Pools[0].ServiceCommunities = blackhole // although the pool allows it
	give(snap, "a", "192.0.2.5", cl, 80)
	give(snap, "b", "192.0.2.6", cl, 80)
	give(snap, "c", "198.51.100.1", cl, 80)
	d := NewDecider(Config{Node: "n1"})
	is := func() *Desired {
		t.Helper()
		got := d.Decide(snap)
		if text, want := routesText(got.BGP.Routes), "192.0.2.0/24 med 5; 198.51.100.0/24 med 5"; text != want {
			t.Errorf("announces %s\nwant      %s", text, want)
		}
		return got
	}
	first := is()

	next, changed := *snap, snap.Services.At(1)
	changed.Spec = new(*changed.Spec)
	changed.Communities = blackhole
	next.Services = snap.Services.With(changed)
	snap = &next
	second := is()
	for i, same := range []bool{true, false, true} {
		if (first.Addresses.At(i) == second.Addresses.At(i)) != same {
			t.Errorf("%s: decided again: %v", first.Addresses.At(i).Addr, !same)
		}
	}
	if got := second.AttributesOf(PrefixesOf(second.Addresses.At(0).Routes)); len(got) != 1 || got[0] != "med 5" {
		t.Errorf("status: %v", got)
	}
	if why := second.Why(second.Addresses.At(1).Addr, "bgp"); !strings.Contains(why,
		"its communities are not on 192.0.2.0/24, which is the route of other addresses, too") {
		t.Errorf("says %q", why)
	}
}

// Services that share an address have its route in common: it has the communities that any of
// them asks for and the pool allows, and each Service has a Reason with its own that are left out.
func TestSharedAddressCommunities(t *testing.T) {
	const cl = corev1.ServiceExternalTrafficPolicyCluster
	snap := advertWorld(&cluster.Advertisement{Name: "a", Length4: 32, Length6: 128})
	snap.Pools[0].ServiceCommunities = &cluster.Communities{Standard: []bgp.Community{64500<<16 | 1}}
	give(snap, "a", "192.0.2.5", cl, 80)
	give(snap, "b", "192.0.2.5", cl, 81)
	snap.Services.At(0).Spec.Communities = &cluster.Communities{Standard: []bgp.Community{64500<<16 | 1}}
	snap.Services.At(1).Spec.Communities = &cluster.Communities{
		Standard: []bgp.Community{bgp.CommunityNames["no-advertise"]}}
	d := Decide(Config{Node: "n1"}, snap)
	if text, want := routesText(d.BGP.Routes), "192.0.2.5/32 community 64500:1"; text != want {
		t.Errorf("announces %s, want %s", text, want)
	}
	var refused []string
	for _, r := range d.Reasons() {
		if r.Code == cluster.AnnotationRefused {
			refused = append(refused, r.Service.Name)
		}
	}
	if len(refused) != 1 || refused[0] != "b" {
		t.Errorf("refused for %v, want for b", refused)
	}
}
