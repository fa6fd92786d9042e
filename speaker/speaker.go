package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/proxy"
)

const (
	// Under a storm of events there is a pass every passInterval. A few in a row
	// do not wait: what follows another Service's change would be late otherwise.
	passInterval = 20 * time.Millisecond
	passBurst    = 10
	// flight is how long a withdrawal may be under way to the wire: GoBGP sends in
	// its own time. It is added to the linger time, which counts from then.
	flight = 250 * time.Millisecond
	// fullInterval is how often the kernel is compared with what it should hold
	// although nobody was seen to touch it.
	fullInterval = 5 * time.Minute
	// defaultRestartTime is BGPPeer's default: how long a router keeps the routes
	// of a speaker that went away.
	defaultRestartTime = 30 * time.Second
)

// Options are what Run needs.
type Options struct {
	plan.Config
	// ProxyMode is what forwards; empty: what works.
	ProxyMode proxy.Mode
	// FastPath has flows of clients outside go past netfilter where they can, which come in by
	// FastPathInterfaces, if there are any, else by those that are found out. What it needs beyond
	// the speaker's end is in FastPathDir, from where it is removed without FastPath.
	FastPath           bool
	FastPathInterfaces []string
	FastPathDir        string
	// RunDir holds the socket, the lock and what is remembered until the next
	// start. It should not survive a reboot.
	RunDir string
	// Linger is how long an address is forwarded after its route was withdrawn, and
	// LingerL2 how long after this node has stopped to answer for it.
	Linger, LingerL2 time.Duration
	// RefreshL2 is after how long addresses are announced to neighbours again; 0: never.
	RefreshL2 time.Duration
	// MembersKeyFile holds the keys that speakers talk to one another under, on
	// MembersPort, UDP and TCP; empty: they do not talk, and nobody is known to be dead.
	MembersKeyFile string
	MembersPort    uint16
	// Leaser renews this node's Lease each LeaseInterval; nil or zero: nobody does.
	Leaser        *membership.LeaseClient
	LeaseInterval time.Duration
	// Listen is a TCP address for metrics and health, empty for none.
	Listen string
	// Open returns where to read the cluster from, once there is something to
	// read. Fresh says whether that is to be written to the run directory, for a
	// start without the API server; nil: never.
	Open func(context.Context) (source cluster.Source, fresh func() bool, err error)
	// Reporter writes the SpeakerStatus and Events; nil: nobody does.
	Reporter *Reporter
	Log      *slog.Logger
	Registry *prometheus.Registry
	Version  string
}

// A speaker is one running speaker. All but published belongs to the goroutine
// of run.
type speaker struct {
	Options
	source     cluster.Source
	proxy      *proxy.Proxy
	bgp        *bgp.Server
	health     *healthcheck.Server
	routes     *way
	links      *links
	pass       *pass
	decider    *plan.Decider
	memory     memory
	diary      *diary
	herald     *herald
	metrics    *metrics
	gateway    *gatewayWatch
	outward    *outwardWatch       // nil without a fast path
	membership *membership.Tracker // nil without a key

	started time.Time
	adopted []netip.Addr
	// reshape changes what is desired while the speaker stops; nil before.
	reshape func(*plan.Desired) *plan.Desired
	// settled is set when adopted addresses have got the time they still have.
	settled bool
	retry   *backoff.ExponentialBackOff
	// unanswered are the healthCheckNodePorts that could not be taken.
	unanswered []healthcheck.Failure
	full       time.Time // when to compare with the kernel again

	published atomic.Pointer[published]
	passing   atomic.Pointer[time.Time] // when the pass began that is made now; nil between two
}

// Run runs a speaker until ctx ends, then stops it in the way that loses the
// least: see stop. A second cancellation, that of kill, ends it at once.
func Run(ctx, kill context.Context, o Options) error {
	release, err := lock(o.RunDir)
	if err != nil {
		return err
	}
	defer release()
	serving, err := serve(o)
	if err != nil {
		return err
	}
	defer serving.Close()
	source, fresh, err := o.Open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // Asked to stop before there was anything to do.
		}
		return err
	}
	serving.opened.Store(new(time.Now()))
	s, err := start(ctx, o, source, fresh)
	if err != nil {
		return err
	}
	defer s.proxy.Close()
	defer s.health.Close()
	defer s.gateway.stop()
	defer s.outward.stop()
	s.membership.Start(kill, s.links.holds.hear)
	defer s.membership.Close()
	serving.speaker.Store(s)
	go s.Reporter.run(kill, s.status)
	go s.herald.run(kill, s.scene)
	go watchThaws(kill, s.thaw)
	s.loop(ctx)
	defer s.diary.close()
	return s.stop(kill)
}

// start opens everything and changes nothing, neither in the kernel nor on the
// network.
func start(ctx context.Context, o Options, source cluster.Source, fresh func() bool) (*speaker, error) {
	p, err := proxy.New(ctx, proxy.Options{Logger: o.Log, Registerer: o.Registry, Mode: o.ProxyMode, FastPath: o.openFastPath()})
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	s := &speaker{Options: o, source: source, proxy: p, adopted: p.Adopted(), started: time.Now(), full: time.Now().Add(fullInterval)}
	// Only a table that was kept proves that forwarding survived our restart; a
	// router that is told so keeps its routes (RFC 4724 §4.1). After a reboot
	// there is none.
	s.bgp = bgp.New(bgp.Options{Logger: o.Log, Registerer: o.Registry, Restarting: len(s.adopted) > 0})
	s.health = healthcheck.New(func() bool { return s.published.Load().upToDate() }, o.Log)
	o.Limits = p.Limits()
	s.decider = plan.NewDecider(o.Config)
	s.gateway = newGatewayWatch(o.Log)
	s.outward = o.watchOutward(ctx)
	s.membership = membership.New(membership.Options{Node: o.Node, KeyFile: o.MembersKeyFile, Port: o.MembersPort, Leases: o.Leaser, LeaseInterval: o.LeaseInterval, Log: o.Log, Registerer: o.Registry})
	s.memory = memory{dir: o.RunDir}
	s.diary = newDiary(o, fresh)
	var known told
	if len(s.adopted) > 0 || s.memory.cluster() {
		known = inherit(s.adopted, s.started)
	}
	s.herald = o.Reporter.herald(known)
	s.metrics = newMetrics(o.Registry)
	s.routes = byBGP(&overBGP{server: s.bgp}, o.Linger+flight)
	s.links = newLinks(o, s.adopted, &s.memory)
	s.links.say, s.links.tell, s.links.sociable = s.say, s.membership.Send, s.membership != nil
	s.links.holds.whisper = s.membership.Send
	s.pass = newPass(s.proxy, o.Log, s.routes, s.links.way)
	s.retry = &backoff.ExponentialBackOff{InitialInterval: 50 * time.Millisecond, RandomizationFactor: 0.2, Multiplier: 2, MaxInterval: 30 * time.Second}
	s.retry.Reset()
	if len(s.adopted) > 0 {
		until := s.forgotten(source.Snapshot())
		for _, a := range s.adopted {
			s.routes.adopt(a, until)
		}
		o.Log.Info("adopted the table of an earlier speaker", "vips", len(s.adopted))
	}
	s.publish(nil, nil)
	return s, nil
}

// forgotten is when no router can remember any more what an earlier process told
// it: a router that heard nothing of us keeps the routes for the restart time.
func (s *speaker) forgotten(snap *cluster.Snapshot) time.Time {
	longest := defaultRestartTime
	for _, p := range snap.Peers {
		longest = max(longest, p.RestartTime)
	}
	return s.started.Add(longest + s.Linger)
}

// loop passes whenever something has changed, until ctx ends.
func (s *speaker) loop(ctx context.Context) {
	timer := time.NewTimer(0) // the first pass needs no event
	defer timer.Stop()
	storm := rate.NewLimiter(rate.Every(passInterval), passBurst)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.source.Changed():
		case <-s.bgp.Changed():
		case <-s.gateway.changed:
		case <-s.outward.changes():
		case <-s.membership.Changed():
		case <-s.membership.Renewed():
		case <-s.links.announcer.Changed():
		case <-s.links.holds.changed:
		case <-s.proxy.Changed():
		case <-timer.C:
		}
		began := time.Now()
		// What has begun is finished: a pass broken off would leave for the next
		// process what takes this one a millisecond.
		err := s.once(context.WithoutCancel(ctx))
		timer.Reset(time.Until(s.wake(began, err)))
		if storm.Wait(ctx) != nil {
			return
		}
	}
}

// once makes one pass over the newest snapshot.
func (s *speaker) once(ctx context.Context) error {
	began := time.Now()
	s.busy(began)
	defer s.passing.Store(nil)
	if !began.Before(s.full) {
		s.proxy.Recheck()
		s.full = began.Add(fullInterval)
	}
	s.settle()
	snap := s.source.Snapshot()
	if slices.ContainsFunc(snap.Peers, func(p *cluster.Peer) bool { return p.DefaultGateway != "" }) {
		s.decider.Config.Gateways = s.gateway.now()
	}
	members := s.membership.Members(snap)
	s.decider.Config.Interfaces, s.decider.Config.Members = s.links.interfaces(snap), members
	s.decider.Config.Returning = s.links.returning(members, began)
	if s.membership.Released() {
		s.links.holds.renewAll()
	}
	s.decider.Config.Refused = s.decider.Config.Refused.Still(began)
	d := s.decide(snap, began)
	if s.links.ready(began) {
		// Only who has interfaces is given addresses, and who had them lets go at once.
		s.membership.SetMeta(&s.links.reach.offer, s.links.offer(members, s.decider.Config.Returning, began))
	}
	d, err := s.apply(ctx, d, began)
	if err != nil {
		s.Log.Error("pass", "err", err)
	}
	if s.pass.last == d {
		s.answer(ctx, d)
	}
	s.metrics.observe(time.Since(began), err)
	s.publish(d, err)
	s.Reporter.note()
	s.herald.note()
	s.links.look(ctx, d, began)
	return errors.Join(err, s.remember(d.Snapshot), s.memory.keepConfiguration(d.Snapshot), s.memory.keepAnswered(s.links.way, s.links.holds), s.memory.keepDeaths(s.links.holdDown.Failures()))
}

// decide decides about a snapshot as far as the speaker is not about to stop.
func (s *speaker) decide(snap *cluster.Snapshot, began time.Time) *plan.Desired {
	d := s.decider.Decide(snap)
	s.links.prepare(d, snap, began)
	if s.reshape != nil {
		d = s.reshape(d)
	}
	return d
}

// maxRefused is how often a pass is made again for addresses that the proxy refuses. Each
// time it says all of them, so that once is enough unless the kernel changes its mind.
const maxRefused = 4

// apply makes the pass. Addresses that the proxy refuses are decided about again, so that
// they are withdrawn, and all others go on as if there were none of them. It returns what
// was applied in the end.
func (s *speaker) apply(ctx context.Context, d *plan.Desired, began time.Time) (*plan.Desired, error) {
	for attempt := 1; ; attempt++ {
		s.pass.outward = s.outward.now(d.View.NodeAddresses())
		s.pass.handed = s.links.handOn(d, began)
		err := s.pass.run(ctx, d)
		var refused *proxy.Refused
		if !errors.As(err, &refused) || attempt == maxRefused {
			return d, err
		}
		for _, r := range refused.Refusals {
			s.Log.Warn("address refused", "vip", r.VIP.Addr, "service", cluster.Enumerate(textOf(d.Holders(r.VIP.Addr))), "reason", plan.OneLine(r.Err))
		}
		s.decider.Config.Refused = s.decider.Config.Refused.With(refused, began)
		d = s.decide(d.Snapshot, began)
	}
}

func textOf(names []cluster.Name) (out []string) {
	for _, n := range names {
		out = append(out, n.String())
	}
	return out
}

// say tells all other speakers something.
func (s *speaker) say(b []byte) {
	m, err := parseSaying(b)
	s.membership.Broadcast(b, err == nil && len(m.released) > 0)
}

// remember keeps what the next speaker needs. Who has which address is in the
// cluster that it remembers, if there is an API server; to write it again with
// each new Service would take longer than to forward that.
func (s *speaker) remember(snap *cluster.Snapshot) error {
	if s.diary == nil {
		return s.memory.keep(snap)
	}
	s.diary.note(snap)
	return nil
}

// settle gives adopted addresses the linger time once the routers have been told
// all that we have to say: what they knew before is then gone.
func (s *speaker) settle() {
	if s.settled {
		return
	}
	if at, ok := s.bgp.Synced(); ok {
		s.routes.settle(at.Add(s.Linger))
		s.settled = true
	}
}

// wake is when the next pass is due although nothing changes.
func (s *speaker) wake(began time.Time, err error) time.Time {
	at := s.full
	if next := s.pass.next(began); !next.IsZero() && next.Before(at) {
		at = next
	}
	if next := s.links.next(began); !next.IsZero() && next.Before(at) {
		at = next
	}
	if next := s.links.handed.until; !next.IsZero() && next.Before(at) {
		at = next
	}
	if next := s.decider.Config.Refused.Next(); !next.IsZero() && next.Before(at) {
		at = next
	}
	if err == nil && len(s.unanswered) == 0 {
		s.retry.Reset()
		return at
	}
	if again := began.Add(s.retry.NextBackOff()); again.Before(at) {
		at = again
	}
	return at
}

// stop ends the speaker. SIGTERM comes from an upgrade, a drain and a shutdown
// alike, so the Node object decides:
//
//   - A node that is leaving withdraws everything and goes on forwarding for the
//     linger time, while routers and clients turn away.
//   - A node that stays expects its speaker back: it exits silently and leaves the
//     table; routers keep the routes by graceful restart. Routers without it drop
//     the routes when the session ends, so those sessions end first, and the rest
//     waits for the linger time.
//
// What it answers for over L2 goes to other nodes in any case: nobody keeps that for it.
// It says farewell first, so that others know whose turn it is, and they begin as soon as
// it has said that it stopped. The table, which stays, forwards for those who have not
// heard. The next speaker gets back what is its own.
func (s *speaker) stop(kill context.Context) error {
	how := bgp.Restart
	leave := sync.OnceFunc(s.membership.Leave)
	if len(s.links.way.have) > 0 {
		leave()
	}
	if d := s.published.Load().desired; d != nil {
		switch {
		case d.View.Self == nil || d.View.Self.Leaving != "":
			linger := s.Linger
			if len(s.links.way.have) > 0 {
				linger = max(linger, s.LingerL2)
			}
			s.Log.Info("stopping for good: withdrawing", "reason", d.View.RefusalMessage, "linger", linger)
			how = bgp.Withdraw
			s.drain(kill, (*plan.Desired).WithoutAnnouncements, linger)
		case len(d.Restartable().BGP.Sessions) < len(d.BGP.Sessions) && len(d.Routed) > 0:
			s.Log.Info("stopping: withdrawing from peers without graceful restart", "linger", s.Linger)
			s.drain(kill, func(d *plan.Desired) *plan.Desired { return d.Restartable().WithoutL2() }, s.Linger)
		case len(s.links.way.have) > 0:
			s.Log.Info("stopping: other nodes answer over L2 from now on; routes and forwarding stay for the next speaker")
			s.reshape = (*plan.Desired).WithoutL2
			// Its error is logged, and whoever comes next forwards what is in the kernel.
			_ = s.once(context.WithoutCancel(kill))
		default:
			s.Log.Info("stopping: routes and forwarding stay for the next speaker")
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(kill), 5*time.Second)
	defer cancel()
	var errs []error
	if err := s.links.announcer.Close(ctx); err != nil {
		errs = append(errs, fmt.Errorf("l2: %w", err))
	}
	leave()
	if err := s.bgp.Close(ctx, how); err != nil {
		errs = append(errs, fmt.Errorf("bgp: %w", err))
	}
	return errors.Join(errs...)
}

// drain goes on for the linger time with what reshape leaves of the desired.
func (s *speaker) drain(kill context.Context, reshape func(*plan.Desired) *plan.Desired, linger time.Duration) {
	s.reshape = reshape
	ctx, cancel := context.WithTimeout(kill, linger)
	defer cancel()
	s.loop(ctx)
}
