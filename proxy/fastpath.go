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
// It may be nil: no fast path. All but status belongs to the goroutine in Set.
type offloader struct {
	open       OpenFastPath
	ended      func([]fastpath.Flow)
	log        *slog.Logger
	requestSet func() // asks the caller for a Set

	from   State // what want is made of, as far as VIPs and what is shared go
	want   fastpath.State
	chosen *selection // of from's node
	due    time.Time  // before which it is not opened again
	retry  *time.Timer

	mu        sync.Mutex
	path      FastPath // nil until it could be opened
	err       string   // why it does not work as wanted
	offloaded int      // the frontends of want with Take
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
func (b *offloader) shrink(ctx context.Context, want State) {
	if b == nil {
		return
	}
	b.render(want)
	if b.path == nil {
		if time.Now().Before(b.due) {
			return
		}
		if err := b.begin(ctx); err != nil {
			b.report(ctx, err)
			return
		}
	}
	if err := b.path.Shrink(ctx, b.want); err != nil {
		b.report(ctx, errors.Join(err, b.rest(ctx)))
	}
}

// grow must be called when the rules are those of the State that shrink was called with. It
// also finds and repairs changes by other programs.
func (b *offloader) grow(ctx context.Context) {
	if b == nil || b.path == nil {
		return
	}
	err := b.path.Grow(ctx, b.want)
	if err != nil {
		err = errors.Join(err, b.rest(ctx))
	}
	b.report(ctx, err)
}

// rest leaves all new flows to the rules: the part of a change that was made is not known.
func (b *offloader) rest(ctx context.Context) error {
	nothing := b.want
	nothing.VIPs = make([]*fastpath.VIP, len(b.want.VIPs))
	for i, v := range b.want.VIPs {
		nothing.VIPs[i] = &fastpath.VIP{Addr: v.Addr} // and flows stay
	}
	if err := b.path.Shrink(ctx, nothing); err != nil {
		return fmt.Errorf("new flows may go to backends that are gone: %w", err)
	}
	return nil
}

// render makes b.want from a State. Most calls find nothing changed.
func (b *offloader) render(s State) {
	same := b.chosen != nil && s.Node == b.from.Node && len(state.DiffVIPs(b.from.VIPs, s.VIPs)) == 0 && slices.Equal(s.Outward, b.from.Outward) && state.SameShared(s, b.from)
	if same {
		return
	}
	if b.chosen == nil || s.Node != b.from.Node {
		b.chosen = newSelection(s.Node)
	}
	want := b.chosen.state(&s)
	if slices.Equal(want.Outward, b.want.Outward) {
		want.Outward = b.want.Outward // which tells the fast path that nothing is new about it
	}
	b.from, b.want = s, want
	b.mu.Lock()
	defer b.mu.Unlock()
	b.offloaded = b.chosen.offloaded
}

// forget has the fast path forget connections to some VIPs that have ended, if it runs.
func (b *offloader) forget(ctx context.Context, of map[netip.Addr]bool) error {
	if b == nil || b.path == nil {
		return nil
	}
	if err := b.path.Forget(ctx, of); err != nil {
		return fmt.Errorf("fast path: %w", err)
	}
	return nil
}

func (b *offloader) begin(ctx context.Context) error {
	path, err := b.open(ctx, b.ended)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.path = path
	return nil
}

// report stores and logs an error, nil if there is none.
func (b *offloader) report(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	b.mu.Lock()
	was := b.err
	b.err = text
	b.mu.Unlock()
	if b.retry != nil {
		b.retry.Stop()
	}
	if err != nil {
		b.due = time.Now().Add(offloadRetry)
		b.retry = time.AfterFunc(offloadRetry, b.requestSet)
	}
	switch {
	case text == was:
	case err != nil:
		b.log.WarnContext(ctx, "the fast path leaves new flows to the rules", "err", err)
	default:
		b.log.InfoContext(ctx, "the fast path takes flows again")
	}
}

// status tells what of the frontends of a State is taken.
func (b *offloader) status(have State) *FastPathStatus {
	if b == nil {
		return nil
	}
	st, p, works := b.outline()
	left := leftToRules(&have)
	for _, l := range p.NotOffloaded {
		left[frontendKey{l.Addr, Protocol(l.Protocol)}] = l.Why
	}
	st.Frontends = 0
	for v := range have.VIPs.All() {
		for i := range v.Frontends {
			f := &v.Frontends[i]
			if f.External.Empty() {
				continue // no backend has its flows
			}
			why := left[keyOf(f, v)]
			if why == "" && !works {
				why = "the fast path does not work"
			}
			if why == "" {
				st.Frontends++
			} else {
				st.NotOffloaded = append(st.NotOffloaded, NotOffloaded{strings.TrimSpace(f.Label(v) + " " + f.Name), why})
			}
		}
	}
	return st
}

// outline is a status without the list of frontends that are left: it looks at no frontend. works says
// whether new flows are taken at all.
func (b *offloader) outline() (st *FastPathStatus, p fastpath.Status, works bool) {
	b.mu.Lock()
	path, err, taken := b.path, b.err, b.offloaded
	b.mu.Unlock()
	st = &FastPathStatus{Error: err}
	if path == nil {
		return st, p, false
	}
	p = path.Status()
	st.Interfaces, st.Flows, st.Capacity, st.Full, st.Repairs, st.Found = p.Interfaces, p.Flows, p.Capacity, p.Full, p.Repairs, p.Found
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
func (b *offloader) register(r prometheus.Registerer) error {
	if b == nil || r == nil {
		return nil
	}
	count := func() *FastPathStatus { st, _, _ := b.outline(); return st }
	gauge := func(name, help string, value func(*FastPathStatus) float64) error {
		return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "fanfare", Subsystem: "proxy", Name: name, Help: help},
			func() float64 { return value(count()) }))
	}
	return errors.Join(
		gauge("fast_path_frontends", "Frontends whose new flows the fast path takes.", func(s *FastPathStatus) float64 { return float64(s.Frontends) }),
		gauge("fast_path_flows", "Flows that go past netfilter by the fast path.", func(s *FastPathStatus) float64 { return float64(s.Flows) }),
		gauge("fast_path_capacity", "Flows for which the fast path has room.", func(s *FastPathStatus) float64 { return float64(s.Capacity) }),
		gauge("fast_path_limited_addresses", "Addresses that have as many flows in the fast path as they may have.", func(s *FastPathStatus) float64 { return float64(len(s.Limited)) }),
		r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "fast_path_full_total",
			Help: "New flows that the fast path left to the rules, since it had no room for another flow of their address.",
		}, func() float64 { return float64(count().Full) })),
	)
}

func (b *offloader) close() error {
	if b == nil {
		return nil
	}
	if b.retry != nil {
		b.retry.Stop()
	}
	if b.path == nil {
		return nil
	}
	return b.path.Close()
}
