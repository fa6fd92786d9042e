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

	"github.com/fanfare-lb/fanfare/internal/sortedset"
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
	log      *slog.Logger
	metrics  *metrics
	changed  chan struct{}
	sendRate *rate.Limiter
	// requestLifetime is repeatTime. Tests whose hosts repeat no request set a longer one.
	requestLifetime time.Duration

	// setMu is held during Set and Close, and protects the fields below up to mu.
	setMu   sync.Mutex
	closed  bool
	applied *State // the last State that was applied, as passed to Set
	quit    context.CancelFunc
	running sync.WaitGroup

	worker *worker // nil until the first Set

	// mu protects the fields below, and those of addresses and sockets unless they say
	// otherwise. A packet is decided about and answered under mu, so that no frame is sent
	// for an address after the Set that removed it. Never block while holding it.
	mu         sync.Mutex
	wake       chan struct{} // signals a new timer in the schedule
	want       State         // the valid part of the last State
	addresses  map[netip.Addr]*address
	knownNodes map[MAC]netip.Addr // nodes of the State that caused conflicts
	schedule   schedule
	interfaces []Interface
	faults     []error             // of the last State
	failures   map[socketKey]error // what could not be done, and is retried
	have       []netip.Addr        // the result of held
	relisted   map[netip.Addr]bool // addresses that have since become held, or are no longer
}

// An address is an address of the State.
type address struct {
	want  Address
	phase Phase
	since time.Time
	// wasHeld: the phase was Held before, or is.
	wasHeld bool
	claims  []claim // the sockets where it is answered for or probed
	// needsProbe is set if another host may hold the address: it must be probed first.
	needsProbe bool
	timer      *timer // probing, or the retry after a conflict; nil: none
	// early is set while the address is probed and the first probe has found no host.
	// Requests are answered then, and nothing is announced to hosts that know another
	// owner: if a slow one turns up, only hosts that have asked meanwhile are misled.
	early bool
	asked []request // what came before

	conflict *Conflict
	defended time.Time // the last announcement that answered a conflict
	strikes  int       // how often it was given up
}

// A claim is an address on a socket.
type claim struct {
	socket *packetSocket
	timer  *timer // announcing; nil: none
}

// New returns an Announcer. It opens nothing until the first Set.
func New(o Options) *Announcer {
	a := &Announcer{
		log:        o.Logger,
		metrics:    newMetrics(),
		changed:    make(chan struct{}, 1),
		wake:       make(chan struct{}, 1),
		sendRate:   rate.NewLimiter(framesPerSecond, frameBurst),
		addresses:  make(map[netip.Addr]*address),
		knownNodes: make(map[MAC]netip.Addr),
		schedule:   schedule{delays: defaultDelays(o.Refresh)},
		failures:   make(map[socketKey]error),
		relisted:   make(map[netip.Addr]bool),

		requestLifetime: repeatTime,
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(&collector{a})
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
			return a.held(), err
		}
		a.applied = &want
	}
	return a.held(), a.errors()
}

// held is the result of Set. It returns the same slice until the result changes.
func (a *Announcer) held() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.relisted) == 0 {
		return a.have
	}
	changed := slices.SortedFunc(maps.Keys(a.relisted), netip.Addr.Compare)
	same := func(a, b netip.Addr) bool { return a == b }
	a.have = sortedset.Patch(a.have, changed, netip.Addr.Compare, same, func(i int) (netip.Addr, bool) {
		x := a.addresses[changed[i]]
		return changed[i], x != nil && x.phase == Held
	})
	a.relisted = make(map[netip.Addr]bool)
	return a.have
}

// relist makes held look at an address again. Call it with mu held, when the address becomes held
// and when it no longer is.
func (a *Announcer) relist(x *address) { a.relisted[x.want.Addr] = true }

// errors returns what is invalid in the State, and what could not be done.
func (a *Announcer) errors() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	errs := slices.Clone(a.faults)
	for _, k := range slices.SortedFunc(maps.Keys(a.failures), socketKey.compare) {
		errs = append(errs, a.failures[k])
	}
	return errors.Join(errs...)
}

// Interfaces returns the interfaces of this node that can answer for addresses, sorted by
// name. It returns nil before the first Set; Set with an empty State is enough.
func (a *Announcer) Interfaces() []Interface {
	a.mu.Lock()
	defer a.mu.Unlock()
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
	a.running.Go(func() { a.sendScheduled(ctx) })
	return nil
}
