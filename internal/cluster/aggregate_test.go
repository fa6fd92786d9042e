package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// An aggregate that contains an address of the cluster itself is refused, and one that is
// wider than its pools is a warning.
func TestAggregates(t *testing.T) {
	for name, tt := range map[string]struct {
		length4, length6 int32
		announce         v1alpha1.Announce
		pools            []string // ranges of the pool lan
		more             string   // a range of a pool that the advertisement does not select
		node, pods       string
		cidr, router     string
		warning          bool
		want             string
	}{
		"exact":            {length4: 24, pools: []string{"192.0.2.0/24"}},
		"smaller":          {length4: 28, pools: []string{"192.0.2.0/24"}},
		"two ranges":       {length4: 24, pools: []string{"192.0.2.0/25", "192.0.2.128-192.0.2.255"}},
		"single addresses": {length4: 32, length6: 128, pools: []string{"192.0.2.7", "2001:db8::7"}, node: "192.0.2.7"},
		"another announce": {length4: 8, announce: v1alpha1.AnnounceBGP, pools: []string{"192.0.2.0/24"},
			node: "192.0.9.1", want: `BGPAdvertisement lan: spec.pools "lan": does not apply to this AddressPool, whose spec.announce is BGP; set that to Advertised, or remove the pool here`},
		"huge pool": {length6: 120, pools: []string{"2001:db8::/64"}},

		"wide below": {length4: 24, pools: []string{"192.0.2.10-192.0.2.255"}, warning: true,
			want: `BGPAdvertisement lan: spec.aggregationLength "24": announces 192.0.2.0/24, which contains addresses of no AddressPool that the advertisement selects, the first of them 192.0.2.0; set it to a larger number, or add the addresses to a pool`},
		"wide above": {length4: 28, pools: []string{"192.0.2.0-192.0.2.30"}, warning: true,
			want: `BGPAdvertisement lan: spec.aggregationLength "28": announces 192.0.2.16/28, which contains addresses of no AddressPool that the advertisement selects, the first of them 192.0.2.31; set it to a larger number, or add the addresses to a pool`},
		"wide between": {length6: 120, pools: []string{"2001:db8::-2001:db8::f", "2001:db8::20-2001:db8::ff"},
			warning: true, want: `BGPAdvertisement lan: spec.aggregationLengthV6 "120": announces 2001:db8::/120, which contains addresses of no AddressPool that the advertisement selects, the first of them 2001:db8::10; set it to a larger number, or add the addresses to a pool`},
		"addresses of another pool": {length4: 24, pools: []string{"192.0.2.0/25"}, more: "192.0.2.128/25",
			warning: true, want: `BGPAdvertisement lan: spec.aggregationLength "24": announces 192.0.2.0/24, which contains addresses of no AddressPool that the advertisement selects, the first of them 192.0.2.128; set it to a larger number, or add the addresses to a pool`},

		"node": {length4: 24, pools: []string{"192.0.2.128/25"}, node: "192.0.2.1",
			want: `BGPAdvertisement lan: spec.aggregationLength "24": does not announce 192.0.2.0/24, which contains 192.0.2.1 of Node n1: addresses in it are announced one by one; set it to a larger number`},
		"pods": {length4: 16, pools: []string{"10.0.0.0/25"}, pods: "10.0.8.0/21",
			want: `BGPAdvertisement lan: spec.aggregationLength "16": does not announce 10.0.0.0/16, which contains 10.0.8.0-10.0.15.255 of the pods of Node n1: addresses in it are announced one by one; set it to a larger number`},
		"part of the pods": {length4: 24, pools: []string{"10.0.9.0/25"}, pods: "10.0.8.0/21",
			want: `AddressPool lan: spec.addresses "10.0.9.0-10.0.9.127": belongs to the pods of Node n1, so no Service gets any of it; leave it out of the pool` + "\n" +
				`BGPAdvertisement lan: spec.aggregationLength "24": does not announce 10.0.9.0/24, which contains 10.0.9.0-10.0.9.255 of the pods of Node n1: addresses in it are announced one by one; set it to a larger number`},
		"service CIDR": {length4: 8, pools: []string{"10.0.0.0/25"}, cidr: "10.96.0.0/16",
			want: `BGPAdvertisement lan: spec.aggregationLength "8": does not announce 10.0.0.0/8, which contains 10.96.0.0-10.96.255.255 of ServiceCIDR kubernetes: addresses in it are announced one by one; set it to a larger number`},
		"router": {length6: 64, pools: []string{"2001:db8::100/120"}, router: "2001:db8::1",
			want: `BGPAdvertisement lan: spec.aggregationLengthV6 "64": does not announce 2001:db8::/64, which contains 2001:db8::1 of BGPPeer tor: addresses in it are announced one by one; set it to a larger number`},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBuilder()
			pool := clustertest.Pool("lan", tt.pools...)
			pool.Spec.Announce = v1alpha1.AnnounceAdvertised
			if tt.announce != "" {
				pool.Spec.Announce = tt.announce
			}
			b.Set(pool, "")
			if tt.more != "" {
				b.Set(clustertest.Pool("more", tt.more), "")
			}
			a := &v1alpha1.BGPAdvertisement{
				ObjectMeta: metav1.ObjectMeta{Name: "lan"}, Spec: v1alpha1.BGPAdvertisementSpec{Pools: []string{"lan"}},
			}
			if tt.length4 != 0 {
				a.Spec.AggregationLength = &tt.length4
			}
			if tt.length6 != 0 {
				a.Spec.AggregationLengthV6 = &tt.length6
			}
			b.Set(a, "")
			b.Snapshot() // What the cluster has may come last.
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			if tt.node != "" {
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: tt.node}}
			}
			if tt.pods != "" {
				n.Spec.PodCIDRs = []string{tt.pods}
			}
			b.Set(n, "")
			if tt.cidr != "" {
				b.Set(clustertest.ServiceCIDR("kubernetes", tt.cidr), "")
			}
			if tt.router != "" {
				b.Set(clustertest.Peer("tor", tt.router), "")
			}
			s := b.Snapshot()
			want := tt.want
			if name == "single addresses" {
				want = `AddressPool lan: spec.addresses "192.0.2.7": belongs to Node n1, so no Service gets any of it; leave it out of the pool`
			}
			if got := problemText(s); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			for _, p := range s.Problems {
				if p.Warning != tt.warning {
					t.Errorf("warning %t, want %t: %s", p.Warning, tt.warning, p)
				}
			}
		})
	}
}
