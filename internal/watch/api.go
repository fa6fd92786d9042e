package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Options say what OpenAPI watches. The zero value watches everything. Each watch that is skipped
// saves the API server a connection, and this process the memory of the objects.
type Options struct {
	// Scope is that of the snapshots; OpenAPI sets SomeNodes and L2Pending. With ReadOnly, for speakers, neither
	// Namespaces nor ServiceCIDRs are watched: only a controller that allocates addresses reads them. With
	// NoSecrets, for processes without BGP sessions, Secrets are not watched.
	cluster.Scope
	// NodeName is the only Node to watch, empty for all. A speaker that uses only BGP needs no
	// other: in a large cluster most events are the kubelets' reports about Nodes.
	NodeName string
	// SkipEndpointSlices: snapshots have none.
	SkipEndpointSlices bool
	// L2 says what to watch additionally, as soon as addresses may be announced over L2.
	L2 L2Needs
	// Known are the last valid versions from before a restart, for objects that have a mistake now;
	// nil: none.
	Known *cluster.Configuration

	// Refused is called when the API server refuses a connection; nil: it is not. It must not block.
	Refused func()

	Log        *slog.Logger          // slog.Default when nil
	Registerer prometheus.Registerer // nil: metrics are not registered
}

// L2Needs says what is watched only if addresses may be announced over L2.
type L2Needs uint8

const (
	// L2Nothing: nothing more is watched.
	L2Nothing L2Needs = iota
	// L2Nodes: all Nodes, for speakers, because an election needs all candidates. They are also
	// watched as soon as addresses are aggregated: no aggregate may contain a Node's address.
	L2Nodes
	// L2Speakers: all Nodes, SpeakerStatuses and EndpointSlices, for controllers: to balance
	// addresses over nodes, they must know which nodes can have them.
	L2Speakers
)

// now reports whether to begin to watch them.
func (n L2Needs) now(b *cluster.Builder) bool { return b.MayUseL2() || n == L2Nodes && b.Aggregates() }

// An API is a Source that watches an API server.
//
// While the API server is unavailable, the last state stays in use, and a Problem says since when.
// Afterwards the watches continue where they were.
type API struct {
	config  *rest.Config
	http    *http.Client // one, so that all watches share a connection
	log     *slog.Logger
	metrics *metrics
	needs   L2Needs
	refused func() // Options.Refused
	// namespace of the Secrets that peers name
	namespace string
	changed   chan struct{}
	// synced has a channel for each resource that is closed after its first complete read.
	synced map[resource]<-chan struct{}

	life context.Context // of the watches

	mu       sync.Mutex
	builder  *cluster.Builder
	last     *cluster.Snapshot
	problems *problemLog
	failures map[resource]readFailure // of the resources that cannot be read now
	outage   readFailure              // the first failure that lasts of an API server which does not answer
	// watchMore begins to watch what L2 needs; nil until everything else is read, and after it was
	// called.
	watchMore func()
	secrets   map[string]context.CancelFunc // ends of the watches on Secrets, by name; nil: not begun
}

// OpenAPI watches the API server until ctx ends. It returns once everything was read, however long
// that takes, or when ctx ends: then the error says what could not be read and why.
func OpenAPI(ctx context.Context, cfg *rest.Config, o Options) (a *API, err error) {
	began := time.Now()
	ctx, stop := context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			stop(err)
		}
	}()
	if a, err = newAPI(cfg, o); err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	a.life = klog.NewContext(ctx, clientLog(a.log))
	begin := func(ctx context.Context) error { return a.start(ctx, o) }
	for _, step := range []func(context.Context) error{begin, a.wait, a.startSecrets, a.watchL2} {
		if err := step(a.life); err != nil {
			return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
		}
	}
	s := a.Snapshot()
	a.log.Info("API server read", "host", cfg.Host, "services", s.Services.Len(), "nodes", len(s.Nodes), "pools",
		len(s.Pools), "peers", len(s.Peers), "advertisements", len(s.Advertisements)+len(s.L2Advertisements), "claims",
		s.Claims.Len(), "problems", len(s.Problems), "took", time.Since(began).Round(time.Millisecond))
	return a, nil
}

// newAPI returns an API that has sent no request yet. Its snapshot is empty.
func newAPI(cfg *rest.Config, o Options) (*API, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0 // It would end watches too.
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
	o.SomeNodes = o.NodeName != ""
	o.L2Pending = o.L2 != L2Nothing || o.SomeNodes
	b.Limit(o.Scope)
	a := &API{
		config:    cfg,
		http:      h,
		log:       o.Log,
		metrics:   m,
		needs:     o.L2,
		refused:   o.Refused,
		namespace: cmp.Or(o.Namespace, cluster.DefaultNamespace),
		changed:   make(chan struct{}, 1),
		builder:   b,
		last:      b.Snapshot(),
		synced:    map[resource]<-chan struct{}{},
		failures:  map[resource]readFailure{},
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	if a.refused == nil {
		a.refused = func() {}
	}
	a.problems = newProblemLog(a.log, "problem with an object")
	return a, nil
}

// start begins to watch what o specifies. It sends the first requests, and does not wait for the
// answers.
func (a *API) start(ctx context.Context, o Options) error {
	node := nodes
	node.one = o.NodeName
	var errs []error
	for _, w := range []struct {
		skip     bool
		start    func(context.Context, *API, resource) error
		resource resource
	}{
		{false, start[*corev1.Service], services},
		{false, start[*v1alpha1.AddressPool], pools},
		{false, start[*v1alpha1.BGPPeer], peers},
		{false, start[*v1alpha1.BGPAdvertisement], advertisements},
		{false, start[*v1alpha1.L2Advertisement], l2Advertisements},
		{false, start[*v1alpha1.AddressClaim], claims},
		{o.SkipEndpointSlices, start[*discoveryv1.EndpointSlice], endpointSlices},
		{o.ReadOnly, start[*corev1.Namespace], namespaces},
		{o.ReadOnly, start[*networkingv1.ServiceCIDR], serviceCIDRs},
		{false, start[*corev1.Node], node},
	} {
		if !w.skip {
			errs = append(errs, w.start(ctx, a, w.resource))
		}
	}
	return errors.Join(errs...)
}

// watchL2 watches what L2 needs, now or as soon as addresses may be announced over L2. It never
// stops again: a cluster that has used L2 is likely to use it again. A speaker waits until it has
// read everything: otherwise it would be the only candidate that it knows, or would release
// addresses that it held before its restart. A controller does not wait: it has BGP addresses to
// allocate.
func (a *API) watchL2(ctx context.Context) error {
	if a.needs == L2Nothing {
		return nil
	}
	watch := func() error {
		err := a.startL2(ctx)
		if err == nil {
			err = a.wait(ctx)
		}
		if err == nil {
			a.change((*cluster.Builder).ReadL2)
		}
		return err
	}
	a.mu.Lock()
	now := a.needs.now(a.builder)
	if !now || a.needs == L2Speakers {
		a.watchMore = sync.OnceFunc(func() {
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
	if a.needs == L2Speakers {
		a.watchMore()
		return nil
	}
	return watch()
}

// startL2 begins to watch what a.needs adds to start.
func (a *API) startL2(ctx context.Context) error {
	var err error
	if a.synced[nodes] == nil {
		err = start[*corev1.Node](ctx, a, nodes)
	}
	if a.needs == L2Speakers {
		err = errors.Join(err, start[*discoveryv1.EndpointSlice](ctx, a, endpointSlices),
			start[*v1alpha1.SpeakerStatus](ctx, a, speakers))
	}
	return err
}

// wait returns once everything was read. If ctx ends first, the error names the unread resources,
// and why.
func (a *API) wait(ctx context.Context) error {
	var errs []error
	for r, synced := range a.synced {
		select {
		case <-synced:
			continue
		case <-ctx.Done():
		}
		select {
		case <-synced: // both
		default:
			errs = append(errs, fmt.Errorf("%s not read", r))
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

// Snapshot is made of all objects read so far. It is made on demand, so that a burst of changes
// costs one snapshot. New Problems are logged; those of the API server itself are logged when they
// begin.
func (a *API) Snapshot() *cluster.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.builder.Snapshot()
	if s != a.last {
		known := a.healthProblems()
		a.problems.write(slices.DeleteFunc(slices.Clone(a.builder.NewProblems()),
			func(p cluster.Problem) bool { return slices.Contains(known, p) }), time.Now())
		a.last = s
	}
	return s
}

// Changed receives a value when there is another snapshot.
func (a *API) Changed() <-chan struct{} { return a.changed }

// change makes f write to the Builder, and notifies readers once. No snapshot contains a part of
// the change.
func (a *API) change(f func(*cluster.Builder)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.builder)
	a.watchSecrets()
	if a.builder.Dirty() {
		notify.Changed(a.changed)
	}
	if a.watchMore != nil && a.needs.now(a.builder) {
		a.watchMore()
	}
}

// clientLog logs the messages of client-go at level Debug: the important ones are Problems, or are
// logged by this package.
func clientLog(log *slog.Logger) logr.Logger {
	verbosity := 0
	if log.Enabled(context.Background(), slog.LevelDebug) {
		verbosity = 4 // client-go's messages for developers
	}
	write := func(prefix, args string) { log.Debug("client-go", "logger", prefix, "line", args) }
	return funcr.New(write, funcr.Options{Verbosity: verbosity})
}
