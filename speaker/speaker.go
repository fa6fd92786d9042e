package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/retry"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/kernel/suspend"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/monitoring"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

const (
	// Frequent changes cause one pass each passInterval. The first passBurst passes do not
	// wait, so that a single change is never late.
	passInterval = 20 * time.Millisecond
	passBurst    = 10
	// transmitTime is how long GoBGP may take to send a withdrawal. The linger time begins after
	// it.
	transmitTime = 250 * time.Millisecond
	// recheckInterval is how often the kernel's rules are read back without a detected change.
	recheckInterval = 5 * time.Minute
	// defaultRestartTime is how long a router keeps the routes of a restarting speaker by BGPPeer's
	// default.
	defaultRestartTime = 30 * time.Second
)

// Options configure Run.
type Options struct {
	plan.Config
	// ProxyMode selects nftables or iptables; empty: nftables if it works.
	ProxyMode proxy.Mode
	// FastPath lets flows of external clients bypass netfilter where possible. They arrive
	// by FastPathInterfaces; if that is empty, the speaker detects the interfaces.
	// FastPathDir keeps the fast path while no speaker runs. Without FastPath it is
	// removed.
	FastPath           bool
	FastPathInterfaces []string
	FastPathDir        string
	// RunDir holds the socket, the lock and the state for the next speaker. It should not
	// survive a reboot.
	RunDir string
	// Linger is how long an address is forwarded after its route was withdrawn, and
	// LingerL2 after this node stopped answering ARP and NDP for it.
	Linger, LingerL2 time.Duration
	// RefreshL2 is the interval of gratuitous ARP and NDP for held addresses; 0: never.
	RefreshL2 time.Duration
	// MembersKeyFile holds the keys of the membership protocol on MembersPort, UDP and TCP;
	// empty: speakers do not communicate, and no node is known to be dead.
	MembersKeyFile string
	MembersPort    uint16
	// Leaser renews this node's Lease each LeaseInterval; nil or zero: never.
	Leaser        *membership.LeaseClient
	LeaseInterval time.Duration
	// Monitoring says where metrics and health are served.
	Monitoring monitoring.Options
	// Open returns the source of cluster objects as soon as there is something to read. The
	// speaker saves snapshots for a start without the API server while inStep reports that
	// they have what the API server has; nil: never.
	Open func(context.Context) (source cluster.Source, inStep func() bool, err error)
	// Reporter writes the SpeakerStatus and Events; nil: neither is written.
	Reporter *Reporter
	Log      *slog.Logger
	Registry *prometheus.Registry
	Version  string
}

// A speaker belongs to the goroutine of Run, except result and passBegan.
type speaker struct {
	Options
	source     cluster.Source
	proxy      *proxy.Proxy
	bgp        *bgp.Server
	health     *healthcheck.Server
	bgpPath    *announcePath
	layer2     *layer2
	pass       *pass
	decider    *plan.Decider
	state      *rundir.Dir
	snapshots  *rundir.SnapshotWriter
	events     *eventRecorder
	metrics    *metrics
	gateway    *netWatch[plan.Gateways]
	pods       *podNetworkWatch
	uplinks    *uplinkWatch        // in use with a fast path
	membership *membership.Tracker // nil without a key

	started time.Time
	adopted []netip.Addr
	// reshape changes what the stopping speaker applies; nil until it stops.
	reshape func(*plan.Desired) *plan.Desired
	// adoptedBounded: adopted addresses have their final linger time.
	adoptedBounded bool
	retry          *backoff.ExponentialBackOff
	// failedChecks are the healthCheckNodePorts that are in use by other programs.
	failedChecks []healthcheck.Failure
	recheckAt    time.Time // when to read the kernel's rules back

	result    atomic.Pointer[passResult]
	passBegan atomic.Pointer[time.Time] // nil between two passes
}

// Run runs a speaker until ctx ends, then stops it as [speaker.stop] says. The end of kill
// stops it at once.
func Run(ctx, kill context.Context, o Options) error {
	release, err := rundir.Lock(o.RunDir)
	if err != nil {
		return err
	}
	defer release()
	serving, err := serve(o)
	if err != nil {
		return err
	}
	defer serving.Close()
	source, inStep, err := o.Open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped before there was anything to do
		}
		return err
	}
	serving.opened.Store(new(time.Now()))
	s, err := start(ctx, o, source, inStep)
	if err != nil {
		return err
	}
	defer s.proxy.Close()
	defer s.health.Close()
	defer s.gateway.stop()
	defer s.pods.stop()
	defer s.uplinks.stop()
	s.membership.Start(kill, s.layer2.handover.receive)
	defer s.membership.Close()
	serving.speaker.Store(s)
	go s.Reporter.Run(kill, s.status)
	go s.events.run(kill, s.observe)
	go s.layer2.neighbours.Run(kill)
	go suspend.Watch(kill, suspendThreshold, s.resumed)
	s.loop(ctx)
	defer s.snapshots.Close()
	return s.stop(kill)
}

// start opens everything, and changes the network of no address.
func start(ctx context.Context, o Options, source cluster.Source, inStep func() bool) (*speaker, error) {
	p, err := proxy.New(ctx, proxy.Options{
		Logger: o.Log, Registerer: o.Registry, Mode: o.ProxyMode, FastPath: o.openFastPath(),
	})
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if !o.FastPath {
		o.removeFastPath(ctx)
	}
	s := &speaker{
		Options: o, source: source, proxy: p, adopted: p.Adopted(), started: time.Now(),
		recheckAt: time.Now().Add(recheckInterval),
	}
	// Only an adopted table proves that forwarding survived the restart, so that routers
	// may keep their routes (RFC 4724 §4.1). After a reboot there is no table.
	s.bgp = bgp.New(bgp.Options{Logger: o.Log, Registerer: o.Registry, Restarting: len(s.adopted) > 0})
	s.health = healthcheck.New(func() bool { return s.result.Load().upToDate() }, o.Log)
	o.Limits = p.Limits()
	s.decider = plan.NewDecider(o.Config)
	s.gateway, s.pods = newGatewayWatch(o.Log), newPodNetworkWatch(o.Log)
	s.uplinks = newUplinkWatch(o.FastPathInterfaces, o.Log)
	s.membership = membership.New(membership.Options{
		Node: o.Node, KeyFile: o.MembersKeyFile, Port: o.MembersPort, Leases: o.Leaser, LeaseInterval: o.LeaseInterval,
		Log: o.Log, Registerer: o.Registry,
	})
	s.state = rundir.New(o.RunDir)
	s.snapshots = rundir.NewSnapshotWriter(rundir.Saved(o.RunDir), inStep, o.Log)
	var known reported
	if len(s.adopted) > 0 || s.state.HasSnapshot() {
		known = reportedBefore(s.adopted, s.started)
	}
	s.events = o.Reporter.eventRecorder(known)
	s.metrics = newMetrics(o.Registry)
	s.bgpPath = newBGPPath(&bgpAnnouncer{server: s.bgp}, o.Linger+transmitTime)
	s.layer2 = newLayer2(o, s.adopted, s.state)
	s.layer2.broadcast, s.layer2.send, s.layer2.clustered = s.broadcast, s.membership.Send, s.membership != nil
	s.layer2.handover.send = s.membership.Send
	s.pass = newPass(s.proxy, o.Log, s.bgpPath, s.layer2.path)
	s.pass.metrics = s.metrics
	s.retry = retry.Backoff(50*time.Millisecond, 30*time.Second)
	s.adopt(source.Snapshot())
	s.publish(nil, nil)
	return s, nil
}

// adopt lets the addresses of an earlier speaker linger until no router keeps its routes any
// longer, even a router that this speaker opens no session to.
func (s *speaker) adopt(snap *cluster.Snapshot) {
	if len(s.adopted) == 0 {
		return
	}
	restart := defaultRestartTime
	for _, p := range snap.Peers {
		restart = max(restart, p.RestartTime)
	}
	for _, a := range s.adopted {
		s.bgpPath.adopt(a, s.started.Add(restart+s.Linger))
	}
	s.Log.Info("adopted the table of an earlier speaker", "vips", len(s.adopted))
}

// loop makes a pass after each change, until ctx ends.
func (s *speaker) loop(ctx context.Context) {
	timer := time.NewTimer(0) // the first pass needs no change
	defer timer.Stop()
	storm := rate.NewLimiter(rate.Every(passInterval), passBurst)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.source.Changed():
		case <-s.bgp.Changed():
		case <-s.gateway.changed:
		case <-s.pods.changed:
		case <-s.uplinks.changed:
		case <-s.membership.Changed():
		case <-s.membership.Renewed():
		case <-s.layer2.announcer.Changed():
		case <-s.layer2.handover.changed:
		case <-s.layer2.neighbours.Changed():
		case <-s.proxy.Changed():
		case <-timer.C:
		}
		began := time.Now()
		// A pass takes milliseconds, and an interrupted one would leave its rest to the
		// next speaker.
		err := s.runPass(context.WithoutCancel(ctx))
		timer.Reset(time.Until(s.nextPass(began, err)))
		if storm.Wait(ctx) != nil {
			return
		}
	}
}

// runPass makes one pass over the newest snapshot.
func (s *speaker) runPass(ctx context.Context) error {
	began := time.Now()
	s.markStart(began)
	defer s.passBegan.Store(nil)
	if !began.Before(s.recheckAt) {
		s.proxy.Recheck()
		s.recheckAt = began.Add(recheckInterval)
	}
	s.boundAdopted()
	snap := s.source.Snapshot()
	members := s.updateConfig(snap, began)
	d := s.decide(snap, began)
	if s.layer2.ready(began) {
		// A node is elected only after others receive its interfaces, and is not when they
		// are gone.
		s.membership.SetMeta(&s.layer2.offer.meta, s.layer2.updateHoldDown(members, s.decider.Config.Returning, began))
	}
	d, err := s.apply(ctx, d, began)
	if err != nil {
		s.Log.Error("pass incomplete", "err", err)
	}
	if s.pass.last == d {
		s.serveHealthChecks(ctx, d)
	}
	s.metrics.observe(time.Since(began), err)
	s.publish(d, err)
	s.Reporter.Trigger()
	s.events.trigger()
	s.layer2.checkProblems(ctx, d, began)
	return errors.Join(err, s.save(d.Snapshot))
}

// updateConfig updates the inputs of the decision besides the snapshot, and returns the members.
func (s *speaker) updateConfig(snap *cluster.Snapshot, began time.Time) *membership.Members {
	c := &s.decider.Config
	if slices.ContainsFunc(snap.Peers, func(p *cluster.Peer) bool { return p.DefaultGateway != "" }) {
		c.Gateways = s.gateway.current()
	}
	c.Refused, c.Blockade = c.Refused.Still(began), s.pass.forwarder.Blockade()
	c.Interfaces, c.Members = s.layer2.offeredInterfaces(snap, withheldFamilies(c.Blockade, s.pass.last)),
		s.membership.Members(snap)
	c.Pods = s.pods.find(c, snap)
	c.Returning = s.layer2.returning(c.Members, began)
	if s.membership.Released() {
		s.layer2.handover.reannounceAll()
	}
	return c.Members
}

// decide returns what this node must do, reduced by reshape if the speaker is stopping.
func (s *speaker) decide(snap *cluster.Snapshot, began time.Time) *plan.Desired {
	from := time.Now()
	d := s.decider.Decide(snap)
	s.metrics.observePhase(phaseDecide, from)
	s.layer2.prepare(d, snap, began)
	if s.reshape != nil {
		d = s.reshape(d)
	}
	return d
}

// maxRefused bounds the passes that are repeated because the proxy refuses addresses. The
// proxy names all of them at once, so a second pass is enough unless the kernel changes its
// answer.
const maxRefused = 4

// apply makes the pass. If the proxy refuses addresses, or finds that obstacles block them, apply
// decides again without them: they are withdrawn, and all others are served. It returns what was
// applied.
func (s *speaker) apply(ctx context.Context, d *plan.Desired, began time.Time) (*plan.Desired, error) {
	for attempt := 1; ; attempt++ {
		if s.FastPath {
			s.pass.uplinks = s.uplinks.names(d.Inputs.NodeAddresses())
		}
		s.pass.redirects = s.layer2.nextRedirects(d, began)
		err := s.pass.run(ctx, d)
		var refused *proxy.Refused
		switch {
		case attempt == maxRefused:
			return d, err
		case errors.Is(err, errBlockade):
			s.decider.Config.Blockade = s.pass.forwarder.Blockade()
			d = s.decide(d.Snapshot, began)
			continue
		case !errors.As(err, &refused):
			return d, err
		}
		for _, r := range refused.Refusals {
			s.Log.Warn("address refused", "vip", r.VIP.Addr, "service",
				cluster.Enumerate(serviceNames(d.Holders(r.VIP.Addr))), "reason", plan.OneLine(r.Err))
		}
		s.decider.Config.Refused = s.decider.Config.Refused.With(refused, began)
		d = s.decide(d.Snapshot, began)
	}
}

func serviceNames(names []cluster.Name) (out []string) {
	for _, n := range names {
		out = append(out, n.String())
	}
	return out
}

// broadcast sends a message to all other speakers.
func (s *speaker) broadcast(b []byte) {
	m, err := parseMessage(b)
	s.membership.Broadcast(b, err == nil && len(m.released) > 0)
}

// save saves what the next speaker needs. With an API server, the snapshot has the
// assignments: writing them for each new Service would take longer than the pass.
func (s *speaker) save(snap *cluster.Snapshot) (err error) {
	if s.snapshots == nil {
		err = s.state.SaveAssignments(snap)
	} else {
		s.snapshots.Update(snap)
	}
	return errors.Join(err, s.state.SaveConfiguration(snap),
		s.state.SaveAnswered(s.layer2.path.announcedAddrs, s.layer2.savedAddresses),
		s.state.SaveOwners(s.layer2.handover.history, s.layer2.redirects.Rules),
		s.state.SaveFailures(s.layer2.holdDown.Failures()))
}

// boundAdopted bounds adopted addresses by the linger time once all routers have received
// this speaker's routes, which replace the earlier speaker's.
func (s *speaker) boundAdopted() {
	if s.adoptedBounded {
		return
	}
	if at, ok := s.bgp.Synced(); ok {
		s.bgpPath.boundAdopted(at.Add(s.Linger))
		s.adoptedBounded = true
	}
}

// nextPass returns when a pass is due without a change. After an error it is retried with
// backoff.
func (s *speaker) nextPass(began time.Time, err error) time.Time {
	at := earliest(time.Time{}, s.recheckAt, s.pass.next(began), s.layer2.next(began), s.decider.Config.Refused.Next())
	if err == nil && len(s.failedChecks) == 0 {
		s.retry.Reset()
		return at
	}
	return earliest(time.Time{}, at, began.Add(s.retry.NextBackOff()))
}

// earliest returns the first of times that is later than after, and zero if none is.
func earliest(after time.Time, times ...time.Time) (first time.Time) {
	for _, t := range times {
		if t.After(after) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
