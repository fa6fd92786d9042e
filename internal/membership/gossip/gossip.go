package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/suspend"
)

const (
	// tick is the interval of retries, and of the detection of a suspended process.
	tick = 100 * time.Millisecond
	// suspendedFor is a pause between two ticks that no load explains.
	suspendedFor = time.Second
	// keyInterval is how often the key file is read. It is small, and watching it is not
	// worth the effort: in a container it is a symlink to a symlink that is replaced.
	keyInterval = 2 * time.Second
	// listenRetry is the pause before the next attempt to listen.
	listenRetry = 2 * time.Second
	// maxJoins is how many joins are under way at a time.
	maxJoins = 8
	// joinsAtOnce is how many nodes to join after a suspension, or of the nodes that pinged.
	joinsAtOnce = 3
	// joinOneIn is the share of attempts to reach a former member that are joins, over TCP,
	// in case packets are lost; the others are pings.
	joinOneIn = 10
	// maxUnicast is how many nodes receive a broadcast directly, and pass it on to the rest.
	maxUnicast = 64
	// receiveQueue is how many messages wait for their reader.
	receiveQueue = 256
	// maxAhead is how far the boot number of a process, which is the time of its start, may be ahead
	// of this node's clock: no process could take a higher one than the highest number. Clocks in a
	// cluster differ by less, since certificates are commonly valid for a year. The number of a
	// process whose clock was set back is that of an earlier one and a little.
	maxAhead = 365 * 24 * time.Hour
	// leaveTimeout bounds each step of leaving.
	leaveTimeout = 500 * time.Millisecond
)

// A State is the state of a member.
type State uint8

const (
	// Alive: it responds.
	Alive State = iota
	// Left: its speaker was stopped or restarts.
	Left
	// Dead: it does not respond.
	Dead
)

func (s State) String() string { return [...]string{"alive", "left", "dead"}[s] }

// A Node is a node that may be a member.
type Node struct {
	Name  string
	Addrs []netip.Addr // at which it may be
}

// A Member is a node that has been alive, or that another member reports as dead.
type Member struct {
	Node  string
	State State
	Since time.Time // of the state
	Meta  []byte    // from its SetMeta
}

func (m Member) equal(o Member) bool {
	return m.Node == o.Node && m.State == o.State && m.Since.Equal(o.Since) && bytes.Equal(m.Meta, o.Meta)
}

// An entry is a member in memberlist's state and, while it is suspect, its state before.
type entry struct {
	Member
	before Member
	probe  *probe // of a suspect: memberlist takes it for dead; nil otherwise
	boot   uint64
	left   bool // it has left
}

// effective is the member as View shows it.
func (e *entry) effective() Member {
	if e.probe != nil {
		return e.before
	}
	return e.Member
}

// View is the state at one time. It is immutable.
type View struct {
	// Members are sorted by Node and include this one. While this node does not listen,
	// there are none: no node is known to be dead.
	Members []Member
}

// Options are what New needs.
type Options struct {
	Node       string // the name of this node
	Port       uint16 // UDP and TCP, the same on all nodes
	KeyFile    string
	Log        *slog.Logger
	Registerer prometheus.Registerer // of the metrics; nil: not registered
}

// A Gossip is this node's participation.
type Gossip struct {
	Options
	metrics   *metrics
	changed   chan struct{} // has room for one
	wake      chan struct{} // has room for one
	received  chan Message
	queue     *memberlist.TransmitLimitedQueue
	keysInUse atomic.Pointer[keysInUse] // of keys; nil before the first
	// nodeAt has the names of the nodes by their addresses. It is immutable.
	nodeAt  atomic.Pointer[map[netip.Addr]string]
	unknown *rate.Limiter // of reports of senders that are no node
	wrong   *rate.Limiter // of reports of senders at addresses of nodes
	// open listens: listenSockets, except in tests. now tells the time of the start.
	open func(netip.AddrPort, admission, *log.Logger) (memberlist.Transport, error)
	now  func() time.Time

	// Only Run uses these:
	keys          keyring
	readAt        time.Time // of the key file
	retryListenAt time.Time
	suspension    suspend.Detector
	joinedBackAt  time.Time            // when pings were last followed by joins
	joinAt        map[string]time.Time // when to try to reach a node again
	missing       []string             // the nodes that were not alive when joinMissing last looked

	mu        sync.Mutex
	nodes     map[string]Node
	members   map[string]*entry
	windows   map[string]*bootWindow // of messages
	list      *memberlist.Memberlist
	transport *sealedTransport // of list
	addr      netip.Addr       // where list listens
	boot      uint64           // a higher one than of any earlier process of this node
	raised    bool             // boot was, and the metadata must be sent again
	meta      []byte
	leaving   bool
	seq       uint64
	joining   map[string]bool
	pingedBy  map[string]bool // nodes that take this one for dead
	problems  problems
	view      *View
}

// New returns a Gossip that listens once Set has named this node and Run runs.
func New(o Options) *Gossip {
	g := &Gossip{
		Options: o, metrics: newMetrics(o.Registerer), changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		received: make(chan Message, receiveQueue), open: listenSockets, now: time.Now, joinAt: map[string]time.Time{},
		nodes: map[string]Node{}, members: map[string]*entry{}, windows: map[string]*bootWindow{},
		unknown: rate.NewLimiter(rate.Every(reportInterval), 1), wrong: rate.NewLimiter(rate.Every(reportInterval), 1),
		joining: map[string]bool{}, pingedBy: map[string]bool{}, problems: problems{}, view: &View{},
	}
	g.nodeAt.Store(&map[netip.Addr]string{})
	g.queue = &memberlist.TransmitLimitedQueue{NumNodes: g.countAlive, RetransmitMult: 3}
	return g
}

// Set sets the nodes of the cluster, including this one. Only these can be members.
func (g *Gossip) Set(nodes []Node) {
	at := make(map[netip.Addr]string, len(nodes))
	for _, n := range nodes {
		for _, a := range n.Addrs {
			at[a] = n.Name
		}
	}
	g.nodeAt.Store(&at)
	g.currentTransport().keepOnly(at)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nodes = make(map[string]Node, len(nodes))
	for _, n := range nodes {
		g.nodes[n.Name] = n
	}
	for name := range g.members {
		if _, exists := g.nodes[name]; !exists {
			delete(g.members, name)
		}
	}
	g.wakeUp()
}

// SetMeta sets what other nodes see as this node's Meta: MaxMeta bytes at most.
func (g *Gossip) SetMeta(meta []byte) error {
	if len(meta) > MaxMeta {
		return fmt.Errorf("metadata of %d bytes; want %d at most", len(meta), MaxMeta)
	}
	g.mu.Lock()
	same := bytes.Equal(g.meta, meta)
	g.meta = bytes.Clone(meta)
	list := g.list
	g.mu.Unlock()
	if same || list == nil {
		return nil
	}
	g.wakeUp()
	go list.UpdateNode(leaveTimeout) // it blocks until another node has received it
	return nil
}

// Changed has a value when View has changed.
func (g *Gossip) Changed() <-chan struct{} { return g.changed }

// Received returns the messages of other nodes, each once, in the order of arrival.
func (g *Gossip) Received() <-chan Message { return g.received }

// View returns the current members.
func (g *Gossip) View() *View {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.view
}

// Problems are what a user must correct, sorted.
func (g *Gossip) Problems() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.problems.list(time.Now())
}

// Run listens until ctx ends. The other nodes then take this one for dead, except after
// Leave.
func (g *Gossip) Run(ctx context.Context) {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	defer g.stop()
	for woken := true; ; {
		now := time.Now()
		g.readKeys(now)
		g.listen(now)
		g.sendRaisedBoot()
		g.joinMissing(now, woken)
		g.joinBack(now)
		if woken {
			g.publish()
		}
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
			woken = true
		case <-ticks.C:
			woken = false
		}
	}
}

// Leave reports that this node's speaker stops on purpose.
func (g *Gossip) Leave() {
	g.mu.Lock()
	g.leaving = true
	list := g.list
	g.mu.Unlock()
	if list == nil {
		return
	}
	// The message reaches nodes that are members now. The metadata is for nodes that join
	// later; alone it would not do, since memberlist sends only the newest state of a node,
	// and the end of its process comes next.
	err := errors.Join(g.broadcast(kindLeave, nil), list.UpdateNode(leaveTimeout), list.Leave(leaveTimeout))
	if err != nil {
		g.Log.Debug("leaving", "err", err)
	}
}

// wakeUp makes Run look at once. It must follow each change of what publish shows, and of the
// nodes that joinMissing tries to reach: a tick alone looks at no other member, since ten times a
// second that would cost a hundredth of a core with 1,000 members.
func (g *Gossip) wakeUp() {
	notify.Changed(g.wake)
}

// currentTransport returns memberlist's Transport, nil after stop. It calls methods that lock mu, so it must
// be called without that lock.
func (g *Gossip) currentTransport() *sealedTransport {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.transport
}

// countAlive counts the members in memberlist's state alive, including this one. It locks mu.
func (g *Gossip) countAlive() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return aliveAmong(g.members)
}

func aliveAmong(members map[string]*entry) (n int) {
	for _, m := range members {
		if m.State == Alive {
			n++
		}
	}
	return n
}

// publish makes a View of the members, and logs what has changed.
func (g *Gossip) publish() {
	g.mu.Lock()
	next := &View{}
	if g.list != nil {
		for name, m := range g.members {
			if _, expected := g.nodes[name]; expected {
				next.Members = append(next.Members, m.effective())
			}
		}
	}
	slices.SortFunc(next.Members, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	was := g.view
	same := slices.EqualFunc(was.Members, next.Members, Member.equal)
	if !same {
		g.view = next
	}
	g.mu.Unlock()
	if same {
		return
	}
	g.metrics.observe(next)
	g.logChanges(was, next)
	notify.Changed(g.changed)
}

// logChanges logs each change of state, and counts deaths.
func (g *Gossip) logChanges(was, is *View) {
	before := map[string]State{}
	for _, m := range was.Members {
		before[m.Node] = m.State
	}
	for _, m := range is.Members {
		old, known := before[m.Node]
		switch {
		case m.Node == g.Node || known && old == m.State:
		case m.State == Dead:
			g.metrics.deaths.Inc()
			g.Log.Warn("node is dead", "node", m.Node)
		case m.State == Left:
			g.Log.Info("node has left", "node", m.Node)
		case known:
			g.Log.Info("node is alive again", "node", m.Node)
		default:
			g.Log.Info("node is alive", "node", m.Node)
		}
	}
}
