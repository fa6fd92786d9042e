package speaker

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/nstest"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// A benchNode is a speaker with the parts of a real one: nftables in a namespace, and a session
// with FRR on loopback. The benchmark makes the passes, to measure each.
type benchNode struct {
	*speaker
	b       *testing.B
	source  *benchSource
	all     *cluster.Snapshot // with every Service
	members *membership.Members
	passes  []time.Duration
}

// A benchSource has the snapshot of the last change.
type benchSource struct {
	snap atomic.Pointer[cluster.Snapshot]
}

func (s *benchSource) Snapshot() *cluster.Snapshot { return s.snap.Load() }
func (*benchSource) Changed() <-chan struct{}      { return nil }

// BenchmarkChange measures every pass that a change causes.
func BenchmarkChange(b *testing.B) {
	for _, c := range benchChanges {
		b.Run(c.name, func(b *testing.B) {
			n := newBenchNode(b)
			n.settle()
			n.passes = nil
			for i := 0; b.Loop(); i++ {
				next := *n.source.Snapshot()
				c.change(n, &next, i)
				n.source.snap.Store(&next)
				n.settle()
			}
			n.report()
		})
	}
}

type benchChange struct {
	name   string
	change func(n *benchNode, next *cluster.Snapshot, i int)
}

var benchChanges = []benchChange{
	{"nothing", func(*benchNode, *cluster.Snapshot, int) {}},
	{"one endpoint", func(_ *benchNode, next *cluster.Snapshot, i int) { *next = *changed(next, i) }},
	{"one Service", func(n *benchNode, next *cluster.Snapshot, i int) {
		if i%2 == 0 {
			*next = *without(n.all, i)
		} else {
			next.Services, next.Assignments = n.all.Services, n.all.Assignments
		}
	}},
	{"a member", func(n *benchNode, _ *cluster.Snapshot, i int) { n.members = benchMembers(5, i%2 == 0) }},
	{"a router's timer", func(_ *benchNode, next *cluster.Snapshot, i int) {
		changePeer(next, func(p *cluster.Peer) { p.HoldTime = time.Duration(30+i%2) * time.Second })
	}},
	{"a router's weights", func(_ *benchNode, next *cluster.Snapshot, i int) {
		changePeer(next, func(p *cluster.Peer) { p.Weights = i%2 == 0 })
	}},
	{"an advertisement", func(_ *benchNode, next *cluster.Snapshot, i int) {
		a := *next.Advertisements[0]
		a.MED = new(uint32(i % 2))
		next.Advertisements = []*cluster.Advertisement{&a}
	}},
	{"drained", func(_ *benchNode, next *cluster.Snapshot, i int) {
		self := *next.Nodes[0]
		if self.Leaving = ""; i%2 == 0 {
			self.Leaving = "drain"
		}
		next.Nodes = slices.Concat([]*cluster.Node{&self}, next.Nodes[1:])
	}},
	{"a pool", func(_ *benchNode, next *cluster.Snapshot, i int) {
		pool := *next.Pools[0]
		pool.AllowL2Node = i%2 == 0
		next.Pools = []*cluster.Pool{&pool}
	}},
}

func changePeer(next *cluster.Snapshot, change func(*cluster.Peer)) {
	p := *next.Peers[0]
	change(&p)
	next.Peers = []*cluster.Peer{&p}
}

// benchWorld is benchSnapshot with a router, an advertisement, and the policy Local for every
// second Service.
func benchWorld() *cluster.Snapshot {
	snap := benchSnapshot()
	p := *snap.Peers[0]
	p.NodeSelector, p.PeerAddress, p.PeerPort, p.EBGPMultihopTTL = cluster.Selector{}, benchRouter, benchRouterPort, 2
	snap.Peers = []*cluster.Peer{&p}
	pool := *snap.Pools[0]
	pool.Announce = cluster.AnnounceAdvertised
	snap.Pools = []*cluster.Pool{&pool}
	snap.Advertisements = []*cluster.Advertisement{{Name: "lan", Length4: 32, Length6: 128}}
	for i := range snap.Services {
		if i%2 == 0 {
			snap.Services[i].Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		if i%4 < 2 { // n3 has half of the other pods
			snap.Services[i].Endpoints.List[1].Node = "n3"
		}
	}
	return snap
}

func newBenchNode(b *testing.B) *benchNode {
	b.Helper()
	startRouter(b)
	nstest.Isolate(b)
	n := &benchNode{b: b, source: &benchSource{}, all: benchWorld(), members: benchMembers(5, false)}
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
	began := time.Now()
	snap := n.source.Snapshot()
	n.updateConfig(snap, began)
	n.decider.Config.Members = n.members
	d, err := n.apply(n.b.Context(), n.decide(snap, began), began)
	if err != nil {
		n.b.Log(err)
	}
	n.publish(d, err)
	n.passes = append(n.passes, time.Since(began))
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

func (n *benchNode) settled() bool {
	for _, s := range n.bgp.Status().Sessions {
		if s.State != bgp.Established || s.Advertised != len(n.speaker.pass.last.Prefixes) {
			return false
		}
	}
	return len(n.bgpPath.lingering) == 0
}

func (n *benchNode) report() {
	slices.Sort(n.passes)
	at := func(q float64) float64 {
		return float64(n.passes[int(q*float64(len(n.passes)-1))].Microseconds()) / 1e3
	}
	n.b.ReportMetric(at(0.5), "p50-ms")
	n.b.ReportMetric(at(0.99), "p99-ms")
	n.b.ReportMetric(at(1), "max-ms")
	n.b.ReportMetric(float64(len(n.passes))/float64(n.b.N), "passes/op")
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
	text := "router bgp 65000\n bgp router-id 127.0.0.2\n no bgp ebgp-requires-policy\n bgp allow-martian-nexthop\n neighbor 127.0.0.1 remote-as 65001\n neighbor 127.0.0.1 passive\n neighbor 127.0.0.1 ebgp-multihop 2\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(bgpd, "-Z", "-S", "-n", "-l", benchRouter.String(), "-p", fmt.Sprint(benchRouterPort), "-P", "0", "-f", conf, "-i", filepath.Join(dir, "pid"), "--vty_socket", dir, "--log", "file:"+filepath.Join(dir, "log"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}
