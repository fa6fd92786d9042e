package fastpath

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
	// Ended receives the connections that answered before and ended because their backend
	// or their address went, from a goroutine of the Path's; nil: no caller needs them.
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
	// linksChanged signals that interfaces or routes may have changed, due that a walk over
	// the flows is due.
	linksChanged, due chan struct{}
	// peersChanged signals that queues or programs between veth peers may have changed.
	peersChanged chan struct{}

	mu   sync.Mutex // guards what follows
	want State      // the last State of Grow
	// grown says that want is what the rules have: not before the first Grow, and not
	// between a Shrink and its Grow.
	grown bool
	// shrunk is the last State of Shrink since: what differs from it is in dirty.
	shrunk State
	// synced says that the kernel's tables agree with want, except for the frontends in
	// dirty. If not, nothing is taken for granted.
	synced         bool
	dirty          map[kernelFrontend]bool
	uncheckedGrows int  // how many Grows there were that flows have not been held against
	walking        bool // they are just now
	// expired are connections that must end, and since when: for walk alone.
	expired    map[kernelTuple]time.Time
	taken      map[kernelFrontend]*taken
	seeding    map[kernelFrontend]bool // of UDP, to be taken when their flows have been seeded
	left       map[kernelFrontend]string
	uses       map[kernelFrontend][]netip.Addr // the backends of frontends with Take
	routes     map[netip.Addr]*backendRoute    // to those
	unresolved int                             // routes that have not been looked up yet
	linkUsers  map[uint32]int                  // how many routes there are by an interface
	outward    map[uint32]bool                 // the interfaces of State.Outward that are there
	nextSet    uint32
	// retired are sets of slots that no frontend has now, retiring the ones
	// from before the last walk.
	retired, retiring []kernelChoice
	clients           map[kernelPrefix]bool
	roles             map[uint32]uint32 // of interfaces, by their indexes
	peers             map[uint32]bool   // of those in leads, as far as they have been looked at
	hooks             map[hook]link.Link
	status            Status
}

// New loads the program and makes its maps, or takes over the maps that it finds pinned.
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
		linksChanged: make(chan struct{}, 1), due: make(chan struct{}, 1), peersChanged: make(chan struct{}, 1),
		taken: make(map[kernelFrontend]*taken), clients: make(map[kernelPrefix]bool),
		roles: make(map[uint32]uint32), hooks: make(map[hook]link.Link),
		dirty: make(map[kernelFrontend]bool), seeding: make(map[kernelFrontend]bool),
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.load(o.Flows); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, explain(err))
	}
	if err := p.adopt(); err != nil {
		return nil, errors.Join(fmt.Errorf("take over %s: %w", p.pins.dir(), err), p.closeHandles())
	}
	ctx, p.stop = context.WithCancel(context.Background())
	p.work.Go(func() { p.listen(ctx, p.watchLinks) })
	p.work.Go(func() { p.listen(ctx, p.watchQueues) })
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
	return p.closeHandles()
}

// closeHandles closes what this process has open; what is pinned stays.
func (p *Path) closeHandles() error {
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
	for key := range p.changedFrontends(&want) {
		p.dirty[key] = true
	}
	p.shrunk = want
	var errs []error
	for key := range p.dirty {
		t := p.taken[key]
		if t == nil {
			continue
		}
		if keep := t.remaining(want.frontend(key.addrPort(), key.Protocol)); len(keep) < len(t.backends) {
			errs = append(errs, p.take(key, keep))
		}
	}
	errs = append(errs, p.leaveAll(want.Clients))
	if !sameSlice(want.Outward, p.want.Outward) {
		for index, roles := range p.roles {
			if roles&outward != 0 && !slices.Contains(want.Outward, nameOf(index)) {
				errs = append(errs, p.setRoles(index, roles&^outward))
			}
		}
	}
	return errors.Join(errs...)
}

// Grow takes new flows as want says, and ends, soon after, the flows that want no longer
// allows. What is not possible, for instance for want of an interface, is no error but
// in Status, and is done later. The rules must have want already. The cost depends on what
// changed since the State before; routes to many new backends are looked up later.
func (p *Path) Grow(_ context.Context, want State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grown && p.synced && p.want.is(&want) {
		return p.repairHooks() // what others may have undone is done again
	}
	touched := p.changedFrontends(&want)
	outs := p.synced && sameSlice(p.want.Outward, want.Outward)
	p.want = want
	if !p.synced {
		p.uses, p.routes = make(map[kernelFrontend][]netip.Addr), make(map[netip.Addr]*backendRoute)
		p.left, p.linkUsers, p.unresolved = make(map[kernelFrontend]string), make(map[uint32]int), 0
		clear(p.seeding)
	}
	if !outs {
		p.setOutward(findOutward(want.Outward))
	}
	p.uncheckedGrows++
	err := p.apply(touched)
	if p.grown = err == nil; p.grown {
		err = p.renewLease()
	}
	signal(p.due)
	return err
}

// changedFrontends are the frontends of want that are others than before, by their keys, with nil
// for removed ones.
func (p *Path) changedFrontends(want *State) map[kernelFrontend]*Frontend {
	all := make(map[kernelFrontend]*Frontend)
	for key := range p.dirty {
		all[key] = want.frontend(key.addrPort(), key.Protocol)
	}
	if len(p.shrunk.VIPs) > 0 && p.shrunk.is(want) {
		return all
	}
	had, now := p.want.VIPs, want.VIPs
	if !p.synced {
		had = nil
		for key := range p.taken {
			all[key] = want.frontend(key.addrPort(), key.Protocol)
		}
	}
	for len(had) > 0 || len(now) > 0 {
		if len(had) > 0 && len(now) > 0 && had[0] == now[0] { // the common case, of which there are thousands
			had, now = had[1:], now[1:]
			continue
		}
		var before, after []Frontend
		order := nextIn(had, now, func(a, b *VIP) int { return a.Addr.Compare(b.Addr) })
		if order <= 0 {
			before, had = had[0].Frontends, had[1:]
		}
		if order >= 0 {
			after, now = now[0].Frontends, now[1:]
		}
		diffFrontends(before, after, all)
	}
	return all
}

// differ adds to all the frontends of an address that are others than before.
func diffFrontends(had, now []Frontend, all map[kernelFrontend]*Frontend) {
	for len(had) > 0 || len(now) > 0 {
		order := nextIn(had, now, func(a, b Frontend) int { return cmpFrontends(a.Addr, a.Protocol, b.Addr, b.Protocol) })
		switch {
		case order < 0:
			all[frontendOf(had[0].Addr, had[0].Protocol)] = nil
		case order > 0 || !had[0].is(&now[0]):
			all[frontendOf(now[0].Addr, now[0].Protocol)] = &now[0]
		}
		if order <= 0 {
			had = had[1:]
		}
		if order >= 0 {
			now = now[1:]
		}
	}
}

// nextIn says which of two sorted lists has what comes next: the first one (-1), the second
// (1), or both.
func nextIn[E any](a, b []E, compare func(a, b E) int) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return compare(a[0], b[0])
}

// Status says what is there now.
func (p *Path) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Interfaces, s.Problems = slices.Clone(s.Interfaces), slices.Clone(s.Problems)
	for key, why := range p.left {
		s.Left = append(s.Left, Left{key.addrPort(), key.Protocol, why})
	}
	slices.SortFunc(s.Left, func(a, b Left) int { return cmpFrontends(a.Addr, a.Protocol, b.Addr, b.Protocol) })
	s.Capacity, s.Busy = p.room, p.uncheckedGrows > 0 || p.walking || len(p.seeding) > 0 || p.unresolved > 0
	var full []uint64
	if err := p.kernel.Counters.Lookup(uint32(countFull), &full); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("counters: %v", err))
	}
	for _, n := range full {
		s.Full += n
	}
	return s
}

// place makes the kernel's part as p.want has it, of the frontends that are touched; nil
// stands for one that has gone.
func (p *Path) apply(touched map[kernelFrontend]*Frontend) error {
	p.use(touched)
	errs := []error{p.attachWanted(), p.leaveAll(p.want.Clients), p.forgetClients()}
	for key, f := range touched {
		delete(p.left, key)
		delete(p.seeding, key)
		if f == nil || !f.Take {
			errs = append(errs, p.take(key, nil))
			continue
		}
		if why := p.obstacle(f); why != "" {
			p.left[key] = why
			errs = append(errs, p.take(key, nil))
			continue
		}
		t := p.taken[key]
		switch {
		case t == nil && key.Protocol == UDP:
			p.left[key], p.seeding[key] = "its flows are being taken over from the rules", true
		case t == nil || !slices.Equal(t.backends, f.Backends):
			errs = append(errs, p.take(key, f.Backends))
		}
	}
	if len(p.seeding) > 0 {
		signal(p.due)
	}
	err := errors.Join(errs...)
	if p.synced = err == nil; p.synced {
		clear(p.dirty)
		p.shrunk = State{}
	}
	return err
}

// obstacle is why the frontend cannot take flows, or empty.
func (p *Path) obstacle(f *Frontend) string {
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
		if w := p.routes[b.Addr.Addr()]; w.why != "" {
			return w.why
		}
	}
	return ""
}

// run ages flows, renews the lease and follows changes of interfaces until ctx ends.
func (p *Path) run(ctx context.Context) {
	const often, soon = 5 * time.Second, endDelay
	timer := time.NewTimer(often)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.linksChanged:
			p.refreshRoutes()
			continue
		case <-p.peersChanged:
			p.checkPeers()
			continue
		case <-p.due:
		case <-timer.C:
			p.refresh()
			p.checkPeers()
			p.useNeighbours()
		}
		p.seed()
		began, next := time.Now(), often
		if p.walk() {
			next = soon
		}
		// A large table takes a while, and a core should do other things mostly.
		timer.Reset(max(next, 20*time.Since(began)))
	}
}

// follow looks for interfaces and routes again when they may have changed.
func (p *Path) refreshRoutes() {
	p.mu.Lock()
	names, asked := p.want.Outward, slices.Collect(maps.Keys(p.routes))
	p.mu.Unlock()
	// The kernel is asked without the lock, so that no call of Grow waits for it.
	outs, problems := findOutward(names)
	found := findRoutes(asked)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.grown || !sameSlice(names, p.want.Outward) {
		return // Grow asks by itself
	}
	p.setOutward(outs, problems)
	changed := make(map[netip.Addr]bool)
	for a, now := range found {
		if w := p.routes[a]; w != nil && p.setRoute(w, now) {
			changed[a] = true
		}
	}
	if len(changed) > 0 {
		for key, backends := range p.uses {
			if slices.ContainsFunc(backends, func(a netip.Addr) bool { return changed[a] }) {
				p.dirty[key] = true
			}
		}
	}
	err := errors.Join(p.apply(p.changedFrontends(&p.want)), p.repairHooks())
	if err != nil {
		p.log.Warn("fast path", "err", err)
	}
}

// refresh renews the lease and looks after what others may have undone.
func (p *Path) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.grown {
		return
	}
	if err := errors.Join(p.repairHooks(), p.renewLease()); err != nil {
		p.log.Warn("fast path", "err", err)
	}
}

// extend lets new flows be taken for another minute: who ends and does not come back
// should not send new flows to pods of the past.
func (p *Path) renewLease() error {
	return p.kernel.Lease.Put(uint32(0), seconds()+60)
}

func signal(c chan struct{}) {
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
	had, err := p.pins.list()
	if err != nil {
		return err
	}
	if err := checkTCX(); err != nil {
		return errors.Join(err, p.pins.removeExcept(had))
	}
	err = p.loadInto(flows)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		// Only who develops it meets maps of this version that are others.
		p.log.Warn("maps of another make are given up, with their flows", "err", err)
		if err := p.pins.remove(); err != nil {
			return err
		}
		if err := p.pins.prepare(); err != nil {
			return err
		}
		had, err = nil, p.loadInto(flows)
	}
	if err != nil {
		// Half of the maps is useless. Maps that were there have flows.
		return errors.Join(err, p.pins.removeExcept(had))
	}
	return nil
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
