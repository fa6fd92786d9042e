package plantest

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// Snapshot reads YAML as a speaker with --files does. With AddressClaims it allocates no
// addresses, like a speaker beside a controller.
func Snapshot(t *testing.T, yaml []byte) *cluster.Snapshot {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cluster.yaml"), yaml, 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := watch.OpenFiles(t.Context(), dir, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if files.Snapshot().Claims.Len() != 0 {
		return ipam.NewReader(files).Snapshot()
	}
	return ipam.NewSource(files, nil).Snapshot()
}

// HugeService is a snapshot with a Service of so many endpoints, and a small one.
func HugeService(t *testing.T, endpoints int) *cluster.Snapshot {
	t.Helper()
	snap := *Snapshot(t, []byte(TwoRouters+LocalService("huge", "uid-huge", "192.0.2.1", "n1")+
		LocalService("web", "uid-web", "192.0.2.2", "n1")))
	huge := snap.Services.At(0)
	like := huge.Endpoints.Subsets[0].List[0]
	var list []cluster.Endpoint
	for i := range endpoints {
		like.Addr = netip.AddrFrom4([4]byte{10, 1 + byte(i>>16), byte(i >> 8), byte(i)})
		list = append(list, like)
	}
	huge.Endpoints = &cluster.Endpoints{Subsets: []cluster.Subset{{Ports: huge.Endpoints.Subsets[0].Ports, List: list}}}
	snap.Services = snap.Services.With(huge)
	return &snap
}

// Endpoints are endpoints that serve one port, TCP, by this number.
func Endpoints(port string, number uint16, list ...cluster.Endpoint) *cluster.Endpoints {
	return &cluster.Endpoints{Subsets: []cluster.Subset{
		{Ports: []cluster.Port{{Name: port, Protocol: corev1.ProtocolTCP, Port: number}}, List: list}}}
}

// Members are the members n1, n2, …, with a letter for each: a is alive, d dead, x dead and
// absent from the API server, l has left.
func Members(states string) *membership.Members {
	m := &membership.Members{}
	for i, s := range states {
		m.Nodes = append(m.Nodes, membership.Member{
			Node: fmt.Sprintf("n%d", i+1), Alive: s == 'a', Absent: s == 'x', Left: s == 'l',
			Since: time.Date(2026, 5, 4, 3, 2, i, 0, time.UTC),
		})
	}
	return m
}

// Seeds is how many random worlds a test makes.
func Seeds(t *testing.T) uint64 {
	if testing.Short() {
		return 300
	}
	return 2000
}
