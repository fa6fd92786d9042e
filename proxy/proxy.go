package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Options configure a Proxy. The zero value is valid.
type Options struct {
	Logger     *slog.Logger          // nil: the default logger
	Registerer prometheus.Registerer // nil: no metrics
	Mode       Mode                  // empty: ModeAuto
	FastPath   OpenFastPath          // nil: all flows use the rules
	NFT        [][]string            // commands that start nft, the oldest version first; nil: [nftables.Installed]
}

// A Proxy makes the kernel forward, in one network namespace, what a State says. A namespace must
// not have more than one at a time.
//
// The namespace is that of the thread that calls New. Set must be called in the same namespace,
// because it may start nft.
type Proxy struct {
	log     *slog.Logger
	metrics *metrics
	watch   *watch
	adopted []netip.Addr
	record  record
	recheck atomic.Bool
	cleaner *conntrack.Cleaner
	monitor *obstacle.Monitor
	poller  *iptables.Poller // of iptables; nil in another mode
	evictor *nftables.AffinityEvictor
	nft     *nftables.NFT // used by New, and then by Set

	mu     sync.Mutex // held by Set; guards what follows
	sock   *nfnl.Socket
	closed bool

	rules     *ruleset
	offloader *offloader
	preparer  *preparer // prepares addresses before they are announced
	// former is the renderer of the other mode, until everything that it may have left is removed.
	// left is the time of the last attempt.
	former renderer.Renderer
	left   time.Time
}

// New connects to the kernel and looks for a table that an earlier process left. It changes
// nothing.
func New(ctx context.Context, o Options) (*Proxy, error) {
	p := &Proxy{log: cmp.Or(o.Logger, slog.Default())}
	var err error
	if p.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("proxy: metrics: %w", err)
	}
	p.nft = &nftables.NFT{Commands: o.NFT, Crashed: p.nftCrashed}
	if o.NFT == nil {
		p.nft.Commands = nftables.Installed()
	}
	if p.sock, err = nfnl.Dial(); err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if p.evictor, err = nftables.NewAffinityEvictor(p.log, o.Registerer); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.sock.Close()))
	}
	// Listen before reading, so that no change is missed between the two.
	if p.watch, err = newWatch(p.log, p.sock.Port, p.evictor.Port()); err != nil {
		return nil, fmt.Errorf("proxy: nftables notifications: %w",
			errors.Join(p.nft.Explain(ctx, err), p.evictor.Close(), p.sock.Close()))
	}
	if p.cleaner, err = conntrack.NewCleaner(p.log, p.metrics.flows, p.metrics.flowErrors); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.watch.close(), p.evictor.Close(), p.sock.Close()))
	}
	if p.preparer, err = p.newPreparer(); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.cleaner.Close(), p.watch.close(), p.evictor.Close(),
			p.sock.Close()))
	}
	p.monitor = obstacle.New(p.log, p.metrics.looks, p.metrics.count, p.watch.notifyChanged, p.preparer.enter)
	p.watch.monitor.Store(p.monitor)
	p.offloader = newOffloader(o.FastPath, p.cleaner.EndedFlows, p.log, p.watch.notifyChanged)
	p.preparer.monitor, p.preparer.forget = p.monitor, p.offloader.forget
	if err := p.offloader.register(o.Registerer); err != nil {
		return nil, fmt.Errorf("proxy: metrics: %w", errors.Join(err, p.Close()))
	}
	if err := p.choose(ctx, o.Mode); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.Close()))
	}
	if p.adopted, err = p.forwarded(ctx); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.Close()))
	}
	if len(p.adopted) > 0 {
		p.log.InfoContext(ctx, "found rules that forward", "vips", len(p.adopted))
	}
	return p, nil
}

// forwarded returns the VIPs that rules of either mode forward, sorted.
func (p *Proxy) forwarded(ctx context.Context) ([]netip.Addr, error) {
	all, err := p.rules.renderer.VIPs()
	if err != nil {
		return nil, p.nft.Explain(ctx, err)
	}
	// The node may well lack what the other mode needs.
	former, err := p.former.VIPs()
	if err == nil {
		all = append(all, former...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

// Adopted returns the VIPs of the table that New found, sorted: none after a reboot or Cleanup.
// They are forwarded until the first Set.
func (p *Proxy) Adopted() []netip.Addr { return slices.Clone(p.adopted) }

// Unprepared returns sorted prefixes whose new addresses should not be announced yet: Set has
// programmed them, but their preparation is still running. Changed signals its end.
func (p *Proxy) Unprepared() []netip.Prefix {
	if list := p.preparer.unprepared.Load(); list != nil {
		return *list
	}
	return nil
}

// Recheck makes the next Set compare the kernel with its State, even without a notification of a
// change.
func (p *Proxy) Recheck() { p.recheck.Store(true) }

// Status returns what the Proxy has done so far.
func (p *Proxy) Status() Status {
	s := p.record.get()
	s.ConntrackError = p.cleaner.LastError()
	s.Obstacles, s.Unseen = p.monitor.Found()
	s.AffinityFull = affinityFull(p.record.state(), p.evictor.Full(), p.poller.Full())
	s.FastPath = p.offloader.status(p.record.state())
	return s
}

// Obstacles returns the obstacles in Status, without the cost of visiting all frontends.
func (p *Proxy) Obstacles() []obstacle.Obstacle {
	all, _ := p.monitor.Found()
	return all
}

// Blockade returns the flows that certainly fail on this node; nil if none do. It is known when the
// first Set with addresses of a family returns. The pointer stays the same while nothing changes,
// and [Proxy.Changed] signals changes.
func (p *Proxy) Blockade() *obstacle.Blockade { return p.monitor.Blockade() }

// Changed signals that the next Set may have work: another program has changed our rules or
// iptables' FORWARD, obstacles have appeared or disappeared, or a retry is due. [Proxy.Intact] says
// whether the rules still forward.
func (p *Proxy) Changed() <-chan struct{} { return p.watch.notify }

// Intact says whether the rules are in the kernel as the last successful Set wrote them. Only the
// watch of the rules changes it: a failed Set leaves the rules unchanged. After a report of a
// change it is false until a Set has compared the kernel and repaired it.
func (p *Proxy) Intact() Integrity { return p.watch.rules.get() }

// Close closes the connections to the kernel, which continues to forward.
func (p *Proxy) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.monitor.Close()
	err := p.preparer.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	// The fast path reports ended flows to the Cleaner, so it closes first.
	return errors.Join(err, p.offloader.close(), p.poller.Close(), p.cleaner.Close(), p.evictor.Close(),
		p.watch.close(), p.sock.Close())
}

// Cleanup removes the table, and the chains and sets of iptables: everything that a Proxy leaves in
// the kernel. Existing connections continue only if another program, such as kube-proxy or a CNI
// plug-in, also uses NAT: the kernel stops tracking and translating when the last rule that needs
// it is removed.
func Cleanup(ctx context.Context) error {
	_, _, err := iptables.OpenForward(ctx, nil)
	if err := errors.Join(nftables.DeleteTables(), iptables.DeleteChains(ctx), err); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// Set makes the kernel forward what want says and nothing else. It takes one transaction, with one
// before it that adds what the new rules refer to, and one after it that removes what is unused; a
// change of more than 1 MiB takes several of each. Preparations that take longer continue in the
// background when Set returns: see [Proxy.Unprepared].
//
// After an error the kernel forwards what it did before. It forwards what want says, in full or in
// part, if only the removal or one of several transactions failed. The next Set reads the kernel
// first. If Set cannot open iptables' FORWARD, or the fast path fails, [Proxy.Status] says so; that
// is no error of Set.
//
// An address that is invalid, exceeds the [Limits] or is rejected by the kernel stays as it was,
// and all others are set. The error is then a [Refused].
//
// A VIP with the same pointer as in the previous State is taken as unchanged. The caller must not
// modify want afterwards.
func (p *Proxy) Set(ctx context.Context, want State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("proxy: %w", os.ErrClosed)
	}
	p.poller.Pause()
	changed := applied{recheck: p.recheck.Load(), disturbed: p.watch.dirty.Load()}
	p.preparer.forward.due = p.preparer.forward.due || changed.recheck // even if this Set fails
	refused, err := p.setAccepted(ctx, want)
	if err == nil {
		changed.now = p.rules.have
		p.afterwards(ctx, changed)
	} else {
		p.rules.examine(ctx)
	}
	p.poller.Settle()
	p.record.set(p.rules.have, err)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return refused.Err()
}

// setAccepted sets the acceptable part of want, and returns the refusals.
func (p *Proxy) setAccepted(ctx context.Context, want State) (state.Refusals, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	proposed, err := newProposal(p.rules, want, p.transact)
	if err != nil {
		return nil, err
	}
	if err = proposed.try(ctx); blamesState(err) {
		err = proposed.bisect(ctx, p.rules, err)
	}
	return proposed.refused, err
}

// transact makes the kernel forward a valid State. The fast path and the Cleaner must know before the
// rules change what comes.
func (p *Proxy) transact(ctx context.Context, want State) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.cleaner.Expect(want)
	p.offloader.shrink(ctx, want)
	// Taken before the kernel is read: later changes signal again.
	p.rules.mark = p.watch.rules.mark()
	disturbed, recheck := p.watch.take(), p.recheck.Swap(false)
	left, err := p.rules.set(ctx, want, recheck || disturbed)
	if left.leaked {
		p.preparer.resweep()
	}
	if err == nil && left.stale != nil {
		p.cleaner.Add(left.stale, want, p.preparer.swept)
	}
	return err
}

// applied is what the work after a transaction needs to know of it.
type applied struct {
	now State // what the kernel forwards
	// recheck says that the caller wants everything compared with the kernel, and disturbed that another
	// program may have changed our rules.
	recheck, disturbed bool
}

// afterwards does what follows the rules. Its failures do not fail Set.
func (p *Proxy) afterwards(ctx context.Context, c applied) {
	p.redirect(ctx, c)
	p.offloader.grow(ctx)
	p.preparer.prepare(ctx, p.sock, c.now, p.watch.takeForward())
	looked := p.monitor.SetState(c.now, c.recheck)
	p.leave(ctx)
	p.monitor.Await(ctx, looked)
}

// redirect writes the redirects of the State that was set. Its failure does not fail Set: the rules
// work, and connections that are not redirected are rejected.
func (p *Proxy) redirect(ctx context.Context, c applied) {
	err := p.rules.renderer.Redirect(ctx, c.now, c.recheck || c.disturbed)
	var before string
	p.record.update(func(s *Status) { before, s.RedirectError = s.RedirectError, errorText(err) })
	if err != nil && before != err.Error() {
		p.log.WarnContext(ctx, "connections to addresses that move to this node cannot be redirected "+
			"to the previous owner", "err", err)
	}
}

// Limits returns the limits of the Proxy's mode.
func (p *Proxy) Limits() Limits { return DefaultLimits(p.rules.mode) }
