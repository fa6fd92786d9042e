package obstacle

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/internal/notify"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// When the monitor looks. A look takes milliseconds, tens of them beside tens of
// thousands of chains, and other programs change rules by the hundred.
const (
	lookSoon  = time.Second     // between two looks, after a notification
	lookAgain = 5 * time.Second // while there is an obstacle: a user who removes it wants to see that
	lookLater = time.Minute     // between two looks because a State changed
	lookShare = 20              // a look may take one part in so many of the time
)

// A Monitor finds obstacles to traffic on this node. It runs beside Set, which never
// waits for it.
type Monitor struct {
	log    *slog.Logger
	looks  prometheus.Observer // how long each took, in seconds
	count  func(now []Obstacle)
	notify func() // obstacles have come or gone
	netns  *os.File

	state atomic.Pointer[state.State]
	nat   atomic.Int32  // the priority at which our rules translate
	soon  chan struct{} // capacity 1: look soon
	later chan struct{} // capacity 1: look within lookLater
	quit  context.CancelFunc
	done  chan struct{}
	once  sync.Once

	// Met are the chains that the last look simulated: changes of
	// other chains are not worth a look.
	Met atomic.Pointer[map[chainID]bool]
	// looking says that met is about to change.
	looking atomic.Bool

	mu        sync.Mutex
	obstacles []Obstacle
	unseen    []string
}

// New begins in the network namespace of the calling thread. count is called with what
// each look found, and notify if that is not what the look before found.
func New(log *slog.Logger, looks prometheus.Observer, count func([]Obstacle), notify func()) (*Monitor, error) {
	netns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	ctx, quit := context.WithCancel(context.Background())
	l := &Monitor{
		log: log, looks: looks, count: count, notify: notify, netns: netns,
		soon: make(chan struct{}, 1), later: make(chan struct{}, 1), quit: quit, done: make(chan struct{}),
	}
	l.nat.Store(PriorityNFTables)
	go l.run(ctx)
	return l, nil
}

// TranslateAt says at which priority our rules translate.
func (l *Monitor) TranslateAt(priority int32) { l.nat.Store(priority) }

// SetState takes a State that was set. look asks for a look soon.
func (l *Monitor) SetState(s state.State, look bool) {
	before := l.state.Swap(&s)
	switch {
	case look || before == nil || (len(before.VIPs) == 0) != (len(s.VIPs) == 0):
		notify.Changed(l.soon)
	default:
		notify.Changed(l.later)
	}
}

func (l *Monitor) run(ctx context.Context) {
	defer close(l.done)
	// Files below /proc and new sockets are of the thread's namespace. The thread ends
	// with this goroutine.
	runtime.LockOSThread()
	if err := enter(l.netns); err != nil {
		l.publish(ctx, nil, []string{fmt.Sprintf("anything, from another network namespace: %v", err)})
		return
	}
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	var before Tallies
	var last, due time.Time // due: zero when no look is
	interval := lookSoon
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
			by(last.Add(interval))
		case <-l.later:
			by(last.Add(lookLater))
		case <-timer.C:
			began := time.Now()
			obstacles, unseen := l.look(&before)
			l.publish(ctx, obstacles, unseen)
			last, due = time.Now(), time.Time{}
			interval = max(lookSoon, lookShare*last.Sub(began))
			if len(obstacles) > 0 {
				by(last.Add(lookAgain))
			}
		}
	}
}

// enter moves the thread into a namespace. It is there already, unless New was called on a
// thread that its caller had moved; then moving this one takes CAP_SYS_ADMIN.
func enter(netns *os.File) error {
	var want, have unix.Stat_t
	if err := unix.Fstat(int(netns.Fd()), &want); err != nil {
		return err
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &have); err != nil {
		return err
	}
	if want.Ino == have.Ino && want.Dev == have.Dev {
		return nil
	}
	return unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET)
}

// look returns what is in the way now, and what could not be looked at.
func (l *Monitor) look(before *Tallies) (obstacles []Obstacle, unseen []string) {
	l.looking.Store(true)
	defer l.looking.Store(false)
	start := time.Now()
	s := Survey(*l.state.Load(), before)
	obstacles, met := s.Judge(l.nat.Load())
	l.Met.Store(&met)
	l.looks.Observe(time.Since(start).Seconds())
	return obstacles, s.Unseen
}

// Judge returns the obstacles among what was found, by the priority at which our rules
// translate, and the chains that were read.
func (s *survey) Judge(nat int32) (obstacles []Obstacle, met map[chainID]bool) {
	obstacles, met = judge(&s.Facts), make(map[chainID]bool)
	sock, err := nfnl.Dial()
	if err != nil {
		s.miss("nftables", err)
		return obstacles, met
	}
	defer sock.Close()
	rules, err := readRuleset(sock, nat)
	s.miss("chains of nftables", err)
	obstacles = append(obstacles, judgeRules(rules, s.Facts.arrivals())...)
	obstacles = append(obstacles, judgeOrder(rules, s.Facts.families)...)
	s.miss("rules of nftables", rules.err)
	for id := range rules.rules {
		met[id] = true
	}
	obstacles = append(obstacles, s.legacyRules()...)
	slices.SortFunc(obstacles, Obstacle.compare)
	return obstacles, met
}

// publish stores the obstacles, logs what has changed, and notifies.
func (l *Monitor) publish(ctx context.Context, obstacles []Obstacle, unseen []string) {
	l.count(obstacles)
	l.mu.Lock()
	before := l.obstacles
	l.obstacles, l.unseen = obstacles, unseen
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
	if !slices.EqualFunc(before, obstacles, Obstacle.Same) {
		l.notify()
	}
}

// Found is what is in the way, and what could not be looked at.
func (l *Monitor) Found() ([]Obstacle, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.obstacles, l.unseen
}

// Receive takes a notification of nftables. While a look runs, the change may be in a chain
// that the look has read already, or that it has yet to find.
func (l *Monitor) Receive(kind uint8, data []byte) {
	if l.state.Load() == nil {
		return // no State has been set yet
	}
	var met map[chainID]bool
	if known := l.Met.Load(); known != nil {
		met = *known
	}
	if concerns(met, kind, data) || l.looking.Load() && tableOf(data).foreign() {
		notify.Changed(l.soon)
	}
}

// tableOf is the table that a notification is of; that of one without is of no family.
func tableOf(data []byte) tableID {
	if len(data) < nfnl.SizeofGenMsg {
		return tableID{}
	}
	return tableID{data[0], nfnl.CString(nfnl.Attribute(data[nfnl.SizeofGenMsg:], unix.NFTA_TABLE_NAME))}
}

// concerns says whether a notification may be of what the last look saw: a rule in a
// chain that our packets meet, or a chain at a hook that comes or goes. Sets are
// looked at with the next rule.
func concerns(met map[chainID]bool, kind uint8, data []byte) bool {
	table := tableOf(data)
	if !table.foreign() && !table.kubeProxy() {
		return false
	}
	all := data[nfnl.SizeofGenMsg:]
	switch kind {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		return nfnl.Attribute(all, unix.NFTA_CHAIN_HOOK) != nil || met[chainID{table, nfnl.CString(nfnl.Attribute(all, unix.NFTA_CHAIN_NAME))}]
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return met[chainID{table, nfnl.CString(nfnl.Attribute(all, unix.NFTA_RULE_CHAIN))}]
	}
	return false
}

func (l *Monitor) Close() error {
	var err error
	l.once.Do(func() {
		l.quit()
		<-l.done
		err = l.netns.Close()
	})
	return err
}
