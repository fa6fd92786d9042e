package scale

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	discoveryv1 "k8s.io/api/discovery/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/watch"
	"github.com/fanfare-lb/fanfare/speaker"
)

const (
	gossipPort     = 17946
	leaseNamespace = "fanfare-node-lease"
	leaseInterval  = 5 * time.Second
	// passInterval is the least time between two decisions, on average. A speaker decides fifty times a second; the
	// API server does not notice it, and all hollow speakers share the machine's cores.
	passInterval = 2 * time.Second
)

// A hollowSpeaker decides what its node must do, and reports that it has done so.
type hollowSpeaker struct {
	node    string
	config  *rest.Config
	traffic *traffic
	keyFile string
	desired atomic.Pointer[plan.Desired]
	api     atomic.Pointer[watch.API]
	members *membership.Tracker
	runs    func(node string) bool // whether another speaker really runs
}

// run runs until ctx ends. A speaker that stops on purpose leaves the membership.
func (h *hollowSpeaker) run(ctx context.Context, leaves *atomic.Bool) error {
	log := slog.New(slog.DiscardHandler)
	config, err := h.traffic.wrap(h.config)
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(config.Transport)
	api, err := watch.OpenAPI(ctx, config,
		watch.Options{Scope: cluster.Scope{SecretsOf: h.node, ReadOnly: true}, L2: watch.L2Nodes, Log: log})
	if err != nil {
		return err
	}
	h.api.Store(api)
	leaser, err := membership.NewLeaseClient(config, leaseNamespace)
	if err != nil {
		return err
	}
	reporter, err := speaker.NewReporter(config, h.node, log)
	if err != nil {
		return err
	}
	h.members = membership.New(membership.Options{
		Node: h.node, KeyFile: h.keyFile, Port: gossipPort, Leases: leaser, LeaseInterval: leaseInterval, Log: log,
	})
	h.members.Start(context.WithoutCancel(ctx), func(string, []byte) error { return nil })
	defer h.members.Close()
	go reporter.Run(ctx, h.status)
	h.decide(ctx, ipam.NewReader(api), reporter)
	if leaves.Load() {
		h.members.Leave()
	}
	return nil
}

// decide makes a pass after changes.
func (h *hollowSpeaker) decide(ctx context.Context, source cluster.Source, reporter *speaker.Reporter) {
	decider := plan.NewDecider(plan.Config{Node: h.node})
	storm := rate.NewLimiter(rate.Every(passInterval), 5)
	for storm.Wait(ctx) == nil {
		snap := source.Snapshot()
		members := h.members.Members(snap)
		h.traffic.falseDeaths.Add(h.falseDeaths(decider.Config.Members, members))
		decider.Config.Members = members
		h.desired.Store(decider.Decide(snap))
		reporter.Trigger()
		select {
		case <-ctx.Done():
		case <-source.Changed():
		case <-h.members.Changed():
		case <-h.members.Renewed():
		}
	}
}

// falseDeaths returns how many running speakers this one takes for dead now, and did not before.
func (h *hollowSpeaker) falseDeaths(before, now *membership.Members) (n int64) {
	if before == now || now == nil {
		return 0
	}
	for _, m := range now.Nodes {
		if was, known := before.Find(m.Node); m.Dead() && known && was.Alive && h.runs(m.Node) {
			n++
		}
	}
	return n
}

// status is what a node reports whose kernel accepts everything at once.
func (h *hollowSpeaker) status() speaker.Status {
	d := h.desired.Load()
	st := speaker.Status{Node: h.node, Version: "hollow", Members: h.members.Status(d.Inputs.Members)}
	if d.Inputs.Self != nil {
		st.NodeUID = d.Inputs.Self.UID
	}
	for a := range d.Addresses.All() {
		one := speaker.AddressStatus{Address: a.Addr, Pool: a.Pool, Programmed: true, Announced: a.Announce}
		for _, s := range a.Services {
			one.Services = append(one.Services, s.String())
		}
		st.Addresses = append(st.Addresses, one)
	}
	return st
}

// received looks into what the speaker reads, not into its last decision, which may be older by passInterval.
func (h *hollowSpeaker) received(s *discoveryv1.EndpointSlice) bool {
	api := h.api.Load()
	if api == nil {
		return false
	}
	name := cluster.Name{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	for service := range api.Snapshot().Services.All() {
		if service.Name == name && service.Endpoints != nil {
			return !slices.ContainsFunc(s.Endpoints, func(want discoveryv1.Endpoint) bool {
				return !service.Endpoints.Any(func(have *cluster.Endpoint) bool {
					return have.Addr.String() == want.Addresses[0]
				})
			})
		}
	}
	return false
}

// served is how many addresses the speaker would serve.
func (h *hollowSpeaker) served() int {
	if d := h.desired.Load(); d != nil {
		return d.Addresses.Len()
	}
	return 0
}
