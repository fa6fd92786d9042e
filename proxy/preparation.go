package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A preparation does what an address needs before it is announced, besides its rules. It deletes
// conntrack entries, for which it walks the whole table, and opens FORWARD, for which it starts
// programs. Except for the first one, it runs in the background, and other addresses do not wait
// for it.
type preparation struct {
	owned   []netip.Prefix      // their untranslated flows are deleted; nil: none
	ended   map[netip.Addr]bool // their ended connections are deleted; empty: none
	forward bool                // FORWARD is opened for the prefixes
	through []netip.Prefix      // the prefixes of forward
	done    chan struct{}
	stale   bool // new flows to owned may have begun since; guarded by the Proxy's lock

	sweptErr, forgetErr, forwardErr error
	opened, changed                 []string // by iptables
	deleted                         int
}

func (t *preparation) empty() bool { return t.owned == nil && len(t.ended) == 0 && !t.forward }

// run does what is due. Only this goroutine uses sock.
func (t *preparation) run(ctx context.Context, sock *nfnl.Socket) {
	if t.owned != nil {
		n, err := deleteUntranslated(sock, t.owned)
		t.deleted, t.sweptErr = t.deleted+n, err
	}
	if len(t.ended) > 0 {
		n, err := deleteEnded(sock, t.ended)
		t.deleted, t.forgetErr = t.deleted+n, err
	}
	if t.forward {
		t.opened, t.changed, t.forwardErr = iptables.OpenForward(ctx, t.through)
	}
}

// A preparer runs one preparation at a time.
type preparer struct {
	log     *slog.Logger
	metrics *metrics
	record  *record
	monitor *obstacle.Monitor
	// forget makes the fast path forget ended connections, too: it learns flows from conntrack.
	forget func(context.Context, map[netip.Addr]bool) error
	// notify makes the caller call Set again.
	notify func()

	sock   *nfnl.Socket
	thread *os.File // the network namespace of New
	ctx    context.Context
	cancel context.CancelFunc
	// unprepared are the prefixes that wait for running, sorted.
	unprepared atomic.Pointer[[]netip.Prefix]

	mu      *sync.Mutex // the Proxy's, which Set holds; guards what follows
	closed  bool
	begun   bool         // the first Set was prepared
	running *preparation // nil: none
	forward forwardOpener
	// swept are prefixes of the State's Owned without untranslated flows: existing ones were deleted, and
	// the rules have prevented new ones since.
	swept []netip.Prefix
	// forgotten are the VIPs in the State's Taking whose ended connections were deleted from conntrack.
	forgotten map[netip.Addr]bool
}

// newPreparer opens the preparer's own socket, in the calling thread's namespace.
func (p *Proxy) newPreparer() (*preparer, error) {
	thread, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	sock, err := nfnl.Dial()
	if err != nil {
		return nil, errors.Join(err, thread.Close())
	}
	n := &preparer{
		log: p.log, metrics: p.metrics, record: &p.record, notify: p.watch.notifyChanged, mu: &p.mu, sock: sock,
		thread: thread,
	}
	n.forward.due = true // an earlier process may have left rules there
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n, nil
}

// close waits for the running preparation. The caller must not hold the Proxy's lock, which the
// preparation needs to finish.
func (p *preparer) close() error {
	p.mu.Lock()
	p.closed = true
	running := p.running
	p.mu.Unlock()
	p.cancel()
	if running != nil {
		<-running.done
	}
	p.forward.stop()
	return errors.Join(p.sock.Close(), p.thread.Close())
}

// resweep has untranslated flows deleted again, because the rules were not complete.
func (p *preparer) resweep() {
	p.swept = nil
	if p.running != nil {
		p.running.stale = true
	}
}

// enter moves the calling goroutine's thread, and so the programs that it starts, to New's network
// namespace. A process with only one namespace, as outside of tests, needs no rights for that.
func (p *preparer) enter() error {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	var want, have unix.Stat_t
	if err := errors.Join(unix.Fstat(int(p.thread.Fd()), &want),
		unix.Stat("/proc/thread-self/ns/net", &have)); err != nil {
		return err
	}
	if want.Ino == have.Ino {
		return nil
	}
	return unix.Setns(int(p.thread.Fd()), unix.CLONE_NEWNET)
}

// prepare starts the preparation that a State needs, unless one is running, and records the
// prefixes that wait. The first one runs at once, on sock. look says that FORWARD may have changed.
func (p *preparer) prepare(ctx context.Context, sock *nfnl.Socket, want State, look bool) {
	p.forward.plan(want, look)
	p.swept = slices.DeleteFunc(slices.Clone(p.swept), func(s netip.Prefix) bool { return !covered(s, want.Owned) })
	p.forgotten = stillTaken(p.forgotten, want)
	if r := p.running; r != nil && slices.ContainsFunc(r.owned,
		func(o netip.Prefix) bool { return !covered(o, want.Owned) }) {
		r.stale = true
	}
	if p.running == nil {
		switch next := p.due(want); {
		case next.empty():
		case p.begun:
			p.running = next
			go p.runBeside(next)
		default: // nothing is announced yet, so all addresses may wait
			next.run(ctx, sock)
			p.finish(ctx, next)
		}
	}
	p.begun = true
	p.recordUnprepared(want)
}

// runBeside runs a preparation in the background.
func (p *preparer) runBeside(t *preparation) {
	defer close(t.done)
	if err := p.enter(); err != nil {
		t.sweptErr, t.forgetErr, t.forwardErr = err, err, err
	} else {
		t.run(p.ctx, p.sock)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running = nil; p.closed {
		return
	}
	p.finish(p.ctx, t)
	p.unprepared.Store(nil)
	p.notify() // the next Set starts what has become due since
}

// due returns the preparation for want.
func (p *preparer) due(want State) *preparation {
	t := &preparation{ended: p.newlyOwned(want), done: make(chan struct{})}
	if slices.ContainsFunc(want.Owned, func(o netip.Prefix) bool { return !covered(o, p.swept) }) {
		t.owned = want.Owned
	}
	if t.forward = p.forward.begin(); t.forward {
		t.through = p.forward.prefixes
	}
	return t
}

// finish records what was done. A later Set retries what failed, and no address waits for that.
func (p *preparer) finish(ctx context.Context, t *preparation) {
	p.metrics.flows.Add(float64(t.deleted))
	p.finishSweep(ctx, t)
	p.finishForgetting(ctx, t)
	if t.forward {
		p.finishForward(ctx, t)
	}
}

// recordUnprepared records the prefixes of want that wait for the running preparation.
func (p *preparer) recordUnprepared(want State) {
	if p.running == nil {
		p.unprepared.Store(nil)
		return
	}
	var list []netip.Prefix
	for _, o := range want.Owned {
		if !covered(o, p.swept) {
			list = append(list, o)
		}
	}
	for _, a := range want.Taking {
		if redirected(want, a) && !p.forgotten[a] {
			list = append(list, sortedset.HostPrefix(a))
		}
	}
	for _, f := range p.forward.prefixes {
		if !slices.Contains(p.forward.opened, f) {
			list = append(list, f)
		}
	}
	slices.SortFunc(list, sortedset.ComparePrefixes)
	list = slices.Compact(list)
	p.unprepared.Store(&list)
}

// deleteUntranslated deletes the untranslated flows to owned addresses, once the rules prevent new
// ones. It cannot be left to the Cleaner: connections from a client port whose flow bypasses the
// rules would be refused.
func deleteUntranslated(sock *nfnl.Socket, owned []netip.Prefix) (n int, err error) {
	own, err := conntrack.OwnAddrs()
	if err != nil {
		return 0, err
	}
	deleted, err := conntrack.DeleteFlowsIf(sock, conntrack.Request{Family: unix.AF_UNSPEC},
		func(f *conntrack.Flow) bool {
			return !f.DNAT && sortedset.ContainsAddr(owned, f.VIP) && !slices.Contains(own, f.VIP)
		})
	return len(deleted), err
}

// finishSweep records that no untranslated flows to owned addresses are left.
func (p *preparer) finishSweep(ctx context.Context, t *preparation) {
	switch {
	case t.sweptErr != nil:
		p.metrics.flowErrors.Inc()
		p.log.WarnContext(ctx, "flows to addresses of the pools may go past the rules", "err", t.sweptErr)
	case t.owned != nil && !t.stale:
		p.swept = t.owned
	}
}

// deleteEnded deletes the conntrack entries of ended connections to VIPs, once for each VIP that
// this node takes from another one.
//
// This cannot be left to the Cleaner. As soon as the node answers, packets arrive for connections
// that began elsewhere; if their client port matches an ended connection, conntrack would send them
// to its backend, which resets them. For the same reason it is too late once the node answers, even
// if the node learns the previous owner only then: a client may have begun a new connection from
// the port of a listed entry, and would lose it (see conntrack.changeAll).
func deleteEnded(sock *nfnl.Socket, vips map[netip.Addr]bool) (n int, err error) {
	r := conntrack.RequestOf(maps.Keys(vips))
	r.Status, r.Mask = conntrack.StatusDstNAT, conntrack.StatusDstNAT
	deleted, err := conntrack.DeleteFlowsIf(sock, r,
		func(f *conntrack.Flow) bool { return f.DNAT && f.Ended && vips[f.VIP] })
	return len(deleted), err
}

// newlyOwned returns the VIPs whose ended connections must be deleted from conntrack.
func (p *preparer) newlyOwned(want State) map[netip.Addr]bool {
	fresh := map[netip.Addr]bool{}
	for _, r := range want.Redirects {
		if _, taking := slices.BinarySearchFunc(want.Taking, r.VIP, netip.Addr.Compare); taking && !p.forgotten[r.VIP] {
			fresh[r.VIP] = true
		}
	}
	return fresh
}

// finishForgetting records the VIPs whose ended connections conntrack has forgotten, once the fast
// path has forgotten them too: it learns flows from conntrack.
func (p *preparer) finishForgetting(ctx context.Context, t *preparation) {
	if len(t.ended) == 0 {
		return
	}
	if err := errors.Join(t.forgetErr, p.forget(ctx, t.ended)); err != nil {
		p.metrics.flowErrors.Inc()
		p.log.WarnContext(ctx, "connections to addresses that move to this node may be taken for earlier ones", "err",
			err)
		return
	}
	if p.forgotten == nil {
		p.forgotten = map[netip.Addr]bool{}
	}
	maps.Copy(p.forgotten, t.ended)
}

// covered reports whether one of the prefixes contains another one.
func covered(o netip.Prefix, by []netip.Prefix) bool {
	return slices.ContainsFunc(by, func(s netip.Prefix) bool { return s.Bits() <= o.Bits() && s.Contains(o.Addr()) })
}

// redirected reports whether connections to a VIP are redirected to its previous owner.
func redirected(s State, vip netip.Addr) bool {
	return slices.ContainsFunc(s.Redirects, func(r state.Redirect) bool { return r.VIP == vip })
}

// stillTaken returns the VIPs that want still takes and redirects.
func stillTaken(vips map[netip.Addr]bool, want State) map[netip.Addr]bool {
	out := maps.Clone(vips)
	maps.DeleteFunc(out, func(a netip.Addr, _ bool) bool {
		_, taking := slices.BinarySearchFunc(want.Taking, a, netip.Addr.Compare)
		return !taking || !redirected(want, a)
	})
	return out
}
