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
	"golang.org/x/time/rate"
)

// How many frames that nobody asked for are sent in a second, and without a pause. A
// thousand IPv4 addresses taken at once are told in a quarter of a second, and in the other
// form of ARP in another one. Switches that look into ARP on their CPU take a thousand a
// second and more; what they drop comes again.
const (
	framesPerSecond = 4000
	frameBurst    = 64
	// refreshCost makes refreshing, which is in no hurry, slower than the rest.
	refreshCost = 20
)

// How a conflict about an address that is held goes on. It is RFC 5227 §2.4 (b): the first
// is answered by one announcement, which is enough if it was a stray packet or a node that
// has just lost the address; on a second within defendInterval the address is given up and
// probed again later, since two that both keep it would serve nobody. Neighbor Discovery
// has no rule; it gets the same.
const (
	defendInterval = 10 * time.Second
	// peaceTime is how long an address must be held for old conflicts not to count when
	// the next pause is chosen.
	conflictMemory = 10 * time.Minute
)

// Options are what an Announcer is made with.
type Options struct {
	Logger     *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics
	// Refresh announces each address again and again, this long after it did last, for
	// switches that forget a port sooner than hosts behind them forget a neighbour; 0:
	// never.
	Refresh time.Duration
}

// An Announcer does what a State says. All its methods can be called at any time and from
// any goroutine.
type Announcer struct {
	log     *slog.Logger
	metrics *metrics
	changed chan struct{}
	sendRate    *rate.Limiter

	// setting is held during Set and Close. What they alone use follows.
	setMu sync.Mutex
	closed  bool
	applied   *State // the last State as it came
	quit    context.CancelFunc
	running sync.WaitGroup

	worker *worker // nil until the first Set

	// mu protects the rest, and what is in addresses and ports unless they say
	// otherwise. A packet is decided about and answered while it is held: when Set has
	// returned, nothing more is said about an address that it gave up. Nobody waits for
	// anything while it is held.
	mu         sync.Mutex
	wake       chan struct{} // the schedule has something new
	want       State         // that part of the last State in which there is no fault
	addresses  map[netip.Addr]*address
	knownNodes        map[MAC]netip.Addr // nodes of the State that were found to be behind conflicts
	schedule     schedule
	interfaces []Interface
	faults     []error           // of the last State
	failures     map[portKey]error // what could not be done, and is tried again
	have       []netip.Addr
}

// An address is one of the State.
type address struct {
	want   Address
	phase  Phase
	since  time.Time
	claims []claim // where it is answered for, or asked about; one for each port
	// unsure says that it may be somebody else's: it must be probed first.
	needsProbe bool
	timer   *timer // probing, or waiting to; nil: none

	conflict *Conflict
	defended time.Time // when it was announced because of a conflict
	strikes  int       // how often it was given up
}

// A claim is an address on a port.
type claim struct {
	port *port
	timer *timer // announcing; nil: none
}

// New returns an Announcer that does nothing and has nothing open until the first Set.
func New(o Options) *Announcer {
	a := &Announcer{
		log:       o.Logger,
		metrics:   newMetrics(),
		changed:   make(chan struct{}, 1),
		wake:      make(chan struct{}, 1),
		sendRate:      rate.NewLimiter(framesPerSecond, frameBurst),
		addresses: make(map[netip.Addr]*address),
		knownNodes:       make(map[MAC]netip.Addr),
		schedule:    schedule{delays: defaultDelays(o.Refresh)},
		failures:    make(map[portKey]error),
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(&collector{a})
	}
	return a
}

// Changed gets a value after Set would return, or Status say, something else than before, and
// after an interface that has a subnet has changed. It has room for one, so that nobody waits
// for the reader.
func (a *Announcer) Changed() <-chan struct{} { return a.changed }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Set makes want the state of this node, in the network namespace of the first call's
// thread. It does as much as possible and returns, also with an error, the addresses that
// are answered for now, sorted. Those being probed are not yet among them; Set does not wait
// for that, nor for announcements: Changed tells when there are more or fewer. An error is
// about what is wrong in want, or what could not be done, which is tried again every
// second.
//
// When Set returns, nothing more is sent about an address that was left out.
//
// Set with what it was called with before costs a comparison. The caller must not write to
// the returned slice nor, from then on, to want.
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
			return a.held(), err
		}
		a.applied = &want
	}
	return a.held(), a.errors()
}

func sameSlice[T any](x, y []T) bool {
	return len(x) == len(y) && (len(x) == 0 || &x[0] == &y[0])
}

// holding is what Set returns: the same slice as long as it is the same.
func (a *Announcer) held() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	var have []netip.Addr
	for _, w := range a.want.Addresses {
		if x := a.addresses[w.Addr]; x.phase == Held {
			have = append(have, w.Addr)
		}
	}
	if !slices.Equal(have, a.have) {
		a.have = have
	}
	return a.have
}

// trouble is what is wrong with the State, and what could not be done.
func (a *Announcer) errors() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	errs := slices.Clone(a.faults)
	for _, k := range slices.SortedFunc(maps.Keys(a.failures), portKey.compare) {
		errs = append(errs, a.failures[k])
	}
	return errors.Join(errs...)
}

// Interfaces are those of this node that addresses can be answered for on, sorted by name.
// There are none before the first Set, for which an empty State will do.
func (a *Announcer) Interfaces() []Interface {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.interfaces
}

// Close stops answering and announcing. It waits until nothing runs any more, or ctx ends.
// Neither protocol has a word for that an address is no longer here: neighbours send to this
// node until another one announces it. A closed Announcer cannot be used again.
func (a *Announcer) Close(ctx context.Context) error {
	a.setMu.Lock()
	defer a.setMu.Unlock()
	a.closed = true
	if a.worker == nil {
		return nil
	}
	_ = a.worker.do(ctx, func() { a.setState(State{}) }) // an error is that of ctx, below
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

// check separates what can be done from what is wrong.
func check(s State) (good State, faults []error) {
	good.Speakers, good.Nodes = s.Speakers, s.Nodes
	good.Addresses = make([]Address, 0, len(s.Addresses))
	var last netip.Addr
	for _, x := range s.Addresses {
		switch fault := x.fault(); {
		case fault != "":
			faults = append(faults, fmt.Errorf("address %s: %s", x.Addr, fault))
		case last.IsValid() && x.Addr == last:
			faults = append(faults, fmt.Errorf("address %s: twice in the State", x.Addr))
		case last.IsValid() && x.Addr.Less(last):
			faults = append(faults, fmt.Errorf("address %s: after %s: want them sorted", x.Addr, last))
		default:
			good.Addresses = append(good.Addresses, x)
			last = x.Addr
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
	a.running.Go(func() { a.sendScheduled(ctx) })
	return nil
}
