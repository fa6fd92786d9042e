package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// Whatever nodes, pods, routers and ServiceCIDRs have, one within the other or not: an
// address is occupied if one of them has it, by one that does, and pools know of
// their own addresses only.
func TestOccupied(t *testing.T) {
	occupied := 0
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		cidr := func() string {
			bits := 26 + rnd.IntN(7)
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(rnd.IntN(256))}), bits).Masked().String()
		}
		objects := []runtime.Object{clustertest.Pool("a", "192.0.2.8-192.0.2.70", "192.0.2.100/30"),
			clustertest.Pool("b", "192.0.2.128/26")}
		owners := map[string]netip.Prefix{}
		for i := range rnd.IntN(5) {
			name, c := fmt.Sprint("n", i), cidr()
			node := clustertest.Node(name)
			node.Spec.PodCIDRs = []string{c}
			objects = append(objects, node)
			owners["the pods of Node "+name] = netip.MustParsePrefix(c)
		}
		for i := range rnd.IntN(3) {
			name, c := fmt.Sprint("s", i), cidr()
			objects = append(objects, clustertest.ServiceCIDR(name, c))
			owners["ServiceCIDR "+name] = netip.MustParsePrefix(c)
		}
		for i := range rnd.IntN(3) {
			name, a := fmt.Sprint("r", i), netip.AddrFrom4([4]byte{192, 0, 2, byte(rnd.IntN(256))})
			objects = append(objects, clustertest.Peer(name, a.String()))
			owners["BGPPeer "+name] = netip.PrefixFrom(a, 32)
		}
		rnd.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		for _, p := range Parse(objects...).Pools {
			if !slices.IsSortedFunc(p.Occupied, func(x, y Occupied) int {
				return x.Range.From().Compare(y.Range.To())
			}) {
				t.Fatalf("seed %d: %v overlap or are not sorted", seed, p.Occupied)
			}
			for i := range 256 {
				a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
				by, want := p.OccupiedBy(a), false
				for _, c := range owners {
					want = want || p.Contains(a) && c.Contains(a)
				}
				if (by != "") != want || want && !owners[by].Contains(a) {
					t.Fatalf("seed %d: %s of pool %s is %q's: %v", seed, a, p.Name, by, owners)
				}
				if want {
					occupied++
				}
			}
		}
	}
	if occupied < 1000 {
		t.Errorf("%d addresses were occupied: too few to show anything", occupied)
	}
}
