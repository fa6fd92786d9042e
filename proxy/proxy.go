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
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
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
	sweeper *conntrack.Sweeper
	// preparer does what addresses need before they are announced; mu guards it.
	preparer *preparer
	monitor  *obstacle.Monitor
	poller   *iptables.Poller // of iptables; nil in another mode
	// overflow is of affinity's maps.
	overflow *overflow

	mu     sync.Mutex // held by Set; guards what follows
	sock   *nfnl.Socket
	closed bool

	renderer renderer.Renderer
	bypass   *bypass
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
	// Listen before looking, so that no change falls between.
	if p.watch, err = newWatch(p.sock, p.log); err != nil {
		p.sock.Close()
		return nil, fmt.Errorf("proxy: nftables notifications: %w", explain(ctx, err))
	}
	if p.sweeper, err = conntrack.NewSweeper(p.log, p.metrics.flows, p.metrics.flowErrors); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.watch.close(), p.sock.Close()))
	}
	if p.overflow, err = newOverflow(o.Registerer); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.sweeper.Close(), p.watch.close(), p.sock.Close()))
	}
	if p.preparer, err = newPreparer(); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.overflow.close(), p.sweeper.Close(), p.watch.close(), p.sock.Close()))
	}
	if p.monitor, err = obstacle.New(p.log, p.metrics.looks, p.metrics.count, p.watch.poke); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, p.preparer.close(nil), p.overflow.close(), p.sweeper.Close(), p.watch.close(), p.sock.Close()))
	}
	p.watch.monitor.Store(p.monitor)
	p.bypass = newBypass(o.FastPath, p.sweeper.EndedFlows, p.log, p.watch.poke)
	if err := p.bypass.register(o.Registerer); err != nil {
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
		return nil, explain(ctx, err)
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
	s.ConntrackError = p.sweeper.LastError()
	s.Obstacles, s.Unseen = p.monitor.Found()
	s.AffinityFull = p.overflow.count()
	s.FastPath = p.bypass.status(p.record.state())
	return s
}

// Obstacles are those of Status, which to put together takes a look at all frontends.
func (p *Proxy) Obstacles() []Obstacle {
	all, _ := p.monitor.Found()
	return all
}

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
	// The fast path tells the sweeper what ends.
	return errors.Join(err, p.bypass.close(), p.poller.Close(), p.monitor.Close(), p.sweeper.Close(), p.overflow.close(), p.watch.close(), p.sock.Close())
}

// Cleanup removes the table, and chains and sets of iptables, which is all that a Proxy
// leaves in the kernel. Connections that it forwarded go on only where something
// else, such as kube-proxy or a CNI, keeps NAT in use: the kernel stops tracking
// and translating when the last rule that needs it goes.
func Cleanup(ctx context.Context) error {
	_, _, err := iptables.OpenForward(ctx, nil)
	if err := errors.Join(deleteTable(renderer.SpareTable), deleteTable(renderer.TableName), deleteRedirects(), iptables.DeleteChains(ctx), err); err != nil {
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
		p.bypass.grow(ctx)
		p.prepare(ctx, want)
		p.monitor.SetState(want, recheck)
		p.leave(ctx)
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

// setAccepted sets what of want can be set, and returns that and what is refused.
func (p *Proxy) setAccepted(ctx context.Context, want State) (State, state.Refusals, error) {
	if err := ctx.Err(); err != nil {
		return want, nil, err
	}
	vips, err := p.validate(want)
	if err != nil {
		return want, nil, err
	}
	limits := p.Limits()
	refused := limits.Refuse(vips)
	for _, v := range vips {
		if v.Want == nil {
			continue
		}
		if err := p.renderer.Lacks(state.Family(v.Want.Addr)); err != nil {
			refused.Add(v.Want, err)
		}
	}
	limits.RefuseTotal(p.entries, vips, refused)
	limits.RefusePrograms(want, vips, refused)
	good := want.Without(p.have, refused)
	if err = p.set(ctx, good); blamesState(err) {
		good, err = p.bisect(ctx, good, refused, err)
	}
	return good, refused, err
}

func (p *Proxy) set(ctx context.Context, want State) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	vips, err := state.DiffVIPs(p.have.VIPs, want.VIPs)
	if err != nil {
		return err
	}
	p.sweeper.Expect(want)
	p.bypass.shrink(ctx, want)
	// Taken before the kernel is read: later changes signal again.
	p.mark = p.watch.rules.mark()
	disturbed, recheck := p.watch.take(), p.recheck.Swap(false)
	p.forward.plan(want, vips, p.watch.takeForward() || recheck)
	if recheck || disturbed || !p.known || want.Node != p.have.Node {
		return p.reconcile(ctx, want)
	}
	c := state.DiffStates(p.have, want, vips)
	if c.Empty() && len(vips) == 0 && state.SameRedirects(p.have, want) {
		p.have = want
		return nil
	}
	// What changes no element may change a chain's name: the renderer has the say.
	switch err := p.renderer.Update(ctx, renderer.Step{Have: p.have, Want: want, VIPs: vips, Elements: c}); {
	case isStale(err):
		p.metrics.retries.Inc()
		return p.reconcile(ctx, want)
	case err != nil:
		p.known = false
		return err
	case c.Empty():
		p.have = want
		return nil
	}
	p.settle(want, p.elements+len(c.Add)-len(c.Del))
	p.sweeper.Add(conntrack.PlanPurge(c), want, p.swept)
	return nil
}

// validate finds what differs from the last State, and checks what of that belongs to no
// address.
func (p *Proxy) validate(want State) ([]state.VipChange, error) {
	vips, err := state.DiffVIPs(p.have.VIPs, want.VIPs)
	if err == nil && (!state.SameShared(p.have, want) || !state.SameRedirects(p.have, want)) {
		err = state.ValidateShared(want)
	}
	return vips, err
}

// settle notes that the kernel holds want.
func (p *Proxy) settle(want State, elements int) {
	changes, _ := state.DiffVIPs(p.have.VIPs, want.VIPs) // Set has looked at the order
	for _, c := range changes {
		p.entries += c.Want.Entries(p.Limits().Mode) - c.Have.Entries(p.Limits().Mode)
	}
	p.have, p.known, p.written, p.elements = want, true, true, elements
	p.metrics.elements.Set(float64(elements))
	p.metrics.vips.Set(float64(len(want.VIPs)))
}

// maxAttempts bounds how often a Set starts over because another program changes our
// table meanwhile.
const maxAttempts = 5

// reconcile reads the kernel's table and turns it into want's.
func (p *Proxy) reconcile(ctx context.Context, want State) error {
	// Only if the kernel is known to have held have does a difference mean
	// that another program interfered.
	expected := p.known
	p.known = false
	var err error
	for attempt := range maxAttempts {
		if attempt > 0 {
			p.metrics.retries.Inc()
		}
		if err = p.converge(ctx, want, expected); !isStale(err) {
			return err
		}
	}
	return err
}

func (p *Proxy) converge(ctx context.Context, want State, expected bool) error {
	var have *State
	if expected {
		have = &p.have
	}
	out, err := p.renderer.Converge(ctx, have, want)
	if out.Leaked {
		p.swept = nil
		if r := p.preparer.running; r != nil {
			r.stale = true
		}
	}
	if expected && p.damage == "" {
		p.damage = out.Found
	}
	if err != nil {
		return err
	}
	p.watch.rules.confirm(p.mark, time.Now())
	all := state.RenderState(want)
	p.settle(want, len(all))
	purge := conntrack.PlanPurge(state.DiffElements(out.Had, all))
	if !expected {
		purge.Orphan(out.Had)
	}
	p.sweeper.Add(purge, want, p.swept)
	if p.damage != "" {
		p.metrics.repairs.Inc()
		p.record.repaired(p.damage)
		p.log.WarnContext(ctx, "repaired the rules", "reason", p.damage)
		p.damage = ""
	}
	return nil
}

// Limits are those of the mode that p chose.
func (p *Proxy) Limits() Limits { return DefaultLimits(p.record.get().Mode) }
