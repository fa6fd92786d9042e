package speaker

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
)

// A benchNode is a speaker with the parts of a real one: nftables in a namespace with 100,000
// conntrack entries, a session with FRR on loopback, and a link. The benchmark makes the passes, to
// measure each.
type benchNode struct {
	*speaker
	b       *testing.B
	source  *benchSource
	all     *cluster.Snapshot // with every Service
	members *membership.Members
	passes  []passTime
}

// A passTime is what a pass took. Other work on the machine lengthens elapsed, and cpu much less. cpu
// has no waiting for other threads, such as those of GoBGP.
type passTime struct{ elapsed, cpu time.Duration }

const benchFlows = 100_000

// A benchSource has the snapshot of the last change.
type benchSource struct {
	snap atomic.Pointer[cluster.Snapshot]
}

func (s *benchSource) Snapshot() *cluster.Snapshot { return s.snap.Load() }
func (*benchSource) Changed() <-chan struct{}      { return nil }

// BenchmarkChange measures every pass that a change causes. It fails if passes take more than a part
// of the first one, which loads everything: of the CPU time any of them, of the elapsed time half of
// them. Where the first one takes 640 ms, bulkPart is 250 ms, and a change in singleParts 1 ms.
func BenchmarkChange(b *testing.B) {
	for _, c := range benchChanges {
		b.Run(c.name, func(b *testing.B) {
			runtime.LockOSThread() // for threadTime
			defer runtime.UnlockOSThread()
			if os.Getenv("GOGC") == "" {
				defer debug.SetGCPercent(debug.SetGCPercent(50)) // as fanfare speaker
			}
			n := newBenchNode(b, c.announce)
			n.settle()
			first := n.passes[0]
			n.passes = nil
			for i := 0; b.Loop(); i++ {
				next := *n.source.Snapshot()
				c.change(n, &next, i)
				n.source.snap.Store(&next)
				n.settle()
			}
			n.report(first, cmp.Or(singleParts[c.name], bulkPart))
		})
	}
}

const bulkPart = 1 / 2.56

// singleParts are of changes that concern one address.
var singleParts = map[string]float64{"nothing": 1. / 640, "one endpoint": 1. / 640}

// BenchmarkChangeWhileLingering measures a change of one endpoint while all addresses linger, as for seconds after a
// drain.
func BenchmarkChangeWhileLingering(b *testing.B) {
	n := newBenchNode(b, cluster.AnnounceAdvertised)
	n.settle()
	n.bgpPath.linger = time.Hour
	drain := slices.IndexFunc(benchChanges, func(c benchChange) bool { return c.name == "drained" })
	next := *n.source.Snapshot()
	benchChanges[drain].change(n, &next, 0)
	n.source.snap.Store(&next)
	for len(n.bgpPath.lingering) < *benchServices {
		if err := n.pass(); err != nil {
			b.Fatal(err)
		}
		select {
		case <-n.bgp.Changed():
		case <-time.After(withdrawDelay): // as when a graceful shutdown ends
		}
	}
	runtime.GC()
	n.passes = nil
	for i := 0; b.Loop(); i++ {
		n.source.snap.Store(changed(n.source.Snapshot(), i))
		if err := n.pass(); err != nil {
			b.Fatal(err)
		}
	}
}

type benchChange struct {
	name     string
	announce cluster.Announce
	change   func(n *benchNode, next *cluster.Snapshot, i int)
}

var benchChanges = []benchChange{
	{"nothing", cluster.AnnounceAdvertised, func(*benchNode, *cluster.Snapshot, int) {}},
	{"one endpoint", cluster.AnnounceAdvertised,
		func(_ *benchNode, next *cluster.Snapshot, i int) { *next = *changed(next, i) }},
	{"one Service", cluster.AnnounceAdvertised, func(n *benchNode, next *cluster.Snapshot, i int) {
		if i%2 == 0 {
			*next = *without(n.all, i)
		} else {
			next.Services, next.Assignments = n.all.Services, n.all.Assignments
		}
	}},
	{"endpoints of a node drain", cluster.AnnounceAdvertised,
		func(_ *benchNode, next *cluster.Snapshot, i int) { drainEndpoints(next, "n3", i%2 == 0) }},
	{"a member, Layer 2", cluster.AnnounceL2,
		func(n *benchNode, _ *cluster.Snapshot, i int) { n.members = benchMembers(5, i%2 == 0) }},
	{"a member", cluster.AnnounceAdvertised,
		func(n *benchNode, _ *cluster.Snapshot, i int) { n.members = benchMembers(5, i%2 == 0) }},
	{"a router's timer", cluster.AnnounceAdvertised, func(_ *benchNode, next *cluster.Snapshot, i int) {
		changePeer(next, func(p *cluster.Peer) { p.HoldTime = time.Duration(30+i%2) * time.Second })
	}},
	{"a router's weights", cluster.AnnounceAdvertised, func(_ *benchNode, next *cluster.Snapshot, i int) {
		changePeer(next, func(p *cluster.Peer) { p.Weights = i%2 == 0 })
	}},
	{"an advertisement", cluster.AnnounceAdvertised, func(_ *benchNode, next *cluster.Snapshot, i int) {
		a := *next.Advertisements[0]
		a.MED = new(uint32(i % 2))
		next.Advertisements = []*cluster.Advertisement{&a}
	}},
	{"drained", cluster.AnnounceAdvertised, func(_ *benchNode, next *cluster.Snapshot, i int) {
		self := *next.Nodes[0]
		if self.Leaving = ""; i%2 == 0 {
			self.Leaving = "drain"
		}
		next.Nodes = slices.Concat([]*cluster.Node{&self}, next.Nodes[1:])
	}},
	{"a pool", cluster.AnnounceAdvertised, func(_ *benchNode, next *cluster.Snapshot, i int) {
		pool := *next.Pools[0]
		pool.AllowL2Node = i%2 == 0
		next.Pools = []*cluster.Pool{&pool}
	}},
}

// drainEndpoints has all endpoints on a node terminate, or not.
func drainEndpoints(next *cluster.Snapshot, node string, leaving bool) {
	var changed []cluster.Service
	for s := range next.Services.All() {
		list := s.Endpoints.Subsets[0].List
		at := slices.IndexFunc(list, func(e cluster.Endpoint) bool { return e.Node == node })
		if at < 0 {
			continue
		}
		list = slices.Clone(list)
		list[at].Ready, list[at].Terminating = !leaving, leaving
		s.Endpoints = plantest.Endpoints("http", 8080, list...)
		changed = append(changed, s)
	}
	next.Services = next.Services.With(changed...)
}

func changePeer(next *cluster.Snapshot, change func(*cluster.Peer)) {
	p := *next.Peers[0]
	change(&p)
	next.Peers = []*cluster.Peer{&p}
}

// benchWorld is benchSnapshot with five nodes, a router, an advertisement, and the policy Local for
// every second Service.
func benchWorld(announce cluster.Announce) *cluster.Snapshot {
	snap := benchSnapshot()
	snap.L2Ready = true
	for _, name := range []string{"n2", "n3", "n4", "n5"} {
		snap.Nodes = append(snap.Nodes, &cluster.Node{Name: name})
	}
	p := *snap.Peers[0]
	p.NodeSelector, p.PeerAddress, p.PeerPort, p.EBGPMultihopTTL = cluster.Selector{}, benchRouter, benchRouterPort, 2
	snap.Peers = []*cluster.Peer{&p}
	pool := *snap.Pools[0]
	pool.Announce = announce
	snap.Pools = []*cluster.Pool{&pool}
	snap.Advertisements = []*cluster.Advertisement{{Name: "lan", Length4: 32, Length6: 128}}
	for i := range snap.Services.Len() {
		if i%2 == 0 {
			snap.Services.At(i).Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		if i%4 < 2 { // n3 has half of the other pods
			snap.Services.At(i).Endpoints.Subsets[0].List[1].Node = "n3"
		}
	}
	return snap
}

func newBenchNode(b *testing.B, announce cluster.Announce) *benchNode {
	b.Helper()
	startRouter(b)
	nstest.Isolate(b)
	addBenchLink(b)
	proxytest.FillConntrack(b, 0, benchFlows)
	n := &benchNode{b: b, source: &benchSource{}, all: benchWorld(announce), members: benchMembers(5, false)}
	n.source.snap.Store(n.all)
	o := Options{
		Config: plan.Config{Node: "n1"}, RunDir: b.TempDir(), Linger: time.Second, LingerL2: time.Second,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Registry: prometheus.NewRegistry(),
	}
	s, err := start(b.Context(), o, n.source, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = s.bgp.Close(b.Context(), bgp.Withdraw)
		s.proxy.Close()
		s.health.Close()
	})
	n.speaker = s
	return n
}

// pass is runPass with the benchmark's members.
func (n *benchNode) pass() error {
	began, used := time.Now(), threadTime(n.b)
	snap := n.source.Snapshot()
	n.updateConfig(snap, began)
	n.decider.Config.Members = n.members
	d, err := n.apply(n.b.Context(), n.decide(snap, began), began)
	if err != nil {
		n.b.Log(err)
	}
	n.publish(d, err)
	n.passes = append(n.passes, passTime{time.Since(began), threadTime(n.b) - used})
	return err
}

// settle makes passes as the loop does, until none is due.
func (n *benchNode) settle() {
	for {
		began := time.Now()
		due := n.nextPass(began, n.pass())
		quiet := 200 * time.Millisecond
		if until := time.Until(due); until < 2*time.Second {
			quiet = max(until, 0) + time.Millisecond
		}
		select {
		case <-n.bgp.Changed():
		case <-n.proxy.Changed():
		case <-time.After(quiet):
			if time.Until(due) > 0 && n.settled() {
				return
			}
		}
	}
}

// threadTime is the CPU time of this thread so far, to the nanosecond: that of getrusage is of the
// last tick of the kernel's clock, up to 4 ms ago.
func threadTime(b *testing.B) time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Nano())
}

func (n *benchNode) settled() bool {
	for _, s := range n.bgp.Status().Sessions {
		if s.State != bgp.Established || s.Advertised != n.speaker.pass.last.Prefixes.Len() {
			return false
		}
	}
	return len(n.bgpPath.lingering) == 0
}

func (n *benchNode) report(first passTime, part float64) {
	elapsed, cpu := make([]time.Duration, len(n.passes)), make([]time.Duration, len(n.passes))
	for i, p := range n.passes {
		elapsed[i], cpu[i] = p.elapsed, p.cpu
	}
	at := func(times []time.Duration, q float64, unit string) time.Duration {
		slices.Sort(times)
		t := times[int(q*float64(len(times)-1))]
		n.b.ReportMetric(float64(t.Microseconds())/1e3, unit)
		return t
	}
	half, most := at(elapsed, 0.5, "p50-ms"), at(cpu, 1, "max-cpu-ms")
	at(elapsed, 0.9, "p90-ms")
	at(elapsed, 1, "max-ms")
	at(cpu, 0.99, "p99-cpu-ms")
	n.b.ReportMetric(float64(len(n.passes))/float64(n.b.N), "passes/op")
	n.b.ReportMetric(float64(first.cpu)/float64(most), "first/max")
	of := func(all time.Duration) time.Duration { return time.Duration(part * float64(all)) }
	if most > of(first.cpu) || half > of(first.elapsed) {
		n.b.Errorf("passes take up to %s of CPU time, and half of them up to %s; want 1/%.3g of the first one, "+
			"which took %s and %s",
			most, half, 1/part, first.cpu, first.elapsed)
	}
}

var benchRouter = netip.MustParseAddr("127.0.0.2")

const benchRouterPort = 1790

// startRouter runs FRR's bgpd on loopback, until the benchmark ends.
func startRouter(b *testing.B) {
	b.Helper()
	const bgpd = "/usr/lib/frr/bgpd"
	if _, err := os.Stat(bgpd); err != nil {
		nstest.Missing(b, fmt.Sprintf("FRR is not installed: %v", err))
	}
	dir := b.TempDir()
	conf := filepath.Join(dir, "bgpd.conf")
	text := "router bgp 65000\n bgp router-id 127.0.0.2\n no bgp ebgp-requires-policy\n bgp allow-martian-nexthop\n " +
		"neighbor 127.0.0.1 remote-as 65001\n neighbor 127.0.0.1 passive\n neighbor 127.0.0.1 ebgp-multihop 2\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(bgpd, "-Z", "-S", "-n", "-l", benchRouter.String(), "-p", fmt.Sprint(benchRouterPort), "-P",
		"0", "-f", conf, "-i", filepath.Join(dir, "pid"), "--vty_socket", dir, "--log",
		"file:"+filepath.Join(dir, "log"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// addBenchLink adds the link that addresses are announced on over Layer 2.
func addBenchLink(b *testing.B) {
	b.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
	if err := netlink.LinkAdd(link); err != nil {
		b.Fatal(err)
	}
	addr, err := netlink.ParseAddr("198.19.255.254/15")
	if err != nil {
		b.Fatal(err)
	}
	peer, err := netlink.LinkByName("peer")
	if err != nil {
		b.Fatal(err)
	}
	for _, err := range []error{netlink.AddrAdd(link, addr), netlink.LinkSetUp(link), netlink.LinkSetUp(peer)} {
		if err != nil {
			b.Fatal(err)
		}
	}
}
