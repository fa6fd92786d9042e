package fastpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
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
	log    *slog.Logger
	ended  func([]Flow)
	kernel objects

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
	expired  map[kernelTuple]time.Time
	seeding  map[kernelFrontend]bool // of UDP, to be taken once seed has copied their flows
	policies policies
	outward  map[uint32]bool // the interfaces of State.Outward that exist
	routes   routes
	status   Status
	// What is in the kernel:
	table       table
	usages      usages
	clients     clients
	attachments attachments
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
	d := &Datapath{
		log: o.Log, ended: o.Ended, kernel: objects{pins: pins(o.Dir), log: o.Log},
		linksChanged: make(chan struct{}, 1), due: make(chan struct{}, 1), peersChanged: make(chan struct{}, 1),
		dirty: make(map[kernelFrontend]bool), seeding: make(map[kernelFrontend]bool), routes: newRoutes(),
	}
	d.usages = usages{kernel: &d.kernel, of: make(map[kernelAddress]*usage)}
	d.table = table{kernel: &d.kernel, usages: &d.usages,
		frontends: make(map[kernelFrontend]*offloadedFrontend), left: make(map[kernelFrontend]string)}
	d.clients = clients{&d.kernel, make(map[kernelPrefix]bool)}
	d.attachments = attachments{kernel: &d.kernel, links: make(map[hook]link.Link), roles: make(map[uint32]uint32)}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.kernel.load(o.Flows); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, explain(err))
	}
	if err := d.adopt(); err != nil {
		return nil, errors.Join(fmt.Errorf("take over %s: %w", d.kernel.pins.dir(), err), d.closeHandles())
	}
	d.policies = findPolicies()
	ctx, d.stop = context.WithCancel(context.Background())
	d.work.Go(func() { d.listen(ctx) })
	d.watchOthers(ctx)
	d.work.Go(func() { d.run(ctx) })
	return d, nil
}

// Close stops all goroutines and waits for them. The programs remain attached with their flows,
// and take new ones for at most a minute. To remove them, call Cleanup after Close.
func (d *Datapath) Close() error {
	d.stop()
	d.work.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closeHandles()
}

// closeHandles closes this process's file descriptors; pinned objects remain.
func (d *Datapath) closeHandles() error {
	var errs []error
	for _, l := range d.attachments.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, d.kernel.Close())...)
}

// Shrink stops taking new flows to backends and frontends that want does not have, on interfaces
// that are not in want.Outward, and of want.Clients. Existing flows continue. Change the rules
// to want after it, and then call Grow. After an error the programs may still take some of these
// flows: call it again before the rules change. It returns without waiting for packets that the
// programs are handling.
func (d *Datapath) Shrink(_ context.Context, want State) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.grown && d.want.is(&want) {
		return nil
	}
	d.grown = false
	for key := range d.changedFrontends(&want) {
		d.dirty[key] = true
	}
	d.shrunk = want
	var errs []error
	for key := range d.dirty {
		t := d.table.frontends[key]
		if t == nil {
			continue
		}
		if keep := t.remaining(want.frontend(key.addrPort(), key.Protocol)); len(keep) < len(t.backends) {
			errs = append(errs, d.table.take(key, keep))
		}
	}
	errs = append(errs, d.clients.add(want.Clients))
	if !sortedset.Same(want.Outward, d.want.Outward) {
		for index, roles := range d.attachments.roles {
			if roles&outward != 0 && !slices.Contains(want.Outward, nameOf(index)) {
				errs = append(errs, d.attachments.setRoles(index, roles&^outward))
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
func (d *Datapath) Grow(_ context.Context, want State) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.grown && d.synced && d.want.is(&want) {
		return d.attachments.repair() // in case another program detached or unpinned something
	}
	touched := d.changedFrontends(&want)
	outs := d.synced && sortedset.Same(d.want.Outward, want.Outward)
	d.want = want
	if !d.synced {
		d.routes = newRoutes()
		clear(d.table.left)
		clear(d.seeding)
	}
	if !outs {
		d.setOutward(findOutward(want.Outward))
	}
	d.grows++
	err := d.apply(touched)
	if d.grown = err == nil; d.grown {
		err = d.renewLease()
	}
	notify.Changed(d.due)
	return err
}

// changedFrontends returns the frontends of want that differ from d.want, by key; nil for
// removed ones.
func (d *Datapath) changedFrontends(want *State) map[kernelFrontend]*Frontend {
	all := make(map[kernelFrontend]*Frontend)
	for key := range d.dirty {
		all[key] = want.frontend(key.addrPort(), key.Protocol)
	}
	if len(d.shrunk.VIPs) > 0 && d.shrunk.is(want) {
		return all
	}
	had, now := d.want.VIPs, want.VIPs
	if !d.synced {
		had = nil
		for key := range d.table.frontends {
			all[key] = want.frontend(key.addrPort(), key.Protocol)
		}
	}
	for v, w := range sortedset.Merge(had, now, func(a, b *VIP) int { return a.CompareAddr(b.Addr) }, sortedset.Equal) {
		diffFrontends(frontendsOf(v), frontendsOf(w), all)
	}
	return all
}

// frontendsOf returns the frontends of a VIP; nil without one.
func frontendsOf(v **VIP) []Frontend {
	if v == nil {
		return nil
	}
	return (*v).Frontends
}

// diffFrontends adds to all the changed frontends of an address.
func diffFrontends(had, now []Frontend, all map[kernelFrontend]*Frontend) {
	compare := func(a, b Frontend) int { return cmpFrontends(a.Addr, a.Protocol, b.Addr, b.Protocol) }
	for f, g := range sortedset.Merge(had, now, compare, func(a, b Frontend) bool { return a.is(&b) }) {
		is := cmp.Or(g, f)
		all[frontendOf(is.Addr, is.Protocol)] = g
	}
}

// Status returns the current state. Flows is that of the last walk; the caller may keep and
// modify the slices.
func (d *Datapath) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.status
	s.Interfaces, s.Problems = slices.Clone(s.Interfaces), slices.Clone(s.Problems)
	for key, why := range d.table.left {
		s.NotOffloaded = append(s.NotOffloaded, NotOffloaded{key.addrPort(), key.Protocol, why})
	}
	slices.SortFunc(s.NotOffloaded, func(a, b NotOffloaded) int {
		return cmpFrontends(a.Addr, a.Protocol, b.Addr, b.Protocol)
	})
	s.Limited, s.Repairs, s.Found = d.usages.limits(), d.attachments.repairs, d.attachments.found
	s.Problems = append(s.Problems, d.policies.problems()...)
	s.Capacity = d.kernel.room
	s.Busy = d.grows > d.checked || d.walking || len(d.seeding) > 0 || d.routes.unresolved > 0
	var full []uint64
	if err := d.kernel.Statistics.Lookup(uint32(countFull), &full); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("counters: %v", err))
	}
	for _, n := range full {
		s.Full += n
	}
	return s
}

// apply writes hooks, clients and the touched frontends of d.want to the kernel; a nil
// frontend was removed.
func (d *Datapath) apply(touched map[kernelFrontend]*Frontend) error {
	d.routes.use(touched)
	if d.routes.unresolved > 0 {
		notify.Changed(d.linksChanged)
	}
	errs := []error{d.attach(), d.clients.set(d.want.Clients)}
	for key, f := range touched {
		delete(d.table.left, key)
		delete(d.seeding, key)
		if f == nil || !f.Take {
			errs = append(errs, d.table.take(key, nil))
			continue
		}
		if why := d.obstacle(f); why != "" {
			d.table.left[key] = why
			errs = append(errs, d.table.take(key, nil))
			continue
		}
		t := d.table.frontends[key]
		switch {
		case t == nil && key.Protocol == UDP:
			d.table.left[key], d.seeding[key] = "its flows are being taken over from the rules", true
		case t == nil || !slices.Equal(t.backends, f.Backends):
			errs = append(errs, d.table.take(key, f.Backends))
		}
	}
	if len(d.seeding) > 0 {
		notify.Changed(d.due)
	}
	err := errors.Join(errs...)
	if d.synced = err == nil; d.synced {
		clear(d.dirty)
		d.shrunk = State{}
	}
	return err
}

// attach attaches the programs to the wanted interfaces and those to backends.
func (d *Datapath) attach() error {
	want := make(map[uint32]uint32)
	for index := range d.outward {
		want[index] |= outward
	}
	for index := range d.routes.links {
		want[index] |= inward
		if _, looked := d.attachments.peers[index]; !looked {
			notify.Changed(d.peersChanged)
		}
	}
	return d.attachments.set(want)
}

// redo makes the next apply decide again about frontends that may take new flows.
func (d *Datapath) redo(is func(kernelFrontend) bool) {
	for key := range d.routes.uses {
		if is(key) {
			d.dirty[key] = true
		}
	}
}

// setOutward replaces the outward interfaces, and reports them and the problems in the Status.
func (d *Datapath) setOutward(outs map[uint32]string, problems []string) {
	d.outward = make(map[uint32]bool)
	d.status.Interfaces, d.status.Problems = nil, problems
	for index, name := range outs {
		d.outward[index] = true
		d.status.Interfaces = append(d.status.Interfaces, name)
	}
	slices.Sort(d.status.Interfaces)
}

// obstacle returns why the frontend cannot take flows; empty if it can.
func (d *Datapath) obstacle(f *Frontend) string {
	switch {
	case f.Protocol != TCP && f.Protocol != UDP:
		return fmt.Sprintf("protocol %d is neither TCP nor UDP", f.Protocol)
	case f.Sources != nil:
		return "it restricts client networks"
	case len(f.Backends) == 0:
		return "no backends"
	}
	if why := d.policies.of(f.Addr.Addr()); why != "" {
		return why
	}
	if u := d.usages.of[addressOf(f.Addr.Addr())]; u != nil && u.limited && f.Protocol == UDP {
		return limitedWhy
	}
	for _, b := range f.Backends {
		if b.Addr.Addr().Unmap().Is4() != f.Addr.Addr().Unmap().Is4() {
			return fmt.Sprintf("backend %s is of another family", b.Addr)
		}
		if w := d.routes.of[b.Addr.Addr()]; w.why != "" {
			return w.why
		}
	}
	return ""
}

// run checks flows, renews the lease and handles changes of interfaces until ctx ends.
func (d *Datapath) run(ctx context.Context) {
	const often, soon = 5 * time.Second, endDelay
	timer := time.NewTimer(often)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.linksChanged:
			d.refreshRoutes()
			continue
		case <-d.peersChanged:
			d.checkPeers()
			continue
		case <-d.due:
		case <-timer.C:
			d.refresh()
			d.checkPolicies()
			d.checkPeers()
			d.useNeighbours()
		}
		d.seed()
		began, next := time.Now(), often
		if d.walk() {
			next = soon
		}
		// A walk over a large table takes long: use at most 5 % of a core.
		timer.Reset(max(next, 20*time.Since(began)))
	}
}

// refreshRoutes looks up interfaces and routes again after they may have changed.
func (d *Datapath) refreshRoutes() {
	d.checkPolicies()
	d.mu.Lock()
	names, asked := d.want.Outward, slices.Collect(maps.Keys(d.routes.of))
	d.mu.Unlock()
	// Look up without the lock, so that Grow does not wait.
	outs, problems := findOutward(names)
	found := findRoutes(asked)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.grown || !sortedset.Same(names, d.want.Outward) {
		return // Grow looks them up itself
	}
	d.setOutward(outs, problems)
	for _, key := range d.routes.update(found) {
		d.dirty[key] = true
	}
	err := errors.Join(d.apply(d.changedFrontends(&d.want)), d.attachments.repair())
	if err != nil {
		d.log.Warn("fast path: apply changed interfaces and routes", "err", err)
	}
}

// refresh renews the lease, and repairs what another program may have detached or unpinned.
func (d *Datapath) refresh() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.grown {
		return
	}
	if err := errors.Join(d.attachments.repair(), d.renewLease()); err != nil {
		d.log.Warn("fast path: repair hooks and renew the lease", "err", err)
	}
}

// renewLease lets the programs take new flows for another minute. Without a running process
// they would send new flows to deleted pods.
func (d *Datapath) renewLease() error {
	return d.kernel.Lease.Put(uint32(0), seconds()+60)
}

// adopt reads the maps and adopts the links.
func (d *Datapath) adopt() error {
	err := d.table.adopt()
	return errors.Join(err, d.usages.adopt(d.table.frontends), d.clients.adopt(),
		d.attachments.adoptRoles(), d.attachments.adoptHooks())
}
