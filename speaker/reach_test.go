package speaker

import (
	"fmt"
	"net/netip"
	"testing"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/l2"
)

// Of a node with many interfaces the API server is told of those that addresses can be
// answered for on, and not of each pod's.
func TestRelevantInterfaces(t *testing.T) {
	iface := func(name string, prefixes ...string) l2.Interface {
		i := l2.Interface{Name: name}
		for _, p := range prefixes {
			i.Prefixes = append(i.Prefixes, netip.MustParsePrefix(p))
		}
		return i
	}
	all := []l2.Interface{iface("cali1"), iface("eth0", "198.51.100.0/24", "192.0.2.0/24"), iface("eth1", "198.51.100.0/24"), iface("eth9")}
	snap := &cluster.Snapshot{
		Pools:            []*cluster.Pool{{Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.64-192.0.2.127")}}},
		L2Advertisements: []*cluster.L2Advertisement{{Name: "lan", Interfaces: []string{"cali*", "eth9"}}},
	}
	var got []string
	for _, i := range relevant(snap, all) {
		got = append(got, i.Name)
	}
	if want := "[eth0 eth9]"; fmt.Sprint(got) != want {
		t.Errorf("told of %v, want %s", got, want)
	}
}
