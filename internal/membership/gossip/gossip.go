package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// tick is how often is looked who is to be tried, and whether we were frozen.
	tick = 100 * time.Millisecond
	// frozen is a pause between two ticks that no load explains.
	frozen = time.Second
	// keyInterval is how often the key file is read: it is small, and what replaces it
	// in a container (a symlink of a symlink) is not worth to be watched.
	keyInterval = 2 * time.Second
	// startRetry is after how long to try again to listen.
	startRetry = 2 * time.Second
	// atOnce is how many others are tried at a time.
	atOnce = 8
	// greet is how many are asked after a pause.
	greet = 3
	// connects is how many attempts to reach somebody who was there are for one by a
	// connection, should packets not get through; the others knock.
	connects = 10
	// direct is up to how many others a message is sent to at once; the others hear it
	// from those.
	direct = 64
	// inbox is how many messages wait for their reader.
	inbox = 256
	// farewell is how long the last words may take.
	farewell = 500 * time.Millisecond
)

// A State is what is known of a member.
type State uint8

const (
	// Alive has answered lately.
	Alive State = iota
	// Left has said farewell.
	Left
	// Dead does not answer.
	Dead
)

func (s State) String() string { return [...]string{"alive", "left", "dead"}[s] }

// A Node is one that may be a member.
type Node struct {
	Name  string
	Addrs []netip.Addr // that it may be at
}

// A Member is a node that was heard of.
type Member struct {
	Node  string
	State State
	Since time.Time // when it became so
	Meta  []byte    // what it has said by SetMeta
}

func (m Member) equal(o Member) bool {
	return m.Node == o.Node && m.State == o.State && m.Since.Equal(o.Since) && bytes.Equal(m.Meta, o.Meta)
}

// An entry is a member as memberlist has it, and, of one that is dead, what it was.
type entry struct {
	Member
	before  Member
	hearing *hearing // of one that memberlist takes for dead; nil when it is
	boot    uint32   // of its process
	left    bool     // it has said farewell
}

// counts is what the member counts as.
func (e *entry) counts() Member {
	if e.hearing != nil {
		return e.before
	}
	return e.Member
}

// View is what is known at one time. It is immutable.
type View struct {
	// Members are sorted by Node, this one among them. None, while this node does not
	// listen: then nobody is known to be dead.
	Members []Member
}

// Options are what New needs.
type Options struct {
	Node    string // the name of this node
	Port    uint16 // UDP and TCP, the same on all nodes
	KeyFile string
	Log     *slog.Logger
	// Registerer gets the metrics; nil: nobody does.
	Registerer prometheus.Registerer
}

// A Gossip is one node's part in it.
type Gossip struct {
	Options
	metrics  *metrics
	changed  chan struct{} // has room for one
	poke     chan struct{} // has room for one
	received chan Message
	queue    *memberlist.TransmitLimitedQueue
	boot     uint64
	// open returns what listens at an address: sockets, but in tests.
	open func(netip.AddrPort, *log.Logger) (memberlist.Transport, error)

	// Of run alone:
	keys     keyring
	readAt   time.Time // when the key file was read last
	startAt  time.Time // when to try to listen
	tickAt   time.Time
	calledAt time.Time            // when others were called back last
	next     map[string]time.Time // when to try a node again

	mu       sync.Mutex
	nodes    map[string]Node
	table    map[string]*entry
	heard    map[string]*seen
	list     *memberlist.Memberlist
	wire     memberlist.Transport // of list
	ring     *memberlist.Keyring
	at       netip.Addr // where list listens
	meta     []byte
	leaving  bool
	seq      uint64
	trying   map[string]bool
	knocks   map[string]bool // who has knocked
	problems problems
	view     *View
}

// New returns one that neither listens nor speaks until Set has said where, and Run
// runs.
func New(o Options) *Gossip {
	g := &Gossip{
		Options: o, metrics: newMetrics(o.Registerer), changed: make(chan struct{}, 1), poke: make(chan struct{}, 1), received: make(chan Message, inbox),
		boot: rand.Uint64(), open: sockets, next: map[string]time.Time{}, nodes: map[string]Node{}, table: map[string]*entry{}, heard: map[string]*seen{},
		trying: map[string]bool{}, knocks: map[string]bool{}, problems: problems{}, view: &View{},
	}
	g.queue = &memberlist.TransmitLimitedQueue{NumNodes: g.alive, RetransmitMult: 3}
	return g
}

// Set says which nodes there are, this one among them. Others are no members.
func (g *Gossip) Set(nodes []Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nodes = make(map[string]Node, len(nodes))
	for _, n := range nodes {
		g.nodes[n.Name] = n
	}
	for name := range g.table {
		if _, there := g.nodes[name]; !there {
			delete(g.table, name)
		}
	}
	g.nudge()
}

// SetMeta says what the others are to know of this node: MaxMeta bytes at most.
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
	g.nudge()
	go list.UpdateNode(farewell) // it waits until somebody was told, which is its own affair
	return nil
}

// Changed has a value when View has another answer than before.
func (g *Gossip) Changed() <-chan struct{} { return g.changed }

// Received are the messages of others, each once, in the order of their arrival.
func (g *Gossip) Received() <-chan Message { return g.received }

// View is who is there.
func (g *Gossip) View() *View {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.view
}

// Problems are what somebody has to mend, sorted.
func (g *Gossip) Problems() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.problems.list(time.Now())
}

// Broadcast tells all members something, or as many as hear it: most in the time of a
// packet, and who missed that from others. An error says that nobody is told.
func (g *Gossip) Broadcast(data []byte) error {
	if err := check(g.Node, data); err != nil {
		return err
	}
	return g.send(word, data)
}

// Tell tells one member something, by a packet that may get lost: nobody passes it on. An
// error says that it was not sent.
func (g *Gossip) Tell(node string, data []byte) error {
	if err := check(g.Node, data); err != nil {
		return err
	}
	list, b, err := g.seal(whisper, data)
	if err != nil {
		return err
	}
	for _, n := range list.Members() {
		if n.Name == node {
			return list.SendBestEffort(n, b)
		}
	}
	return fmt.Errorf("node %s is no member", node)
}

// seal makes what is sent.
func (g *Gossip) seal(k kind, data []byte) (list *memberlist.Memberlist, b []byte, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil {
		return nil, nil, errors.New("this node is no member")
	}
	g.seq++
	return g.list, envelope{Message{g.Node, data}, k, g.boot, g.seq}.bytes(), nil
}

// send tells all members something.
func (g *Gossip) send(k kind, data []byte) error {
	list, b, err := g.seal(k, data)
	if err != nil {
		return err
	}
	g.queue.QueueBroadcast(rumour(b))
	others := slices.DeleteFunc(list.Members(), func(n *memberlist.Node) bool { return n.Name == g.Node })
	for _, n := range others[:min(len(others), direct)] {
		if err := list.SendBestEffort(n, b); err != nil {
			g.Log.Debug("message", "to", n.Name, "err", err)
		}
	}
	return nil
}

// Run listens, until ctx ends. It ends without a word: see Leave.
func (g *Gossip) Run(ctx context.Context) {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	defer g.shut()
	for {
		now := time.Now()
		g.readKeys(now)
		g.listen(now)
		g.try(now)
		g.callBack(now)
		g.publish(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-g.poke:
		case <-ticks.C:
		}
	}
}

// Leave tells the others that this node's speaker goes, and that nothing has happened
// to the node.
func (g *Gossip) Leave() {
	g.mu.Lock()
	g.leaving = true
	list := g.list
	g.mu.Unlock()
	if list == nil {
		return
	}
	// By the metadata alone not everybody would hear it: memberlist sends only the newest
	// of what it has to say about a node, and that it has gone comes next. It is for those
	// who ask later.
	err := errors.Join(g.send(goodbye, nil), list.UpdateNode(farewell), list.Leave(farewell))
	if err != nil {
		g.Log.Debug("farewell", "err", err)
	}
}

func (g *Gossip) nudge() {
	select {
	case g.poke <- struct{}{}:
	default:
	}
}

// readKeys reads the key file when it is time to. Without a readable one the keys that
// are known stay in use.
func (g *Gossip) readKeys(now time.Time) {
	if now.Sub(g.readAt) < keyInterval {
		return
	}
	g.readAt = now
	keys, err := readKeys(g.KeyFile)
	g.mu.Lock()
	g.problems.set("key", now, err)
	ring := g.ring
	g.mu.Unlock()
	switch {
	case err == nil:
		g.keys.read(keys, now)
	case len(g.keys.file) > 0:
		g.keys.choose(now)
	}
	if ring != nil {
		if err := turn(ring, &g.keys); err != nil {
			g.Log.Error("keys", "err", err)
		}
	}
}

// turn makes a ring what the keys say.
func turn(ring *memberlist.Keyring, keys *keyring) error {
	var errs []error
	accepted := keys.accepted()
	for _, k := range accepted {
		errs = append(errs, ring.AddKey(k[:]))
	}
	errs = append(errs, ring.UseKey(keys.use[:]))
	for _, have := range ring.GetKeys() {
		if !slices.Contains(accepted, key(have)) {
			errs = append(errs, ring.RemoveKey(have))
		}
	}
	return errors.Join(errs...)
}

// alive is how many members are there, this one among them.
func (g *Gossip) alive() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.aliveLocked()
}

func (g *Gossip) aliveLocked() (n int) {
	for _, m := range g.table {
		if m.State == Alive {
			n++
		}
	}
	return n
}

// publish makes what is known the view, and logs what has changed.
func (g *Gossip) publish(now time.Time) {
	g.mu.Lock()
	next := &View{}
	if g.list != nil {
		for name, m := range g.table {
			if _, expected := g.nodes[name]; expected {
				next.Members = append(next.Members, m.counts())
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
	g.tell(was, next)
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// tell logs who has come and gone.
func (g *Gossip) tell(was, is *View) {
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
			g.Log.Warn("node is not heard of any more", "node", m.Node)
		case m.State == Left:
			g.Log.Info("speaker has said farewell", "node", m.Node)
		case known:
			g.Log.Info("node is heard of again", "node", m.Node)
		default:
			g.Log.Info("node is heard of", "node", m.Node)
		}
	}
}

// stranger takes down that somebody speaks without a key of ours.
func (g *Gossip) stranger(from netip.Addr) {
	g.metrics.strangers.Inc()
	g.mu.Lock()
	defer g.mu.Unlock()
	who := from.String()
	for name, n := range g.nodes {
		if slices.Contains(n.Addrs, from) {
			who = "node " + name + " (" + who + ")"
		}
	}
	g.problems.set("stranger "+from.String(), time.Now(), fmt.Errorf("%s speaks to us with another key, or with none, and is not listened to; is its key file the same, and is port %s open to nodes only?", who, strconv.Itoa(int(g.Port))))
}

// addrOf is a memberlist address.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
