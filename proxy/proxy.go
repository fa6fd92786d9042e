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

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// Options are what New needs. The zero value will do.
type Options struct {
	Logger     *slog.Logger          // nil: the default logger
	Registerer prometheus.Registerer // nil: no metrics
	Mode       Mode                  // empty: ModeAuto
	FastPath   OpenFastPath          // nil: all flows meet the rules
}

// A Proxy makes the kernel of one network namespace forward what a State says.
// There must be no more than one at a time for a namespace.
//
// The namespace is that of the thread which calls New; Set must be called in
// the same, since it may start nft.
type Proxy struct {
	log     *slog.Logger
	metrics *metrics
	watch   *watch
	adopted []netip.Addr
	record  record
	recheck atomic.Bool
	cleaner *conntrack.Cleaner
	// preparer does what addresses need before they are announced; mu guards it.
	preparer *preparer
	monitor  *obstacle.Monitor
	poller   *iptables.Poller // of iptables; nil in another mode
	evictor  *nftables.AffinityEvictor

	mu     sync.Mutex // held by Set; guards what follows
	sock   *nfnl.Socket
	closed bool

	mode      Mode // that choose found
	renderer  renderer.Renderer
	offloader *offloader
	// former is the renderer of the other mode, until all that it may have left is
	// gone, and left when that was last tried.
	former renderer.Renderer
	left   time.Time

	have     State  // the State that was set last
	known    bool   // the kernel holds have, as far as notifications show
	written  bool   // a Set has succeeded
	mark     uint64 // of the watch, before the kernel is read
	elements int    // of have, when known
	entries  int    // of have's addresses, as Limits count them
	// damage is what other programs were found to have changed, until all of it is repaired: an
	// attempt that fails may have repaired some.
	damage string
	// swept are prefixes of want.Owned that hold no untranslated flows: they were deleted, and
	// the rules have let none arise since.
	swept   []netip.Prefix
	forward forwardOpener
	// forgotten are the VIPs that are being taken and whose ended connections are forgotten.
	forgotten map[netip.Addr]bool
}

// New opens the connections to the kernel and looks for a table that an
// earlier process left. It changes nothing.
func New(ctx context.Context, o Options) (*Proxy, error) {
	p := &Proxy{log: cmp.Or(o.Logger, slog.Default())}
	p.forward.due = true // an earlier process may have left rules there
	var err error
	if p.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("proxy: metrics: %w", err)
	}
	if p.sock, err = nfnl.Dial(); err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if p.evictor, err = nftables.NewAffinityEvictor(p.log, o.Registerer); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.sock.Close()))
	}
	// Listen before looking, so that no change falls between.
	if p.watch, err = newWatch(p.log, p.sock.Port, p.evictor.Port()); err != nil {
		return nil, fmt.Errorf("proxy: nftables notifications: %w", errors.Join(nftables.Explain(ctx, err), p.evictor.Close(), p.sock.Close()))
	}
	if p.cleaner, err = conntrack.NewCleaner(p.log, p.metrics.flows, p.metrics.flowErrors); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.watch.close(), p.evictor.Close(), p.sock.Close()))
	}
	if p.preparer, err = newPreparer(); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.cleaner.Close(), p.watch.close(), p.evictor.Close(), p.sock.Close()))
	}
	if p.monitor, err = obstacle.New(p.log, p.metrics.looks, p.metrics.count, p.watch.notifyChanged); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.preparer.close(nil), p.cleaner.Close(), p.watch.close(), p.evictor.Close(), p.sock.Close()))
	}
	p.watch.monitor.Store(p.monitor)
	p.offloader = newOffloader(o.FastPath, p.cleaner.EndedFlows, p.log, p.watch.notifyChanged)
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

// forwarded is the VIPs that rules of either mode forward, sorted.
func (p *Proxy) forwarded(ctx context.Context) ([]netip.Addr, error) {
	all, err := p.renderer.VIPs()
	if err != nil {
		return nil, nftables.Explain(ctx, err)
	}
	// What the other mode needs may well not be here.
	former, err := p.former.VIPs()
	if err == nil {
		all = append(all, former...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

// Adopted is the VIPs that the table found by New forwards, sorted: none after
// a reboot or Cleanup. They are forwarded until the first Set.
func (p *Proxy) Adopted() []netip.Addr { return slices.Clone(p.adopted) }

// Recheck makes the next Set compare the kernel with its State whether or not
// anything was heard.
func (p *Proxy) Recheck() { p.recheck.Store(true) }

// Status is what the Proxy has done so far.
func (p *Proxy) Status() Status {
	s := p.record.get()
	s.ConntrackError = p.cleaner.LastError()
	s.Obstacles, s.Unseen = p.monitor.Found()
	s.AffinityFull = affinityFull(p.record.state(), p.evictor.Full(), p.poller.Full())
	s.FastPath = p.offloader.status(p.record.state())
	return s
}

// Obstacles are those of Status, which to put together takes a look at all frontends.
func (p *Proxy) Obstacles() []Obstacle {
	all, _ := p.monitor.Found()
	return all
}

// Blockade returns the flows that certainly fail on this node; nil if none do. It is known when the
// first Set with addresses of a family returns. The pointer is the same as long as nothing changes,
// and [Proxy.Changed] signals when something does.
func (p *Proxy) Blockade() *Blockade { return p.monitor.Blockade() }

// Changed signals that the next Set may have something to do: another program has changed
// our rules or FORWARD of iptables, obstacles have come or gone, or what failed is due again.
// Whether the rules still forward, [Proxy.Intact] says.
func (p *Proxy) Changed() <-chan struct{} { return p.watch.notify }

// Intact says whether the rules are in the kernel as the last Set that succeeded wrote
// them. It follows the watch of the rules alone: a Set that fails leaves them as they were.
// After a report it is false until a Set has compared the kernel and repaired it.
func (p *Proxy) Intact() Integrity { return p.watch.rules.get() }

// Close ends the connections. The kernel goes on forwarding.
func (p *Proxy) Close() error {
	p.mu.Lock()
	closed, running := p.closed, p.preparer.running
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	err := p.preparer.close(running)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forward.stop()
	// The fast path tells the Cleaner what ends.
	return errors.Join(err, p.offloader.close(), p.poller.Close(), p.monitor.Close(), p.cleaner.Close(), p.evictor.Close(), p.watch.close(), p.sock.Close())
}

// Cleanup removes the table, and chains and sets of iptables, which is all that a Proxy
// leaves in the kernel. Connections that it forwarded go on only where something
// else, such as kube-proxy or a CNI, keeps NAT in use: the kernel stops tracking
// and translating when the last rule that needs it goes.
func Cleanup(ctx context.Context) error {
	_, _, err := iptables.OpenForward(ctx, nil)
	if err := errors.Join(nftables.DeleteTables(), iptables.DeleteChains(ctx), err); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// Set makes the kernel forward what want says and nothing else, in one transaction,
// with another before it for what that leads to, and after it for what it left; a change
// of more than 1 MiB takes several of each. What an address needs besides, and takes longer, is under way when
// Set returns: see [Proxy.Unprepared]. After
// an error the kernel forwards what it did before, or already what want says if it was
// the tidying up or one of several transactions that failed, and the next Set begins by looking at what that is. If it
// cannot open FORWARD of iptables, or the fast path does not do as it should, that is no
// error of Set's but in [Proxy.Status].
//
// An address that is wrong in itself, exceeds the [Limits] or is what the kernel does not
// take is left as it was, and all others are set. The error is then a [Refused].
//
// What is the same *VIP as in the State before is known to be unchanged; want
// must not be written afterwards.
func (p *Proxy) Set(ctx context.Context, want State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("proxy: %w", os.ErrClosed)
	}
	p.poller.Pause()
	recheck, disturbed := p.recheck.Load(), p.watch.dirty.Load()
	want, refused, err := p.setAccepted(ctx, want)
	if err == nil {
		p.redirect(ctx, want, recheck || disturbed)
		p.offloader.grow(ctx)
		p.prepare(ctx, want)
		looked := p.monitor.SetState(want, recheck)
		p.leave(ctx)
		p.monitor.Await(ctx, looked)
	} else {
		p.examine(ctx)
	}
	p.poller.Settle()
	p.record.set(p.have, err)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return refused.Err()
}

// Limits are those of the mode that p chose.
func (p *Proxy) Limits() Limits { return DefaultLimits(p.mode) }
