package gossip

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// The flags of TestSimulation; e2e/bench/gossip sets them for its long runs.
var (
	simulatedMembers = flag.Int("members", 50, "members of the simulated cluster")
	simulatedTime    = flag.Duration("virtual", 20*time.Second, "how long the simulated cluster runs, by its own clock")
	simulatedCPU     = flag.Duration("processor", time.Hour,
		"end the simulation before if it has used that much processor time")
	simulatedDeaths = flag.Int("deaths", 1000,
		"how many nodes lose their power, at most; afterwards, the network and the stalls disturb the cluster alone")
	simulatedSeed   = flag.Uint64("seed", 1, "seed of what is lost, stalls and dies; the order of goroutines varies")
	simulatedResult = flag.String("result", "", "write the result of the simulation to this file of JSON")
)

const (
	simulatedLoss    = 0.01
	simulatedLatency = 200 * time.Microsecond
	// simulatedStall is a pause of the garbage collector or of a container at its CPU limit.
	simulatedStall = 50 * time.Millisecond
	// stallInterval is the mean time between two stalls of a member.
	stallInterval = 10 * time.Second
	// detectionLimit is the target of docs/benchmarks/gossip.md for the time until all others
	// have detected a death; here, of the median.
	detectionLimit = 600 * time.Millisecond
	// simulatedWait is how long a death or a return may take.
	simulatedWait = 30 * time.Second
	// maxBytesAtStart is more than a ping, and less than a packet full of broadcasts.
	maxBytesAtStart = 300
	// settleTime is between the return of a node and the next death, at least.
	settleTime = 2 * time.Second
)

// A simulationResult is what TestSimulation writes.
type simulationResult struct {
	Members                       int
	Virtual                       time.Duration // the simulated time
	Seed                          uint64
	Loss                          float64
	Latency, Stall, StallInterval time.Duration
	Stalls, Lost                  int
	// First, Most and All are, of each power loss, the time until one, 99 % and all of the others
	// held the node dead; Back is from the start of its new process until all held it alive.
	First, Most, All, Back []time.Duration
	// FalseDeaths are nodes that ran and were dead for one other. FalseReports are nodes that
	// memberlist reported to one other as dead, and whose answer a probe by that one received.
	FalseDeaths, FalseReports int
	Packets, Bytes            float64       // that a member sent each second
	CPU                       time.Duration // of the process that simulated all members
}

// A simulation is a cluster with a disturbed network, of which one node after the other loses
// its power and returns.
type simulation struct {
	*testCluster
	rand   *rand.Rand
	result simulationResult
	stop   map[string]context.CancelFunc // ends watch of a node

	mu       sync.Mutex
	off      string // the node without power; empty: none
	offSince time.Time
	returned string          // the last node that was
	detected []time.Duration // by how many others, each after how long
	back     int             // how many others hold the node alive that returned
}

// A cluster whose network loses packets and whose members stall detects each death soon, and
// no member that runs is dead for any other.
func TestSimulation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := simulate(t, *simulatedMembers, *simulatedTime, *simulatedCPU, *simulatedSeed)
		if *simulatedResult != "" {
			writeResult(t, *simulatedResult, r)
			return // The page shows what is too slow, and what is false.
		}
		all := slices.Sorted(slices.Values(r.All))
		if len(all) < 3 || r.Stalls == 0 || r.Lost == 0 || r.Packets == 0 {
			t.Fatalf("%d deaths, %d stalls, %d lost packets: want some of each", len(all), r.Stalls, r.Lost)
		}
		if median := all[len(all)/2]; median > detectionLimit || r.FalseDeaths > 0 {
			t.Errorf("the median death was detected after %s, and %d were false: want %s at most, and none", median,
				r.FalseDeaths, detectionLimit)
		}
	})
}

func writeResult(t *testing.T, path string, r simulationResult) {
	text, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// simulate runs a cluster for some virtual time, or until that has taken some processor time.
func simulate(t *testing.T, members int, virtual, processor time.Duration, seed uint64) simulationResult {
	s := &simulation{
		testCluster: newTestCluster(t, members), rand: rand.New(rand.NewPCG(seed, 1)),
		stop: map[string]context.CancelFunc{},
	}
	d := newDisturbance(seed)
	s.network.disturbed = d
	s.begin()
	for _, name := range s.names() {
		s.watch(name)
	}
	began, cpu := time.Now(), cpuTime()
	d.mu.Lock()
	d.latency, d.loss, d.stall, d.count, d.maxBytes = simulatedLatency, simulatedLoss, simulatedStall, traffic{}, 0
	d.mu.Unlock()
	for _, name := range s.names() {
		go s.stallAtTimes(name, rand.New(rand.NewPCG(seed, s.rand.Uint64())))
	}
	for time.Since(began) < virtual && cpuTime()-cpu < processor {
		if len(s.result.All) < *simulatedDeaths {
			s.killOne()
		} else {
			<-time.After(settleTime)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.result
	r.Members, r.Virtual, r.Seed, r.CPU = members, time.Since(began), seed, cpuTime()-cpu
	r.Loss, r.Latency, r.Stall, r.StallInterval = simulatedLoss, simulatedLatency, simulatedStall, stallInterval
	s.count(d)
	s.Logf("%+v", *r)
	return *r
}

// begin starts all nodes and waits until each holds all alive. A start of 1,000 nodes at once
// takes minutes of processor time, which is not what is simulated: so each node knows only the
// address of the first one, until that one knows all and sends them in one exchange. What the
// nodes broadcast meanwhile is old, and packets with it are lost.
func (s *simulation) begin() {
	s.network.disturbed.maxBytes = maxBytesAtStart
	all, first := s.nodes, s.nodes[0]
	s.startAll(first.Name)
	for i, n := range all[1:] {
		s.nodes = withoutAddrs(all)
		s.nodes[0], s.nodes[i+1] = first, n
		s.startAll(n.Name)
		<-time.After(time.Millisecond) // Their tickers differ.
	}
	s.nodes = all
	s.await("the first one knows all", []string{first.Name}, sees(fmt.Sprint(len(all))))
	nodes, nodeAt := s.running[first.Name].nodes, s.running[first.Name].nodeAt.Load()
	for _, n := range all[1:] {
		g := s.running[n.Name].Gossip
		g.mu.Lock()
		g.nodes = nodes // No node changes them.
		g.nodeAt.Store(nodeAt)
		list := g.list
		g.mu.Unlock()
		if _, err := list.Join([]string{first.Addrs[0].String() + ":7874"}); err != nil {
			s.Fatal(err)
		}
	}
	s.await("all are alive", s.names(), sees(fmt.Sprint(len(all))))
	<-time.After(3 * settleTime) // Nothing old is left to broadcast.
}

// withoutAddrs returns nodes without their addresses.
func withoutAddrs(nodes []Node) (names []Node) {
	for _, n := range nodes {
		names = append(names, Node{Name: n.Name})
	}
	return names
}

// count adds what the network and the metrics have counted to the result.
func (s *simulation) count(d *disturbance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &s.result
	r.Stalls, r.Lost = d.stalls, d.lost
	each := float64(r.Members) * r.Virtual.Seconds()
	r.Packets, r.Bytes = d.count.Packets/each, d.count.Bytes/each
	for _, n := range s.running {
		r.FalseReports += int(testutil.ToFloat64(n.metrics.falsePositives))
	}
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// stallAtTimes stalls a node again and again.
func (s *simulation) stallAtTimes(name string, r *rand.Rand) {
	at := s.addr(name).String() + ":7874"
	for {
		select {
		case <-time.After(time.Duration(r.ExpFloat64() * float64(stallInterval))):
			s.network.disturbed.begin(at)
		case <-s.Context().Done():
			return
		}
	}
}

// killOne takes the power of a node until all others have detected it, starts it again, and
// waits until all hold it alive.
func (s *simulation) killOne() {
	name := s.nodes[s.rand.IntN(len(s.nodes))].Name
	s.mu.Lock()
	s.off, s.offSince, s.detected = name, time.Now(), nil
	s.result.FalseReports += int(testutil.ToFloat64(s.running[name].metrics.falsePositives))
	s.mu.Unlock()
	s.network.partition(s.addr(name), true)
	s.stop[name]()
	s.running[name].stop()
	s.until("detected the death of "+name, func() int { return len(s.detected) })
	<-time.After(settleTime)

	s.mu.Lock()
	slices.Sort(s.detected)
	others := len(s.detected)
	r := &s.result
	r.First, r.Most, r.All = append(r.First, s.detected[0]), append(r.Most, s.detected[(others*99+99)/100-1]),
		append(r.All, s.detected[others-1])
	s.off, s.returned, s.back = "", name, 0
	s.mu.Unlock()
	s.network.partition(s.addr(name), false)
	s.startAll(name)
	r.Back = append(r.Back, s.until("noticed that "+name+" is back", func() int { return s.back }))
	s.await("it knows all", []string{name}, sees(fmt.Sprint(len(s.nodes))))
	s.watch(name)
	<-time.After(settleTime + time.Duration(s.rand.Int64N(int64(settleTime))))
}

// until waits until a number is that of all nodes but one, and returns for how long.
func (s *simulation) until(what string, number func() int) time.Duration {
	began := time.Now()
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	n := 0
	for time.Since(began) < simulatedWait {
		s.mu.Lock()
		n = number()
		s.mu.Unlock()
		if n >= len(s.nodes)-1 {
			return time.Since(began)
		}
		<-ticks.C
	}
	s.Fatalf("after %s, %d of %d others have %s", simulatedWait, n, len(s.nodes)-1, what)
	return 0
}

// watch records what a node's views show of others.
func (s *simulation) watch(name string) {
	ctx, cancel := context.WithCancel(s.Context())
	r := s.running[name]
	s.stop[name] = cancel
	was := r.View()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-r.Changed():
			}
			is := r.View()
			s.record(name, was, is)
			was = is
		}
	}()
}

// record records the members whose state differs in two views of a node.
func (s *simulation) record(node string, was, is *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range died(was, is) {
		if name == s.off {
			s.detected = append(s.detected, time.Since(s.offSince))
			continue
		}
		s.result.FalseDeaths++
		s.Logf("%s ran and was dead for %s", name, node)
	}
	if slices.Contains(died(is, was), s.returned) {
		s.back++
	}
}

// died are the nodes that are dead in the second view and alive in the first.
func died(first, second *View) (names []string) {
	for _, m := range second.Members {
		if m.State != Dead {
			continue
		}
		i, known := slices.BinarySearchFunc(first.Members, m.Node,
			func(m Member, name string) int { return strings.Compare(m.Node, name) })
		if known && first.Members[i].State == Alive {
			names = append(names, m.Node)
		}
	}
	return names
}
