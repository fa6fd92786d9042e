package obstacle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/linkwatch"
	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// When the monitor looks. A look takes some milliseconds, or tens of them beside tens of
// thousands of chains. Other programs change rules by the hundred, so looks are limited.
const (
	lookSoon  = time.Second     // between two looks after notifications, if no address waits
	lookAgain = 5 * time.Second // while there is an obstacle: a user who removes it wants to see that
	// lookConfirm is how soon a new obstacle is looked for again before it blocks flows:
	// firewalls drop everything for a moment while they load their rules.
	lookConfirm = 2 * time.Second
	// lookPatience is how long new addresses wait for a look.
	lookPatience = 5 * time.Second
	lookLater    = time.Minute // between two looks because a State changed
	lookShare    = 20          // looks take at most 1/lookShare of the time
)

// A Monitor finds obstacles to traffic on this node. It runs in its own goroutine: Set of
// package proxy never waits for it. Its methods are safe for concurrent use.
type Monitor struct {
	log    *slog.Logger
	looks  prometheus.Observer // how long each took, in seconds
	count  func(now []Obstacle)
	notify func()       // obstacles or the Blockade have come or gone
	enter  func() error // the network namespace

	state    atomic.Pointer[state.State]
	closed   atomic.Pointer[[]string] // the iptables whose FORWARD could not be opened
	blockade atomic.Pointer[Blockade]
	nat      atomic.Int32  // the priority at which our rules translate
	soon     chan struct{} // capacity 1: look soon
	later    chan struct{} // capacity 1: look within lookLater
	quit     context.CancelFunc
	done     chan struct{}

	mu        sync.Mutex
	obstacles []Obstacle
	unseen    []string
	seen      [2]bool       // the families that had VIPs at the last look
	waiting   chan struct{} // of SetState, closed after the next look; nil: nothing waits

	history history // belongs to run
}

// New starts a Monitor, which runs until Close. enter locks the calling goroutine to its thread
// and moves that to the network namespace. The Monitor does not look before the first SetState. It
// calls count after each look, and notify if the obstacles differ from those of the look before;
// both run in its goroutine, and must not block.
func New(log *slog.Logger, looks prometheus.Observer, count func([]Obstacle), notify func(),
	enter func() error) *Monitor {
	ctx, quit := context.WithCancel(context.Background())
	l := &Monitor{
		log: log, looks: looks, count: count, notify: notify, enter: enter,
		soon: make(chan struct{}, 1), later: make(chan struct{}, 1), quit: quit, done: make(chan struct{}),
	}
	l.nat.Store(PriorityNFTables)
	l.closed.Store(new([]string))
	go l.run(ctx)
	return l
}

// TranslateAt sets the priority of the hook at which Fanfare's rules translate, from the next
// look on; the default is PriorityNFTables.
func (l *Monitor) TranslateAt(priority int32) { l.nat.Store(priority) }

// SetClosed reports the programs of iptables whose chain FORWARD drops Fanfare's traffic and
// could not be changed. A look follows a change.
func (l *Monitor) SetClosed(programs []string) {
	if before := l.closed.Swap(&programs); !slices.Equal(*before, programs) {
		notify.Changed(l.soon)
	}
}

// SetState reports what the kernel forwards now. A look follows soon, mostly within a second, if
// look is true, if s is the first State, or if a family has its first address or lost its last
// one; else within a minute. The Monitor keeps s, which must not be modified.
//
// If s has addresses of a family of which no look has seen any, the result is a channel that is
// closed after the next look: until then it is not known whether they are blocked.
func (l *Monitor) SetState(s state.State, look bool) (looked <-chan struct{}) {
	before := l.state.Swap(&s)
	now, had := vipFamilies(&s), [2]bool{}
	if before != nil {
		had = vipFamilies(before)
	}
	if now[0] && !had[0] || now[1] && !had[1] {
		l.mu.Lock()
		if l.waiting == nil {
			l.waiting = make(chan struct{})
		}
		looked = l.waiting
		l.mu.Unlock()
	}
	if look || before == nil || now != had {
		notify.Changed(l.soon)
	} else {
		notify.Changed(l.later)
	}
	return looked
}

// vipFamilies reports which families have VIPs. IPv4 comes first in a State.
func vipFamilies(s *state.State) (has [2]bool) {
	if n := s.VIPs.Len(); n > 0 {
		has[state.Family(s.VIPs.At(0).Addr)], has[state.Family(s.VIPs.At(n-1).Addr)] = true, true
	}
	return has
}

// Await waits for a look that SetState has announced, and not for long: a look takes milliseconds.
func (l *Monitor) Await(ctx context.Context, looked <-chan struct{}) {
	if looked == nil {
		return
	}
	timer := time.NewTimer(lookPatience)
	defer timer.Stop()
	select {
	case <-looked:
	case <-l.done:
	case <-timer.C:
		l.log.WarnContext(ctx, "the search for obstacles takes long: addresses are announced meanwhile")
	case <-ctx.Done():
	}
}

// Blockade returns the flows that certainly fail on this node, as far as looks have confirmed;
// nil if none do. The pointer stays the same as long as the Blockade does.
func (l *Monitor) Blockade() *Blockade { return l.blockade.Load() }

// From linux/rtnetlink.h: a sysctl for forwarding was set, or an interface has appeared.
const (
	groupNetconf4 = 24
	groupNetconf6 = 25
)

// run looks when it is signalled, and again while there are obstacles, until ctx ends. It delays
// looks so that they take at most 1/lookShare of the time.
func (l *Monitor) run(ctx context.Context) {
	defer close(l.done)
	if err := l.enter(); err != nil {
		l.publish(ctx, [2]bool{}, nil, []string{fmt.Sprintf("anything, from another network namespace: %v", err)})
		return // Await sees that no look will follow
	}
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() {
		if l.enter() == nil {
			linkwatch.Run(ctx, l.soon, groupNetconf4, groupNetconf6)
		}
	})
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	var before Counter
	var last, due time.Time // due: zero when no look is
	var took time.Duration  // by the last look
	by := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
			timer.Reset(time.Until(at))
		}
	}
	for {
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-l.soon:
			if l.state.Load() == nil {
				continue // a change of the node before the first State
			}
			by(last.Add(l.pause(took)))
		case <-l.later:
			by(last.Add(lookLater))
		case <-timer.C:
			l.mu.Lock()
			waiting := l.waiting
			l.waiting = nil
			l.mu.Unlock()
			began, state := time.Now(), *l.state.Load()
			obstacles, unseen := l.look(state, &before)
			unconfirmed := l.publish(ctx, vipFamilies(&state), obstacles, unseen)
			if waiting != nil {
				close(waiting)
			}
			last, due = time.Now(), time.Time{}
			took = last.Sub(began)
			switch {
			case unconfirmed:
				by(last.Add(lookConfirm))
			case len(obstacles) > 0:
				by(last.Add(lookAgain))
			}
		}
	}
}

// pause returns how long the next look waits after one that took so long. New addresses that wait
// for it are announced late, so that only the share of the time bounds it then.
func (l *Monitor) pause(took time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting != nil {
		return lookShare * took
	}
	return max(lookSoon, lookShare*took)
}

// look returns the obstacles at present, and what could not be read. If samples show that none of
// them passes, it tries all flows.
func (l *Monitor) look(state state.State, before *Counter) (obstacles []Obstacle, unseen []string) {
	start := time.Now()
	closed := *l.closed.Load()
	s := Collect(state, before)
	obstacles = s.Judge(l.nat.Load(), closed...)
	if s.facts.partial != 0 && slices.ContainsFunc(obstacles, func(o Obstacle) bool {
		return o.Code == Firewall || o.Code == Untracked || o.Code == ForwardingOff
	}) {
		s.sample(state, allSamples, allSamples)
		obstacles = s.Judge(l.nat.Load(), closed...)
	}
	l.looks.Observe(time.Since(start).Seconds())
	slices.Sort(s.Unseen)
	return obstacles, slices.Compact(s.Unseen)
}

// Judge reads the rules of other programs and returns all obstacles, sorted by Code and About, not
// nil. nat is the priority of the hook at which Fanfare's rules translate, and closed are the
// iptables whose FORWARD could not be opened. It adds to Unseen what it could not read.
func (s *collector) Judge(nat int32, closed ...string) []Obstacle {
	all := judge(&s.facts)
	sock, err := nfnl.Dial()
	if err != nil {
		s.miss("nftables", err)
		return all
	}
	defer sock.Close()
	rules, err := readRuleset(sock, nat)
	s.miss("chains of nftables", err)
	all = append(all, slices.Concat(rules.judge(&s.facts), s.facts.plugin.judgeOVN(rules.bases),
		s.judgeClosed(closed))...)
	s.miss("rules of nftables", rules.err)
	slices.SortFunc(all, Obstacle.compare)
	return all
}

// publish stores the obstacles of a look, logs what has changed, and notifies. A new obstacle
// blocks flows only once all looks have found it for lookConfirm; unconfirmed reports that this is
// still missing. It blocks at once if the family had no VIPs before. An obstacle that is gone no
// longer blocks anything.
func (l *Monitor) publish(ctx context.Context, families [2]bool, obstacles []Obstacle,
	unseen []string) (unconfirmed bool) {
	l.count(obstacles)
	l.mu.Lock()
	before := l.obstacles
	fresh := [2]bool{!l.seen[0], !l.seen[1]}
	l.obstacles, l.unseen, l.seen = obstacles, unseen, families
	l.mu.Unlock()
	for _, o := range obstacles {
		if !slices.ContainsFunc(before, o.Same) {
			l.log.WarnContext(ctx, "something on this node is in the way of traffic", "reason", o.Message)
		}
	}
	for _, b := range before {
		if !slices.ContainsFunc(obstacles, b.Same) {
			l.log.InfoContext(ctx, "no longer in the way of traffic", "reason", b.About)
		}
	}
	var confirmed []Obstacle
	confirmed, l.history = l.history.confirm(obstacles, fresh, time.Now())
	next := NewBlockade(confirmed...)
	changed := !next.equal(l.blockade.Load())
	if changed {
		l.blockade.Store(next)
	}
	if changed || !slices.EqualFunc(before, obstacles, Obstacle.Same) {
		l.notify()
	}
	return !next.equal(NewBlockade(obstacles...))
}

// Found returns the obstacles of the last look, sorted, and what it could not read. The obstacles
// are nil before the first look. The caller must not modify the slices.
func (l *Monitor) Found() ([]Obstacle, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.obstacles, l.unseen
}

// Receive handles a notification of the netlink group NFNLGRP_NFTABLES: kind is its message type
// without the subsystem, data begins with nfgenmsg. It never blocks.
func (l *Monitor) Receive(kind uint8, data []byte) {
	if concerns(kind, data) {
		notify.Changed(l.soon)
	}
}

// concerns reports whether a notification may change the result of a look: a rule of another
// program, or a new or deleted chain at a hook. Chains that change with each Service, kube-proxy's
// and Fanfare's own, do not count. The next look sees the change of a set.
func concerns(kind uint8, data []byte) bool {
	if len(data) < nfnl.SizeofGenMsg {
		return false
	}
	all := data[nfnl.SizeofGenMsg:]
	table := tableID{data[0], nfnl.CString(nfnl.Attribute(all, unix.NFTA_TABLE_NAME))}
	at := unix.NFTA_CHAIN_NAME
	if kind == unix.NFT_MSG_NEWRULE || kind == unix.NFT_MSG_DELRULE {
		at = unix.NFTA_RULE_CHAIN
	}
	chain := nfnl.CString(nfnl.Attribute(all, uint16(at)))
	others := table.foreign() && !strings.HasPrefix(chain, "KUBE-") && !strings.HasPrefix(chain, "FAN")
	switch kind {
	case unix.NFT_MSG_NEWCHAIN:
		return (others || table.kubeProxy()) && nfnl.Attribute(all, unix.NFTA_CHAIN_HOOK) != nil
	case unix.NFT_MSG_DELCHAIN: // without its hook, since Linux 6.4
		return others || table.kubeProxy() && nfnl.Attribute(all, unix.NFTA_CHAIN_HOOK) != nil
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return others
	}
	return false
}

// Close stops the goroutine, and waits for a look that is under way.
func (l *Monitor) Close() {
	l.quit()
	<-l.done
}
