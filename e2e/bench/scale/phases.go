package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// changesPerSecond is how many endpoints change in a second of that phase, and createsPerSecond how many Services are
// created in one of the other.
const (
	changesPerSecond = 20
	createsPerSecond = 5
)

// settle is longer than the time between two writes of a SpeakerStatus, about other speakers too: what a phase causes
// is written in it. All together write at most four about others in a second. A short idle phase is for a check that
// the benchmark works, where nothing has to settle.
func (b *bench) settle() time.Duration {
	return min(6*time.Second+time.Duration(b.Nodes)*time.Second/4, b.idle)
}

// A phase is what happened, and what it cost.
type phase struct {
	Name    string
	Took    time.Duration // without the time to settle; the rest is with it
	CPU     time.Duration // of kube-apiserver
	Clients time.Duration // CPU time of this process: of all hollow clients
	Sent    float64       // watch events that the API server sent, to all its clients
	Count   Counts        // of the measured clients
	Profile *profile      `json:",omitempty"` // nil: not made
}

// The names of the phases.
const (
	start           = "start"
	idle            = "idle"
	endpointChanges = "endpoint changes"
	restart         = "API server restarted"
	nodeDies        = "a node dies"
	tenthDies       = "a tenth dies"
	created         = "Services created"
	upgrade         = "rolling upgrade"
)

// measure goes through all phases. Without clients there is nothing to start or to kill.
func (b *bench) measure(ctx context.Context, k kind) (all []phase, err error) {
	ended := make(chan struct{}) // closed when the API server to restart has ended
	steps := []step{
		{start, true, b.settle(), b.profileFor(time.Duration(b.Nodes) * time.Second / startsPerSecond), b.startAll},
		{idle, false, 0, nil, func(ctx context.Context) error { return wait(ctx, b.idle) }},
		{endpointChanges, false, 0, b.profileFor(b.duration), b.changeEndpoints},
		// The time to settle begins later than the profile, which therefore does not outlast the phase.
		{restart, false, b.settle(), b.profileAfter(ended, b.settle()),
			func(ctx context.Context) error { return b.restartAPIServer(ctx, ended) }},
		{nodeDies, true, b.settle(), b.profileFor(b.duration),
			func(ctx context.Context) error { return b.kill(ctx, 1) }},
		{tenthDies, true, b.settle(), b.profileFor(b.duration),
			func(ctx context.Context) error { return b.kill(ctx, max(1, b.Nodes/10)) }},
		{created, false, b.settle(), b.profileFor(time.Duration(b.create) * time.Second / createsPerSecond),
			b.createMore},
		{upgrade, true, b.settle(), b.profileFor(b.duration), b.upgradeAll},
	}
	for _, s := range steps {
		if s.clients && k == none {
			continue
		}
		p, err := b.profiled(ctx, s)
		if err != nil {
			return all, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, p)
		fmt.Fprintf(os.Stderr, "bench: scale: %d nodes, %s: %s after %s: %d requests, %d watches, %.0f events, %d "+
			"false deaths, API server %s, clients %s\n",
			b.Nodes, k, p.Name, p.Took.Round(time.Millisecond), p.Count.Requests(), p.Count.Watches, p.Sent,
			p.Count.FalseDeaths, p.CPU, p.Clients)
	}
	return all, nil
}

// A step is a phase to measure.
type step struct {
	name    string
	clients bool                                    // only with clients
	settle  time.Duration                           // of what it causes
	profile func(context.Context) (*profile, error) // of kube-apiserver; nil: none, as while it has nothing to do
	do      func(context.Context) error
}

// profiled measures a phase while kube-apiserver makes a profile. The profile may last longer than the phase. A phase
// that fails ends the profile, because an API server that does not start again never makes one.
func (b *bench) profiled(ctx context.Context, s step) (p phase, err error) {
	if s.profile == nil {
		return b.phase(ctx, s.name, s.settle, s.do)
	}
	var made *profile
	var g errgroup.Group
	life, end := context.WithCancel(ctx)
	defer end()
	g.Go(func() (err error) {
		made, err = s.profile(life)
		return err
	})
	if p, err = b.phase(ctx, s.name, s.settle, s.do); err != nil {
		end()
	}
	err = errors.Join(err, g.Wait())
	p.Profile = made
	return p, err
}

// A reading is the counters at one time.
type reading struct {
	pid             int // of kube-apiserver
	server, clients time.Duration
	sent            float64
	count           Counts
}

func (b *bench) read(ctx context.Context) (r reading, err error) {
	r.pid, r.count = b.cluster.APIServer.PID(), b.traffic.counts()
	server, err := measure.UsageOf("kube-apiserver", r.pid)
	if err != nil {
		return r, err
	}
	r.server = server.CPU
	if r.clients, err = clientsCPU(); err != nil {
		return r, err
	}
	r.sent, err = b.sent(ctx)
	return r, err
}

// clientsCPU returns the CPU time of this process, which has the clients. That of programs that it ran is not included:
// the API server of a restart, and pprof, would count as clients.
func clientsCPU() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// phase measures one phase, and what happens in a time after it. The counters of an API server that
// restarts begin at zero.
func (b *bench) phase(ctx context.Context, name string, settle time.Duration,
	do func(context.Context) error) (p phase, err error) {
	before, err := b.read(ctx)
	if err != nil {
		return p, err
	}
	began := time.Now()
	if err := do(ctx); err != nil {
		return p, err
	}
	p.Name, p.Took = name, time.Since(began)
	if err := wait(ctx, settle); err != nil {
		return p, err
	}
	after, err := b.read(ctx)
	if err != nil {
		return p, err
	}
	if after.pid != before.pid {
		before.server, before.sent = 0, 0
	}
	p.CPU, p.Clients = after.server-before.server, after.clients-before.clients
	p.Sent, p.Count = after.sent-before.sent, after.count.minus(before.count)
	return p, nil
}

// sent is how many watch events the API server has sent.
func (b *bench) sent(ctx context.Context) (total float64, err error) {
	text, err := b.core.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("apiserver_watch_events_total{")) {
			continue
		}
		var value float64
		if _, err := fmt.Sscan(string(line[bytes.LastIndexByte(line, ' ')+1:]), &value); err != nil {
			return 0, fmt.Errorf("metric %s: %w", line, err)
		}
		total += value
	}
	return total, nil
}

// startsPerSecond is how many clients start in a second. When all speakers of one machine start at once, their gossip,
// which grows with the square of their number, takes more processor time than there is, and they take one another for
// dead.
const startsPerSecond = 2

func (b *bench) startAll(ctx context.Context) error {
	limit := rate.NewLimiter(startsPerSecond, 1)
	for i := range b.Nodes {
		if err := limit.Wait(ctx); err != nil {
			return err
		}
		b.fleet.start(ctx, i)
	}
	return b.fleet.await(ctx, b.created)
}

// wait lets some time pass.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// changeEndpoints returns when all clients have received the last change: a busy API server sends it late.
func (b *bench) changeEndpoints(ctx context.Context) (err error) {
	var last *discoveryv1.EndpointSlice
	limit := rate.NewLimiter(changesPerSecond, 1)
	for until := time.Now().Add(b.duration); time.Now().Before(until); {
		if err := limit.Wait(ctx); err != nil {
			return err
		}
		if last, err = b.changeEndpoint(ctx); err != nil {
			return err
		}
	}
	return b.fleet.awaitSlice(ctx, last)
}

// restartAPIServer kills the API server, and starts it at the same port. All clients must see a Service that is created
// afterwards.
func (b *bench) restartAPIServer(ctx context.Context, ended chan<- struct{}) error {
	b.cluster.APIServer.Kill()
	close(ended)
	if err := b.cluster.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := b.createServices(ctx, 1, rate.Inf); err != nil {
		return err
	}
	return b.fleet.await(ctx, b.created)
}

// kill ends n clients as nodes that lose their power.
func (b *bench) kill(ctx context.Context, n int) error {
	for i := range b.Nodes {
		if b.fleet.all[i] != nil && n > 0 {
			n--
			if err := b.fleet.end(i, false); err != nil {
				return err
			}
		}
	}
	return wait(ctx, b.duration)
}

func (b *bench) createMore(ctx context.Context) error {
	if err := b.createServices(ctx, b.create, createsPerSecond); err != nil {
		return err
	}
	if err := b.awaitAssigned(ctx); err != nil {
		return err
	}
	return b.fleet.await(ctx, b.created)
}

// upgradeAll replaces one client after the other, as the DaemonSet does.
func (b *bench) upgradeAll(ctx context.Context) error {
	for i := range b.Nodes {
		if b.fleet.all[i] == nil {
			continue
		}
		if err := b.fleet.end(i, true); err != nil {
			return err
		}
		b.fleet.start(ctx, i)
		if err := b.fleet.await(ctx, b.created); err != nil {
			return err
		}
	}
	return nil
}
