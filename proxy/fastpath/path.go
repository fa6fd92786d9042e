package fastpath

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ErrUnsupported says that the kernel, its file systems or the privileges do not do.
var ErrUnsupported = errors.New("no fast path here")

// Options say how a Path works.
type Options struct {
	// Dir is where maps and links are pinned, on a file system of BPF that is mounted;
	// the directory itself is made. Empty: DefaultDir.
	Dir string
	// Flows is how many flows there is room for; zero: DefaultFlows. Maps that are
	// found keep their size.
	Flows uint32
	Log   *slog.Logger
	// Ended is told the connections that answered before and ended because their backend
	// or their address went, by a goroutine of the Path's; nil: nobody is.
	Ended func([]Flow)
}

// A Path is the fast path of this network namespace.
type Path struct {
	pins   pins
	log    *slog.Logger
	ended  func([]Flow)
	kernel kernelObjects
	room   int // in flows

	work sync.WaitGroup
	stop context.CancelFunc
	// stirred says that interfaces or routes may be others now, due that flows
	// are to be looked at.
	stirred, due chan struct{}

	mu   sync.Mutex // guards what follows
	want State      // what Grow was told last
	// grown says that want is what the rules have: not before the first Grow, and not
	// between a Shrink and its Grow.
	grown   bool
	stale   bool // interfaces or routes may be others than when want was placed
	judging int  // how many more walks over the flows hold them against want
	taken   map[kernelFrontend]*taken
	nextSet uint32
	// retired are sets of slots that no frontend has any more, retiring those of
	// before the last walk.
	retired, retiring []kernelChoice
	clients           map[kernelPrefix]bool
	roles             map[uint32]uint32 // of interfaces, by their indexes
	hooks             map[hook]link.Link
	status            Status
}

// New loads the program and makes its maps, or takes over those that it finds pinned.
// It takes no new flows before the first Grow. ctx is for New alone.
func New(ctx context.Context, o Options) (*Path, error) {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	if o.Flows == 0 {
		o.Flows = DefaultFlows
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Path{
		pins: pins(o.Dir), log: o.Log, ended: o.Ended,
		stirred: make(chan struct{}, 1), due: make(chan struct{}, 1),
		taken: make(map[kernelFrontend]*taken), clients: make(map[kernelPrefix]bool),
		roles: make(map[uint32]uint32), hooks: make(map[hook]link.Link),
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.load(o.Flows); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err := p.adopt(); err != nil {
		p.kernel.Close()
		return nil, fmt.Errorf("take over %s: %w", p.pins.dir(), err)
	}
	ctx, p.stop = context.WithCancel(context.Background())
	p.work.Go(func() { p.listen(ctx) })
	p.work.Go(func() { p.run(ctx) })
	return p, nil
}

// Close ends what this process does. The kernel's part stays, with its flows: it takes
// new ones for a minute at most.
func (p *Path) Close() error {
	p.stop()
	p.work.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, l := range p.hooks {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, p.kernel.Close())...)
}

// Shrink makes frontends that want has not, or not like that, take no new flows, so
// that the rules may change to want: after it, no new flow gets to a backend that want
// has not. Grow goes with it, once the rules have changed.
func (p *Path) Shrink(_ context.Context, want State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grown && p.want.is(&want) {
		return nil
	}
	p.grown = false
	var errs []error
	for key, t := range p.taken {
		if keep := t.remaining(want.frontend(key.addrPort(), key.Protocol)); len(keep) < len(t.backends) {
			errs = append(errs, p.take(key, keep))
		}
	}
	for _, c := range want.Clients {
		errs = append(errs, p.leave(prefixOf(c)))
	}
	for index, roles := range p.roles {
		if roles&outward != 0 && !slices.Contains(want.Outward, nameOf(index)) {
			errs = append(errs, p.setRoles(index, roles&^outward))
		}
	}
	return errors.Join(errs...)
}

// Grow takes new flows as want says, and ends, soon after, those that want does not
// let stay. What is not possible, as an interface that is not there, is no error, but
// in Status, and is done when it is. The rules must have want already.
func (p *Path) Grow(_ context.Context, want State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grown && p.want.is(&want) && !p.stale {
		return p.place() // what others may have undone is done again
	}
	if !p.want.is(&want) || !p.grown {
		// Some times: a SYN may be answered still the first time.
		p.judging = 4
	}
	p.want, p.stale = want, true
	err := p.place()
	if p.grown = err == nil; p.grown {
		err = p.extend()
	}
	poke(p.due)
	return err
}

// Status says what is there now.
func (p *Path) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Interfaces, s.Left, s.Problems = slices.Clone(s.Interfaces), slices.Clone(s.Left), slices.Clone(s.Problems)
	s.Capacity = p.room
	var full []uint64
	if err := p.kernel.Counters.Lookup(uint32(countFull), &full); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("counters: %v", err))
	}
	for _, n := range full {
		s.Full += n
	}
	return s
}

// place makes interfaces and maps as p.want has it.
func (p *Path) place() error {
	if !p.stale {
		return p.mend()
	}
	p.status.Problems, p.status.Left, p.status.Interfaces = nil, nil, nil
	want, ways, err := p.survey()
	errs := []error{err, p.hook(want), p.mend()}
	for _, c := range p.want.Clients {
		errs = append(errs, p.leave(prefixOf(c)))
	}
	fronts := p.takeable(ways)
	errs = append(errs, p.seed(fronts))
	for key, f := range fronts {
		if t := p.taken[key]; t == nil || !slices.Equal(t.backends, f.Backends) {
			errs = append(errs, p.take(key, f.Backends))
		}
	}
	for key := range p.taken {
		if fronts[key] == nil {
			errs = append(errs, p.take(key, nil))
		}
	}
	errs = append(errs, p.forgetClients())
	slices.SortFunc(p.status.Left, func(a, b Left) int {
		return cmpFrontends(a.Addr, a.Protocol, b.Addr, b.Protocol)
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p.stale = false
	return nil
}

// takeable are the frontends that can take new flows as they shall; why others can
// not is in the status. ways says for each backend what is in its way, or nothing.
func (p *Path) takeable(ways map[netip.Addr]string) map[kernelFrontend]*Frontend {
	can := make(map[kernelFrontend]*Frontend)
	for i := range p.want.Frontends {
		f := &p.want.Frontends[i]
		if !f.Take {
			continue
		}
		if why := f.obstacle(ways); why != "" {
			p.status.Left = append(p.status.Left, Left{f.Addr, f.Protocol, why})
			continue
		}
		can[frontendOf(f.Addr, f.Protocol)] = f
	}
	return can
}

// obstacle is why the frontend cannot take flows, or empty.
func (f *Frontend) obstacle(ways map[netip.Addr]string) string {
	switch {
	case f.Protocol != TCP && f.Protocol != UDP:
		return fmt.Sprintf("protocol %d is neither TCP nor UDP", f.Protocol)
	case f.Sources != nil:
		return "not all sources may use it"
	case len(f.Backends) == 0:
		return "no backends"
	}
	for _, b := range f.Backends {
		if b.Addr.Addr().Unmap().Is4() != f.Addr.Addr().Unmap().Is4() {
			return fmt.Sprintf("backend %s is of another family", b.Addr)
		}
		if why := ways[b.Addr.Addr()]; why != "" {
			return why
		}
	}
	return ""
}

// run ages flows, renews the lease and follows changes of interfaces until ctx ends.
func (p *Path) run(ctx context.Context) {
	const often, soon = 5 * time.Second, time.Second
	timer := time.NewTimer(often)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.stirred:
			p.follow()
			continue
		case <-p.due:
		case <-timer.C:
			p.follow()
		}
		began, next := time.Now(), often
		if p.walk() {
			next = soon
		}
		// A large table takes a while, and a core should do other things mostly.
		timer.Reset(max(next, 20*time.Since(began)))
	}
}

// follow puts want in place anew when interfaces or routes have changed, and renews
// the lease.
func (p *Path) follow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.grown {
		return
	}
	p.stale = true
	err := p.place()
	if err == nil {
		err = p.extend()
	}
	if err != nil {
		p.log.Warn("fast path", "err", err)
	}
}

// extend lets new flows be taken for another minute: who ends and does not come back
// should not send new flows to pods of the past.
func (p *Path) extend() error {
	return p.kernel.Lease.Put(uint32(0), seconds()+60)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// load makes or finds the maps and loads the programs.
func (p *Path) load(flows uint32) error {
	if err := p.pins.prepare(); err != nil {
		return err
	}
	if err := tcx(); err != nil {
		return err
	}
	err := p.loadInto(flows)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		// Only who develops it meets maps of this version that are others.
		p.log.Warn("maps of another make are given up, with their flows", "err", err)
		if err := p.pins.remove(); err != nil {
			return err
		}
		if err := p.pins.prepare(); err != nil {
			return err
		}
		err = p.loadInto(flows)
	}
	return err
}

func (p *Path) loadInto(flows uint32) error {
	spec, err := loadKernel()
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	spec.Maps["flows"].MaxEntries = 2 * flows
	if had, err := ebpf.LoadPinnedMap(p.pins.path("flows"), nil); err == nil {
		if n := had.MaxEntries(); n != 2*flows {
			p.log.Info("the table of flows keeps its size", "flows", n/2, "wanted", flows)
			spec.Maps["flows"].MaxEntries = n
		}
		had.Close()
	}
	p.room = int(spec.Maps["flows"].MaxEntries / 2)
	return spec.LoadAndAssign(&p.kernel, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: p.pins.dir()}})
}

// adopt reads what the maps hold and takes over the links.
func (p *Path) adopt() error {
	return errors.Join(p.adoptTaken(), p.adoptClients(), p.adoptRoles(), p.adoptHooks())
}
