package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/notify"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// Options say what OpenAPI watches. The zero value watches everything.
type Options struct {
	// NodeName is the only Node to watch, empty for all. A node that only speaks
	// BGP needs no other: in a large cluster the Nodes' own reports are most of
	// what happens.
	NodeName string
	// What is not needed is not watched, and its part of snapshots stays empty.
	SkipNodes, SkipEndpointSlices, SkipClaims, SkipAdvertisements bool
	// SkipNamespaces and SkipServiceCIDRs are for who gives out no addresses.
	SkipNamespaces, SkipServiceCIDRs bool
	// L2 is what to watch besides as soon as addresses may go over L2.
	L2 L2Needs
	// ClassOnly leaves Services without a class to others.
	ClassOnly bool
	// Known are versions to use of objects that have a mistake; nil: none.
	Known *cluster.Configuration
	// ReadOnly is for who writes no claims: what only a write must name is not in them.
	ReadOnly bool
	// SkipSecrets is for who opens no sessions: peers are as if they had no password.
	SkipSecrets bool

	Log        *slog.Logger          // slog.Default when nil
	Registerer prometheus.Registerer // nil: metrics are not registered
}

// L2Needs are what is watched only where addresses may go over L2.
type L2Needs uint8

const (
	// L2Nothing is more than what is watched anyway.
	L2Nothing L2Needs = iota
	// L2Nodes are all Nodes: who elects must know the candidates. They are watched as
	// soon as addresses are aggregated, too: no aggregate may contain a Node's address.
	L2Nodes
	// L2Speakers are all Nodes, their SpeakerStatuses and EndpointSlices: a controller that
	// spreads addresses over nodes must know which nodes can have them.
	L2Speakers
)

// now says whether it is time to watch them.
func (n L2Needs) now(b *cluster.Builder) bool { return b.MayUseL2() || n == L2Nodes && b.Aggregates() }

// An API is a Source that watches an API server.
//
// The last state stays in use while the API server is unavailable, and a Problem
// says since when. When it is back, everything is listed again.
type API struct {
	config  *rest.Config
	http    *http.Client // one, so that all watches share a connection
	log     *slog.Logger
	metrics *metrics
	needs   L2Needs
	changed chan struct{}
	// synced are closed when the resource was read for the first time.
	synced map[resource]<-chan struct{}

	losses *atomic.Int64 // how often the connection was lost

	mu       sync.Mutex
	builder  *cluster.Builder
	last     *cluster.Snapshot
	troubles map[resource]trouble
	outage   trouble // the first trouble that lasts
	// deepen begins to watch what L2 needs; nil before everything else was read, and
	// once it was called.
	deepen func()
}

// OpenAPI watches the API server until ctx ends. It returns when everything has
// been read once, however long that takes, or ctx has ended: then the error says
// what could not be read and why.
func OpenAPI(ctx context.Context, cfg *rest.Config, o Options) (a *API, err error) {
	began := time.Now()
	if a, err = newAPI(cfg, o); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			stop(err)
		}
	}()
	if err = a.start(ctx, o); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	if err = a.wait(ctx); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	if err = a.watchL2(ctx, o.L2); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	s := a.Snapshot()
	a.log.Info("API server read", "host", cfg.Host, "services", len(s.Services), "nodes", len(s.Nodes), "pools", len(s.Pools),
		"peers", len(s.Peers), "advertisements", len(s.Advertisements)+len(s.L2Advertisements), "claims", len(s.Claims), "problems", len(s.Problems), "took", time.Since(began).Round(time.Millisecond))
	return a, nil
}

func newAPI(cfg *rest.Config, o Options) (*API, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0 // It would end watches too.
	losses := new(atomic.Int64)
	cfg.Wrap(func(t http.RoundTripper) http.RoundTripper { return transport{t, losses} })
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	b := cluster.NewBuilder()
	b.Know(o.Known)
	someNodes := o.NodeName != "" || o.SkipNodes
	b.Limit(cluster.Scope{
		ClassOnly: o.ClassOnly, ReadOnly: o.ReadOnly, NoSecrets: o.SkipSecrets, NoAdvertisements: o.SkipAdvertisements,
		SomeNodes: someNodes, L2Pending: o.L2 != L2Nothing || someNodes,
	})
	a := &API{
		config:   cfg,
		http:     h,
		log:      o.Log,
		metrics:  m,
		needs:    o.L2,
		losses:   losses,
		changed:  make(chan struct{}, 1),
		builder:  b,
		last:     b.Snapshot(),
		synced:   map[resource]<-chan struct{}{},
		troubles: map[resource]trouble{},
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	return a, nil
}

// start begins to watch what o asks for.
func (a *API) start(ctx context.Context, o Options) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(debugHandler{a.log.Handler()}))
	errs := []error{
		start[*corev1.Service](ctx, a, services),
		start[*v1alpha1.AddressPool](ctx, a, pools),
		start[*v1alpha1.BGPPeer](ctx, a, peers),
	}
	if !o.SkipSecrets {
		errs = append(errs, start[*corev1.Secret](ctx, a, secrets))
	}
	if !o.SkipAdvertisements {
		errs = append(errs, start[*v1alpha1.BGPAdvertisement](ctx, a, advertisements),
			start[*v1alpha1.L2Advertisement](ctx, a, l2Advertisements))
	}
	if !o.SkipClaims {
		errs = append(errs, start[*v1alpha1.AddressClaim](ctx, a, claims))
	}
	if !o.SkipEndpointSlices {
		errs = append(errs, start[*discoveryv1.EndpointSlice](ctx, a, endpointSlices))
	}
	if !o.SkipNamespaces {
		errs = append(errs, start[*corev1.Namespace](ctx, a, namespaces))
	}
	if !o.SkipServiceCIDRs {
		errs = append(errs, start[*networkingv1.ServiceCIDR](ctx, a, serviceCIDRs))
	}
	if !o.SkipNodes {
		r := nodes
		r.one = o.NodeName
		errs = append(errs, start[*corev1.Node](ctx, a, r))
	}
	return errors.Join(errs...)
}

// watchL2 watches what L2 needs, now or as soon as addresses may go over L2; it never
// stops again, since who has used L2 is likely to. A speaker that would decide before
// it has read that would take itself for the only candidate, and would let addresses
// go that it held before it was restarted; so it waits. A controller has more to do.
func (a *API) watchL2(ctx context.Context, needs L2Needs) error {
	if needs == L2Nothing {
		return nil
	}
	watch := func() error {
		err := a.startL2(ctx, needs)
		if err == nil {
			err = a.wait(ctx)
		}
		if err == nil {
			a.change((*cluster.Builder).ReadL2)
		}
		return err
	}
	a.mu.Lock()
	now := needs.now(a.builder)
	if !now || needs == L2Speakers {
		a.deepen = sync.OnceFunc(func() {
			go func() {
				if err := watch(); err != nil && ctx.Err() == nil {
					a.log.Error("API server: what L2 needs cannot be watched", "err", err)
				}
			}()
		})
	}
	a.mu.Unlock()
	if !now {
		return nil
	}
	if needs == L2Speakers {
		a.deepen()
		return nil
	}
	return watch()
}

func (a *API) startL2(ctx context.Context, needs L2Needs) error {
	var err error
	if a.synced[nodes] == nil {
		err = start[*corev1.Node](ctx, a, nodes)
	}
	if needs == L2Speakers {
		err = errors.Join(err, start[*discoveryv1.EndpointSlice](ctx, a, endpointSlices), start[*v1alpha1.SpeakerStatus](ctx, a, speakers))
	}
	return err
}

// wait returns when everything has been read once.
func (a *API) wait(ctx context.Context) error {
	var errs []error
	for r, synced := range a.synced {
		select {
		case <-synced:
		case <-ctx.Done():
			if !closed(synced) {
				errs = append(errs, fmt.Errorf("%s not read", r))
			}
		}
	}
	if len(errs) == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.healthProblems() {
		errs = append(errs, errors.New(p.String()))
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), errors.Join(errs...))
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Snapshot is what the API server has said so far. It is made when it is asked
// for: of a burst of changes only the last snapshot is.
func (a *API) Snapshot() *cluster.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.builder.Snapshot()
	if s != a.last {
		a.logProblems(s)
		a.last = s
	}
	return s
}

// logProblems logs the new Problems. Problems of the API server itself were logged when they
// began.
func (a *API) logProblems(s *cluster.Snapshot) {
	known := append(a.healthProblems(), a.last.Problems...)
	for _, p := range s.Problems {
		if !slices.Contains(known, p) {
			a.log.Warn("problem with an object", "err", p.String())
		}
	}
}

// Changed gets a value when there is another snapshot.
func (a *API) Changed() <-chan struct{} { return a.changed }

// change changes what is known, as a whole.
func (a *API) change(f func(*cluster.Builder)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.builder)
	if a.builder.Dirty() {
		notify.Changed(a.changed)
	}
	if a.deepen != nil && a.needs.now(a.builder) {
		a.deepen()
	}
}

// debugHandler passes client-go's log on at level debug only: what matters of it is a
// Problem, or was logged here.
type debugHandler struct{ slog.Handler }

func (m debugHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return m.Handler.Enabled(ctx, min(l, slog.LevelDebug))
}

func (m debugHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelDebug)
	return m.Handler.Handle(ctx, r)
}

func (m debugHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugHandler{m.Handler.WithAttrs(attrs)}
}
func (m debugHandler) WithGroup(name string) slog.Handler {
	return debugHandler{m.Handler.WithGroup(name)}
}
