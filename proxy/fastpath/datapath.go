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

	"github.com/cilium/ebpf/link"

	"github.com/fanfare-lb/fanfare/internal/notify"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// ErrUnsupported says that New cannot load the programs: the kernel is older than Linux 6.6, or
// a BPF file system or a capability is missing. The wrapping error names what. The rules of
// package proxy serve all traffic then.
var ErrUnsupported = errors.New("no fast path here")

// Options configure a Datapath.
type Options struct {
	// Dir is where maps and links are pinned, on a mounted BPF file system. New creates the
	// directory. Empty: DefaultDir.
	Dir string
	// Flows is the capacity, in flows; 0: DefaultFlows. A flow takes two entries of about 130
	// bytes each. Pinned maps keep their size.
	Flows uint32
	Log   *slog.Logger // nil: discard
	// Ended receives established connections that the Datapath deleted because their backend or
	// address was removed, so that the caller can notify their clients. The Datapath calls it from
	// its own goroutine, without a lock; no flow expires until it returns. May be nil.
	Ended func([]Flow)
}

// A Datapath is the fast path of this network namespace. All its methods are safe for concurrent
// use, but Shrink, the change of the rules and Grow must come in this order. Two Datapaths must not
// use one directory at a time: each would delete the other's slots and flows.
type Datapath struct {
	pins   pins
	log    *slog.Logger
	ended  func([]Flow)
	kernel kernelObjects
	room   int // capacity, in flows

	work sync.WaitGroup
	stop context.CancelFunc
	// linksChanged signals that interfaces or routes may have changed; due signals that a
	// walk is due.
	linksChanged, due chan struct{}
	// peersChanged signals that queues or programs between veth peers may have changed.
	peersChanged chan struct{}

	mu   sync.Mutex // protects the fields below
	want State      // the last State of Grow
	// grown says that the rules have want: false before the first Grow, and between a
	// Shrink and its Grow.
	grown bool
	// shrunk is the State of the last Shrink since Grow: dirty has the differences to it.
	shrunk State
	// synced says that the maps agree with want, except for the frontends in dirty. If it is
	// false, apply writes all of them.
	synced bool
	dirty  map[kernelFrontend]bool
	// grows counts Grows, and checked is its value at the last one whose State no flow violates:
	// concurrent walks cannot hide each other's Grows.
	grows, checked uint64
	walking        bool // a walk checks flows now
	// expired has the connections that must end, and since when. Only walk uses it.
	expired   map[kernelTuple]time.Time
	offloaded map[kernelFrontend]*offloadedFrontend
	usages    map[kernelAddress]*usage // of the map usages
	// usagesStale says that some of usages may have no taken frontend. pressed are those with
	// more than half of the flows that they may have, at the last walk.
	usagesStale bool
	pressed     map[kernelAddress]bool
	policies    policies
	seeding     map[kernelFrontend]bool // of UDP, to be taken once seed has copied their flows
	left        map[kernelFrontend]string
	uses        map[kernelFrontend][]netip.Addr // the backends of frontends with Take
	routes      map[netip.Addr]*backendRoute    // to those
	unresolved  int                             // routes that have not been looked up yet
	linkUsers   map[uint32]int                  // how many routes use each interface
	outward     map[uint32]bool                 // the interfaces of State.Outward that exist
	nextSet     uint32
	// retired are sets of slots without a frontend, retiring those from before the last
	// walk.
	retired, retiring []kernelChoice
	clients           map[kernelPrefix]bool
	roles             map[uint32]uint32 // of interfaces, by their indexes
	peers             map[uint32]bool   // of those in linkUsers that have been checked; see findPeers
	hooks             map[hook]link.Link
	status            Status
}

// New loads the programs and creates their maps, or adopts the pinned maps and replaces the
// programs of an earlier process. Frontends that the earlier process took stay taken while its
// lease lasts; New adds none before the first Grow. The error wraps ErrUnsupported if the node
// cannot have a fast path. ctx is for New only; Close stops the goroutines.
func New(ctx context.Context, o Options) (*Datapath, error) {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	if o.Flows == 0 {
		o.Flows = DefaultFlows
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Datapath{
		pins: pins(o.Dir), log: o.Log, ended: o.Ended,
		linksChanged: make(chan struct{}, 1), due: make(chan struct{}, 1), peersChanged: make(chan struct{}, 1),
		offloaded: make(map[kernelFrontend]*offloadedFrontend), clients: make(map[kernelPrefix]bool),
		roles: make(map[uint32]uint32), hooks: make(map[hook]link.Link),
		dirty: make(map[kernelFrontend]bool), seeding: make(map[kernelFrontend]bool),
		usages: make(map[kernelAddress]*usage),
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
	p.policies = findPolicies()
	ctx, p.stop = context.WithCancel(context.Background())
	p.work.Go(func() { p.listen(ctx, p.watchLinks) })
	p.work.Go(func() { p.listen(ctx, p.watchQueues) })
	p.work.Go(func() { p.listen(ctx, p.watchRules) })
	p.work.Go(func() { p.listen(ctx, p.watchIPsec) })
	p.work.Go(func() { p.run(ctx) })
	return p, nil
}

// Close stops all goroutines and waits for them. The programs remain attached with their flows,
// and take new ones for at most a minute. To remove them, call Cleanup after Close.
func (p *Datapath) Close() error {
	p.stop()
	p.work.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closeHandles()
}

// closeHandles closes this process's file descriptors; pinned objects remain.
func (p *Datapath) closeHandles() error {
	var errs []error
	for _, l := range p.hooks {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, p.kernel.Close())...)
}

// Shrink stops taking new flows to backends and frontends that want does not have, on interfaces
// that are not in want.Outward, and of want.Clients. Existing flows continue. Change the rules
// to want after it, and then call Grow. After an error the programs may still take some of these
// flows: call it again before the rules change. It returns without waiting for packets that the
// programs are handling.
func (p *Datapath) Shrink(_ context.Context, want State) error {
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
		t := p.offloaded[key]
		if t == nil {
			continue
		}
		if keep := t.remaining(want.frontend(key.addrPort(), key.Protocol)); len(keep) < len(t.backends) {
			errs = append(errs, p.take(key, keep))
		}
	}
	errs = append(errs, p.leaveAll(want.Clients))
	if !sortedset.Same(want.Outward, p.want.Outward) {
		for index, roles := range p.roles {
			if roles&outward != 0 && !slices.Contains(want.Outward, nameOf(index)) {
				errs = append(errs, p.setRoles(index, roles&^outward))
			}
		}
	}
	return errors.Join(errs...)
}

// Grow takes new flows as want says, and soon after ends flows that want does not allow. The
// rules must have want already. An obstacle, such as a missing interface or a full map, is not
// an error: Status reports it, and the Datapath retries. After an error call Grow again; the next
// one writes everything. The cost depends on the difference to the previous State; routes to
// many new backends are looked up later. Grow with an unchanged State only repairs what other
// programs have detached.
func (p *Datapath) Grow(_ context.Context, want State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grown && p.synced && p.want.is(&want) {
		return p.repairHooks() // in case another program detached or unpinned something
	}
	touched := p.changedFrontends(&want)
	outs := p.synced && sortedset.Same(p.want.Outward, want.Outward)
	p.want = want
	if !p.synced {
		p.uses, p.routes = make(map[kernelFrontend][]netip.Addr), make(map[netip.Addr]*backendRoute)
		p.left, p.linkUsers, p.unresolved = make(map[kernelFrontend]string), make(map[uint32]int), 0
		clear(p.seeding)
	}
	if !outs {
		p.setOutward(findOutward(want.Outward))
	}
	p.grows++
	err := p.apply(touched)
	if p.grown = err == nil; p.grown {
		err = p.renewLease()
	}
	notify.Changed(p.due)
	return err
}

// changedFrontends returns the frontends of want that differ from p.want, by key; nil for
// removed ones.
func (p *Datapath) changedFrontends(want *State) map[kernelFrontend]*Frontend {
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
		for key := range p.offloaded {
			all[key] = want.frontend(key.addrPort(), key.Protocol)
		}
	}
	for len(had) > 0 || len(now) > 0 {
		if len(had) > 0 && len(now) > 0 && had[0] == now[0] { // the common case, for thousands of VIPs
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

// diffFrontends adds to all the changed frontends of an address.
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

// nextIn returns which of two sorted lists has the next element: the first (-1), the second
// (1), or both (0).
func nextIn[E any](a, b []E, compare func(a, b E) int) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return compare(a[0], b[0])
}

// Status returns the current state. Flows is that of the last walk; the caller may keep and
// modify the slices.
func (p *Datapath) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Interfaces, s.Problems = slices.Clone(s.Interfaces), slices.Clone(s.Problems)
	for key, why := range p.left {
		s.NotOffloaded = append(s.NotOffloaded, NotOffloaded{key.addrPort(), key.Protocol, why})
	}
	slices.SortFunc(s.NotOffloaded, func(a, b NotOffloaded) int { return cmpFrontends(a.Addr, a.Protocol, b.Addr, b.Protocol) })
	s.Limited = p.limits()
	s.Problems = append(s.Problems, p.policies.problems()...)
	s.Capacity, s.Busy = p.room, p.grows > p.checked || p.walking || len(p.seeding) > 0 || p.unresolved > 0
	var full []uint64
	if err := p.kernel.Statistics.Lookup(uint32(countFull), &full); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("counters: %v", err))
	}
	for _, n := range full {
		s.Full += n
	}
	return s
}

// apply writes hooks, clients and the touched frontends of p.want to the kernel; a nil
// frontend was removed.
func (p *Datapath) apply(touched map[kernelFrontend]*Frontend) error {
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
		t := p.offloaded[key]
		switch {
		case t == nil && key.Protocol == UDP:
			p.left[key], p.seeding[key] = "its flows are being taken over from the rules", true
		case t == nil || !slices.Equal(t.backends, f.Backends):
			errs = append(errs, p.take(key, f.Backends))
		}
	}
	if len(p.seeding) > 0 {
		notify.Changed(p.due)
	}
	err := errors.Join(errs...)
	if p.synced = err == nil; p.synced {
		clear(p.dirty)
		p.shrunk = State{}
	}
	return err
}

// obstacle returns why the frontend cannot take flows; empty if it can.
func (p *Datapath) obstacle(f *Frontend) string {
	switch {
	case f.Protocol != TCP && f.Protocol != UDP:
		return fmt.Sprintf("protocol %d is neither TCP nor UDP", f.Protocol)
	case f.Sources != nil:
		return "it restricts client networks"
	case len(f.Backends) == 0:
		return "no backends"
	}
	if why := p.policies.of(f.Addr.Addr()); why != "" {
		return why
	}
	if u := p.usages[addressOf(f.Addr.Addr())]; u != nil && u.limited && f.Protocol == UDP {
		return limitedWhy
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

// run checks flows, renews the lease and handles changes of interfaces until ctx ends.
func (p *Datapath) run(ctx context.Context) {
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
			p.checkPolicies()
			p.checkPeers()
			p.useNeighbours()
		}
		p.seed()
		began, next := time.Now(), often
		if p.walk() {
			next = soon
		}
		// A walk over a large table takes long: use at most 5 % of a core.
		timer.Reset(max(next, 20*time.Since(began)))
	}
}

// refreshRoutes looks up interfaces and routes again after they may have changed.
func (p *Datapath) refreshRoutes() {
	p.checkPolicies()
	p.mu.Lock()
	names, asked := p.want.Outward, slices.Collect(maps.Keys(p.routes))
	p.mu.Unlock()
	// Look up without the lock, so that Grow does not wait.
	outs, problems := findOutward(names)
	found := findRoutes(asked)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.grown || !sortedset.Same(names, p.want.Outward) {
		return // Grow looks them up itself
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
		p.log.Warn("fast path: apply changed interfaces and routes", "err", err)
	}
}

// refresh renews the lease, and repairs what another program may have detached or unpinned.
func (p *Datapath) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.grown {
		return
	}
	if err := errors.Join(p.repairHooks(), p.renewLease()); err != nil {
		p.log.Warn("fast path: repair hooks and renew the lease", "err", err)
	}
}

// renewLease lets the programs take new flows for another minute. Without a running process
// they would send new flows to deleted pods.
func (p *Datapath) renewLease() error {
	return p.kernel.Lease.Put(uint32(0), seconds()+60)
}

// adopt reads the maps and adopts the links.
func (p *Datapath) adopt() error {
	return errors.Join(p.adoptTaken(), p.adoptUsages(), p.adoptClients(), p.adoptRoles(), p.adoptHooks())
}
