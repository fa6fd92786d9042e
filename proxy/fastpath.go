package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A FastPath takes flows past netfilter; [fastpath.Path] does. What it does not take
// meets the rules, which are as complete as without it.
type FastPath interface {
	// Shrink stops new flows to what is not in want. No flow ends.
	Shrink(ctx context.Context, want fastpath.State) error
	// Grow takes new flows of all that is in want, and ends flows that are no longer allowed.
	// It checks that everything is still in the kernel, and repairs it.
	Grow(ctx context.Context, want fastpath.State) error
	// Forget deletes what is known of connections to some VIPs that have ended.
	Forget(ctx context.Context, vips map[netip.Addr]bool) error
	Status() fastpath.Status
	// Close leaves what is in the kernel there.
	Close() error
}

// OpenFastPath begins with what the kernel has of an earlier process, or with nothing.
// Connections that ended because their backend or their address went are passed to ended.
type OpenFastPath func(ctx context.Context, ended func([]fastpath.Flow)) (FastPath, error)

// offloadRetry is when something of the fast path that failed is tried again.
const offloadRetry = 5 * time.Second

// An offloader keeps the fast path in step with the rules, so that it never sends where the rules
// would not. Its errors do not fail a Set: they are in the status, new flows are left
// to the rules until it works, and flows that it has stay where they are.
//
// It may be nil: no fast path. What has no lock belongs to the goroutine in Set.
type offloader struct {
	open       OpenFastPath
	ended      func([]fastpath.Flow)
	log        *slog.Logger
	requestSet func() // asks the caller for a Set

	from  State // what want is made of, as far as VIPs and what is shared go
	want  fastpath.State
	due   time.Time // before which it is not opened again
	retry *time.Timer

	mu     sync.Mutex
	path   FastPath   // nil until it could be opened
	err    string     // why it does not work as wanted
	chosen *selection // of from's node; nil before the first State
}

// A FastPathStatus is what of the traffic goes past netfilter.
type FastPathStatus struct {
	// Interfaces are those on which it is looked for.
	Interfaces []string `json:"interfaces,omitempty"`
	// Frontends counts the frontends whose new flows are taken, NotOffloaded lists the others.
	Frontends    int            `json:"frontends"`
	NotOffloaded []NotOffloaded `json:"left,omitempty"`
	// Flows are there now, of Capacity at most. Full counts the flows that were left to the
	// rules for lack of room, in the table or for another flow of their address.
	Flows    int    `json:"flows"`
	Capacity int    `json:"capacity"`
	Full     uint64 `json:"full"`
	// Limited are the addresses that have as many flows as they may have.
	Limited []LimitedAddress `json:"limited,omitempty"`
	// Error is why new flows are left to the rules, or may be.
	Error string `json:"error,omitempty"`
	// Repairs counts how often another program had removed a part of it. Found says what, the
	// last time.
	Repairs uint64 `json:"repairs,omitempty"`
	Found   string `json:"found,omitempty"`
}

// A LimitedAddress has as many flows in the fast path as there is room for flows of others.
type LimitedAddress struct {
	Addr     netip.Addr `json:"addr"`
	Flows    int        `json:"flows"`
	Rejected uint64     `json:"rejected"` // new flows that the rules got instead
}

// A NotOffloaded is a frontend that the fast path leaves to the rules.
type NotOffloaded struct {
	Frontend string `json:"frontend"` // such as "192.0.2.1 tcp/80 shop/web:http"
	Why      string `json:"why"`
}

// newOffloader returns nil if open is nil.
func newOffloader(open OpenFastPath, ended func([]fastpath.Flow), log *slog.Logger, requestSet func()) *offloader {
	if open == nil {
		return nil
	}
	return &offloader{open: open, ended: ended, log: log, requestSet: requestSet}
}

// shrink must be called before the rules change: frontends that want changes take
// no new flows until grow.
func (o *offloader) shrink(ctx context.Context, want State) {
	if o == nil {
		return
	}
	o.render(want)
	if o.path == nil {
		if time.Now().Before(o.due) {
			return
		}
		if err := o.begin(ctx); err != nil {
			o.report(ctx, err)
			return
		}
	}
	if err := o.path.Shrink(ctx, o.want); err != nil {
		o.report(ctx, errors.Join(err, o.rest(ctx)))
	}
}

// grow must be called when the rules are those of the State that shrink was called with. It
// also finds and repairs changes by other programs.
func (o *offloader) grow(ctx context.Context) {
	if o == nil || o.path == nil {
		return
	}
	err := o.path.Grow(ctx, o.want)
	if err != nil {
		err = errors.Join(err, o.rest(ctx))
	}
	o.report(ctx, err)
}

// rest leaves all new flows to the rules: the part of a change that was made is not known.
func (o *offloader) rest(ctx context.Context) error {
	nothing := o.want
	nothing.VIPs = make([]*fastpath.VIP, len(o.want.VIPs))
	for i, v := range o.want.VIPs {
		nothing.VIPs[i] = &fastpath.VIP{Addr: v.Addr} // and flows stay
	}
	if err := o.path.Shrink(ctx, nothing); err != nil {
		return fmt.Errorf("new flows may go to backends that are gone: %w", err)
	}
	return nil
}

// render makes o.want from a State. Most calls find nothing changed.
func (o *offloader) render(s State) {
	same := o.chosen != nil && s.Node == o.from.Node && len(state.DiffVIPs(o.from.VIPs, s.VIPs)) == 0 &&
		slices.Equal(s.Outward, o.from.Outward) && state.SameShared(s, o.from)
	if same {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.chosen == nil || s.Node != o.from.Node {
		o.chosen = newSelection(s.Node)
	}
	want := o.chosen.state(&s)
	if slices.Equal(want.Outward, o.want.Outward) {
		want.Outward = o.want.Outward // which tells the fast path that nothing is new about it
	}
	o.from, o.want = s, want
}

// forget has the fast path forget connections to some VIPs that have ended, if it runs.
func (o *offloader) forget(ctx context.Context, of map[netip.Addr]bool) error {
	if o == nil || o.path == nil {
		return nil
	}
	if err := o.path.Forget(ctx, of); err != nil {
		return fmt.Errorf("fast path: %w", err)
	}
	return nil
}

func (o *offloader) begin(ctx context.Context) error {
	path, err := o.open(ctx, o.ended)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.path = path
	return nil
}

// report stores and logs an error, nil if there is none.
func (o *offloader) report(ctx context.Context, err error) {
	text := errorText(err)
	o.mu.Lock()
	was := o.err
	o.err = text
	o.mu.Unlock()
	if o.retry != nil {
		o.retry.Stop()
	}
	if err != nil {
		o.due = time.Now().Add(offloadRetry)
		o.retry = time.AfterFunc(offloadRetry, o.requestSet)
	}
	switch {
	case text == was:
	case err != nil:
		o.log.WarnContext(ctx, "the fast path leaves new flows to the rules", "err", err)
	default:
		o.log.InfoContext(ctx, "the fast path takes flows again")
	}
}

// status tells what of the frontends of a State is taken.
func (o *offloader) status(have State) *FastPathStatus {
	if o == nil {
		return nil
	}
	st, p, works := o.outline()
	full := make(map[frontendKey]string)
	for _, l := range p.NotOffloaded {
		full[frontendKey{l.Addr, Protocol(l.Protocol)}] = l.Why
	}
	st.Frontends = 0
	for v := range have.VIPs.All() {
		o.mu.Lock() // for one VIP at a time: Set waits for it
		for i := range v.Frontends {
			f := &v.Frontends[i]
			if f.External.Empty() {
				continue // no backend has its flows
			}
			key := keyOf(f, v)
			why := full[key]
			if why == "" {
				why = o.chosen.why(key)
			}
			if why == "" && !works {
				why = "the fast path does not work"
			}
			if why == "" {
				st.Frontends++
			} else {
				name := strings.TrimSpace(f.Label(v) + " " + f.Name)
				st.NotOffloaded = append(st.NotOffloaded, NotOffloaded{name, why})
			}
		}
		o.mu.Unlock()
	}
	return st
}

// outline is a status without the list of frontends that are left: it looks at no frontend. works says
// whether new flows are taken at all.
func (o *offloader) outline() (st *FastPathStatus, p fastpath.Status, works bool) {
	o.mu.Lock()
	path, err, taken := o.path, o.err, 0
	if o.chosen != nil {
		taken = o.chosen.offloaded
	}
	o.mu.Unlock()
	st = &FastPathStatus{Error: err}
	if path == nil {
		return st, p, false
	}
	p = path.Status()
	st.Interfaces, st.Flows, st.Capacity, st.Full, st.Repairs, st.Found = p.Interfaces, p.Flows, p.Capacity, p.Full,
		p.Repairs, p.Found
	for _, l := range p.Limited {
		st.Limited = append(st.Limited, LimitedAddress(l))
	}
	if err != "" {
		return st, p, false
	}
	st.Error, st.Frontends = strings.Join(p.Problems, "; "), max(taken-len(p.NotOffloaded), 0)
	return st, p, true
}

// register has Prometheus ask for numbers.
func (o *offloader) register(r prometheus.Registerer) error {
	if o == nil || r == nil {
		return nil
	}
	count := func() *FastPathStatus { st, _, _ := o.outline(); return st }
	gauge := func(name, help string, value func(*FastPathStatus) float64) error {
		return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: name, Help: help,
		},
			func() float64 { return value(count()) }))
	}
	return errors.Join(
		gauge("fast_path_frontends", "Frontends whose new flows the fast path takes.",
			func(s *FastPathStatus) float64 { return float64(s.Frontends) }),
		gauge("fast_path_flows", "Flows that go past netfilter by the fast path.",
			func(s *FastPathStatus) float64 { return float64(s.Flows) }),
		gauge("fast_path_capacity", "Flows for which the fast path has room.",
			func(s *FastPathStatus) float64 { return float64(s.Capacity) }),
		gauge("fast_path_limited_addresses", "Addresses that have as many flows in the fast path as they may have.",
			func(s *FastPathStatus) float64 { return float64(len(s.Limited)) }),
		r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "fast_path_full_total",
			Help: "New flows that the fast path left to the rules, since it had no room for another " +
				"flow of their address.",
		}, func() float64 { return float64(count().Full) })),
	)
}

func (o *offloader) close() error {
	if o == nil {
		return nil
	}
	if o.retry != nil {
		o.retry.Stop()
	}
	if o.path == nil {
		return nil
	}
	return o.path.Close()
}
