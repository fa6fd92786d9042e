package speaker

import (
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

// benchServices is the number of Services; to 60,000.
var benchServices = flag.Int("services", 10_000, "number of Services in benchmarks")

// BenchmarkPass measures the time from a Snapshot to the kernel, among 10,000 Services with
// two endpoints each: a change of one endpoint, and a full load into an empty table.
func BenchmarkPass(b *testing.B) {
	b.Run("one endpoint", func(b *testing.B) {
		p, decider := benchPass(b)
		snap := benchSnapshot()
		benchRun(b, p, decider, snap)
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			snap = changed(snap, i)
			benchRun(b, p, decider, snap)
		}
	})
	// An event that changes nothing here.
	b.Run("nothing", func(b *testing.B) {
		p, decider := benchPass(b)
		snap := benchSnapshot()
		benchRun(b, p, decider, snap)
		defer reportCPU(b)()
		for b.Loop() {
			benchRun(b, p, decider, snap)
		}
	})
	b.Run("one Service", func(b *testing.B) {
		p, decider := benchPass(b)
		snap := benchSnapshot()
		benchRun(b, p, decider, snap)
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			benchRun(b, p, decider, without(snap, i))
		}
	})
	// The same with a session, whose router never responds: all routes change hands inside of this
	// process.
	b.Run("one Service, routes", func(b *testing.B) {
		p, decider := benchPass(b)
		snap := benchSnapshot()
		peer := *snap.Peers[0]
		peer.NodeSelector, peer.PeerAddress, peer.PeerPort, peer.ConnectTime = cluster.Selector{},
			netip.MustParseAddr("127.0.0.2"), 9, time.Hour
		snap.Peers = []*cluster.Peer{&peer}
		benchRun(b, p, decider, snap)
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			benchRun(b, p, decider, without(snap, i))
		}
	})
	b.Run("full load", func(b *testing.B) {
		snap := benchSnapshot()
		for b.Loop() {
			b.StopTimer()
			p, decider := benchPass(b)
			b.StartTimer()
			benchRun(b, p, decider, snap)
			b.StopTimer()
			if err := proxy.Cleanup(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

// BenchmarkDecide measures the decision alone.
func BenchmarkDecide(b *testing.B) {
	c := plan.Config{Node: "n1"}
	b.Run("one endpoint", func(b *testing.B) {
		decider, snap := plan.NewDecider(c), benchSnapshot()
		decider.Decide(snap)
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			snap = changed(snap, i)
			decider.Decide(snap)
		}
	})
	b.Run("one Service", func(b *testing.B) {
		decider, snap := plan.NewDecider(c), benchSnapshot()
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			decider.Decide(without(snap, i))
		}
	})
	// A node dies and returns, on which 100 of the Services have endpoints.
	b.Run("a member", func(b *testing.B) {
		decider, snap := plan.NewDecider(c), benchSnapshot()
		for i := range 100 {
			changed := snap.Services.At(100 * i)
			changed.Endpoints = benchEndpoints(100*i, 0)
			changed.Endpoints.Subsets[0].List[1].Node = "n3"
			snap.Services = snap.Services.With(changed)
		}
		decider.Decide(snap)
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			decider.Config.Members = benchMembers(5, i%2 == 0)
			decider.Decide(snap)
		}
	})
	// The same over Layer 2, among 100 nodes that all can answer.
	b.Run("a member, Layer 2", func(b *testing.B) {
		decider, snap := plan.NewDecider(c), benchSnapshot()
		pool := *snap.Pools[0]
		pool.Announce = cluster.AnnounceL2
		snap.Pools, snap.L2Ready = []*cluster.Pool{&pool}, true
		for i := 2; i <= 100; i++ {
			snap.Nodes = append(snap.Nodes, &cluster.Node{Name: fmt.Sprintf("n%d", i)})
		}
		slices.SortFunc(snap.Nodes, func(a, b *cluster.Node) int { return strings.Compare(a.Name, b.Name) })
		decider.Decide(snap)
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			decider.Config.Members = benchMembers(100, i%2 == 0)
			decider.Decide(snap)
		}
	})
	b.Run("this node is drained", func(b *testing.B) {
		decider, snap := plan.NewDecider(c), benchSnapshot()
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			next, node := *snap, *snap.Nodes[0]
			if i%2 == 0 {
				node.Leaving = "drain"
			}
			next.Nodes = []*cluster.Node{&node}
			decider.Decide(&next)
		}
	})
	b.Run("everything", func(b *testing.B) {
		snap := benchSnapshot()
		defer reportCPU(b)()
		for b.Loop() {
			plan.Decide(c, snap)
		}
	})
}

// benchMembers are so many members, of which n3 is dead or not.
func benchMembers(nodes int, dead bool) *membership.Members {
	m := &membership.Members{}
	for i := 1; i <= nodes; i++ {
		name := fmt.Sprintf("n%d", i)
		m.Nodes = append(m.Nodes, membership.Member{Node: name, Alive: name != "n3" || !dead,
			Interfaces: []cluster.Interface{{Name: "eth0",
				Prefixes: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}}}})
	}
	slices.SortFunc(m.Nodes, func(a, b membership.Member) int { return strings.Compare(a.Node, b.Node) })
	return m
}

// reportCPU reports the CPU time of the process for each operation, with the garbage collector: beside other
// work, it says more than the elapsed time.
func reportCPU(b *testing.B) func() {
	before := processTime(b)
	return func() { b.ReportMetric(float64(processTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op") }
}

// processTime is the CPU time of the process so far.
func processTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchPass(b *testing.B) (*pass, *plan.Decider) {
	b.Helper()
	nstest.Isolate(b)
	log := slog.New(slog.DiscardHandler)
	forwarder, err := proxy.New(b.Context(), proxy.Options{Logger: log})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { forwarder.Close() })
	return newPass(forwarder, log, newBGPPath(&bgpAnnouncer{server: bgp.New(bgp.Options{Logger: log})}, testLinger)),
		plan.NewDecider(plan.Config{Node: "n1"})
}

func benchRun(b *testing.B, p *pass, decider *plan.Decider, snap *cluster.Snapshot) {
	if err := p.run(b.Context(), decider.Decide(snap)); err != nil {
		b.Fatal(err)
	}
}

func benchSnapshot() *cluster.Snapshot {
	snap := &cluster.Snapshot{
		Nodes: []*cluster.Node{{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
		Pools: []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceBGP,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("198.18.0.0-198.19.255.255")}}},
		Peers: []*cluster.Peer{{Session: bgp.Session{Name: "elsewhere", PeerASN: 65000}, MyASN: 65001,
			NodeSelector: cluster.Nothing()}},
	}
	addr := netip.MustParseAddr("198.18.0.0")
	var assigned []cluster.Assignment
	for i := range *benchServices {
		spec := &cluster.Spec{
			Name:                  cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%05d", i)},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			Ports:                 []cluster.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		}
		snap.Services = snap.Services.With(cluster.Service{Spec: spec, Endpoints: benchEndpoints(i, 0)})
		assigned = append(assigned, cluster.Assignment{Addr: addr, Service: spec.Name, Pool: "lan"})
		addr = addr.Next()
	}
	snap.Assignments = cluster.AssignmentSet(assigned...)
	return snap
}

func benchEndpoints(service, generation int) *cluster.Endpoints {
	var list []cluster.Endpoint
	for pod, node := range []string{"n1", "n2"} {
		ip := netip.AddrFrom4([4]byte{10, byte(pod*2 + generation%2), byte(service >> 8), byte(service)})
		list = append(list, cluster.Endpoint{Node: node, Addr: ip, Ready: true, Serving: true})
	}
	list[0].Addr = netip.AddrFrom4([4]byte{10, 1, byte(service >> 8), byte(service)})
	return plantest.Endpoints("http", 8080, list...)
}

// changed returns snap with another endpoint behind one Service.
func changed(snap *cluster.Snapshot, i int) *cluster.Snapshot {
	next := *snap
	n := i * 7919 % (*benchServices)
	service := snap.Services.At(n)
	service.Endpoints = benchEndpoints(n, 1+i/(*benchServices))
	next.Services = snap.Services.With(service)
	return &next
}

// without returns snap without one Service, and with the previously missing one.
func without(snap *cluster.Snapshot, i int) *cluster.Snapshot {
	next := *snap
	n := i * 7919 % (*benchServices)
	of := snap.Services.At(n).Name
	next.Services = snap.Services.Without(of)
	for a := range snap.Assignments.All() {
		if a.Service == of {
			next.Assignments = snap.Assignments.Without(a)
			break
		}
	}
	return &next
}
