package l2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The rate of unsolicited frames, and the burst. A thousand IPv4 addresses are announced in
// a quarter of a second, and in ARP's other form in another quarter. Switches that inspect
// ARP on their CPU accept a thousand frames a second and more; dropped ones are repeated.
const (
	framesPerSecond = 4000
	frameBurst      = 64
	// refreshCost makes refreshing slower than the rest: it is not urgent.
	refreshCost = 20
)

// How a conflict about a held address goes on, by RFC 5227 §2.4. The first conflict is
// answered by one announcement, which is enough for a stray packet or a node that has just
// lost the address. After another one within defendInterval, the address is kept silently
// (c), because two hosts that answer each other's announcements flood the link; or, if it
// yields, it is given up and probed again later (b). Neighbor Discovery has no rule and gets
// the same.
const (
	defendInterval = 10 * time.Second
	// conflictMemory is how long an address must be held for earlier conflicts to be
	// forgotten when the next retry delay is chosen.
	conflictMemory = 10 * time.Minute
)

// Options configure an Announcer.
type Options struct {
	Logger     *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics
	// Refresh repeats the announcement of each address at this interval, for switches whose
	// MAC table expires before the neighbour tables of hosts behind them; 0: never.
	Refresh time.Duration
}

// An Announcer applies a State. Its methods are safe for concurrent use.
type Announcer struct {
	log     *slog.Logger
	metrics *metrics
	changed chan struct{}
	phases  *phases

	// setMu is held during Set and Close, and protects the fields below up to those of phases.mu.
	setMu   sync.Mutex
	closed  bool
	applied *State // the last State that was applied, as passed to Set
	quit    context.CancelFunc
	running sync.WaitGroup

	worker *worker // nil until the first Set

	// phases.mu protects the fields below.
	want       State              // the valid part of the last State
	knownNodes map[MAC]netip.Addr // nodes of the State that caused conflicts
	interfaces []Interface
	faults     []error             // of the last State
	failures   map[socketKey]error // what could not be done, and is retried
}

// New returns an Announcer. It opens nothing until the first Set.
func New(o Options) *Announcer {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	m, changed := newMetrics(), make(chan struct{}, 1)
	a := &Announcer{
		log: o.Logger, metrics: m, changed: changed, phases: newPhases(o.Logger, m, changed, o.Refresh),
		knownNodes: make(map[MAC]netip.Addr), failures: make(map[socketKey]error),
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(m.packets, m.gratuitous, m.probes, m.conflicts, m.sendErrors, collector{a.phases})
	}
	return a
}

// Changed receives a value when the result of Set or Status changes, and when an interface
// with a subnet changes. The channel holds one value, so that sending never blocks.
func (a *Announcer) Changed() <-chan struct{} { return a.changed }

// Set applies want, in the network namespace of the first call's thread. It does as much as
// possible and returns, even with an error, the addresses that are held now, sorted.
// Addresses that are still probed are not among them, although requests for them may be
// answered: Set does not wait for probes or announcements, and Changed signals when there
// are more or fewer. The error says what is
// invalid in want, and what could not be done and is retried every second.
//
// When Set returns, no more frames are sent for an address that want leaves out.
//
// Calling Set again with an equal State costs a comparison. The caller must not modify the
// returned slice, nor want after the call.
func (a *Announcer) Set(ctx context.Context, want State) (have []netip.Addr, err error) {
	a.setMu.Lock()
	defer a.setMu.Unlock()
	if a.closed {
		return nil, errors.New("layer 2 is closed")
	}
	if a.worker == nil {
		if err := a.start(); err != nil {
			return nil, err
		}
	}
	if a.applied == nil || !a.applied.equal(want) {
		a.applied = nil
		if err := a.worker.do(ctx, func() { a.setState(want) }); err != nil {
			return a.phases.held(), err
		}
		a.applied = &want
	}
	return a.phases.held(), a.errors()
}

// errors returns what is invalid in the State, and what could not be done.
func (a *Announcer) errors() error {
	a.phases.mu.Lock()
	defer a.phases.mu.Unlock()
	errs := slices.Clone(a.faults)
	for _, k := range slices.SortedFunc(maps.Keys(a.failures), socketKey.compare) {
		errs = append(errs, a.failures[k])
	}
	return errors.Join(errs...)
}

// Interfaces returns the interfaces of this node that can answer for addresses, sorted by
// name. It returns nil before the first Set; Set with an empty State is enough.
func (a *Announcer) Interfaces() []Interface {
	a.phases.mu.Lock()
	defer a.phases.mu.Unlock()
	return a.interfaces
}

// Close stops answering and announcing. It waits until all goroutines have ended, or ctx
// ends. Neither protocol can withdraw an address: neighbours send to this node until
// another one announces it. A closed Announcer cannot be used again.
func (a *Announcer) Close(ctx context.Context) error {
	a.setMu.Lock()
	defer a.setMu.Unlock()
	a.closed = true
	if a.worker == nil {
		return nil
	}
	_ = a.worker.do(ctx, func() { a.setState(State{}) }) // ctx.Err, which is returned below
	a.quit()
	done := make(chan struct{})
	go func() { a.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// check separates the valid addresses from what is invalid.
func check(s State) (good State, faults []error) {
	good = s // shares Addresses while they are valid, which is nearly always
	good.Addresses = nil
	var last netip.Addr
	for i, x := range s.Addresses {
		switch fault := x.fault(); {
		case fault != "":
			faults = append(faults, fmt.Errorf("address %s: %s", x.Addr, fault))
		case last.IsValid() && x.Addr == last:
			faults = append(faults, fmt.Errorf("address %s: twice in the State", x.Addr))
		case last.IsValid() && x.Addr.Less(last):
			faults = append(faults, fmt.Errorf("address %s: after %s: want them sorted", x.Addr, last))
		case len(good.Addresses) == i:
			good.Addresses, last = s.Addresses[:i+1:i+1], x.Addr
		default:
			good.Addresses, last = append(good.Addresses, x), x.Addr
		}
	}
	return good, faults
}

func (a *Announcer) start() error {
	k, err := newWorker()
	if err != nil {
		return err
	}
	ctx, quit := context.WithCancel(context.Background())
	a.worker, a.quit = k, quit
	a.running.Go(func() { a.runWorker(ctx) })
	a.running.Go(func() { a.phases.sendScheduled(ctx) })
	return nil
}
