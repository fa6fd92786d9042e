package nftables

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

const (
	// lookInterval is the shortest time between two looks for full maps. After a look, the pause is
	// lookShare times as long as the look took: a flood of clients that keeps filling a map costs 5
	// % of a core.
	lookInterval = time.Second
	lookShare    = 19
	// evictShare is the share of a full map that is evicted at once: one in evictShare entries.
	evictShare = 4
	// evictBatch is how many entries one transaction deletes. If one of them has just expired, the
	// kernel deletes none.
	evictBatch = 1000
)

// An AffinityEvictor watches the maps of affinity. The kernel limits each to 65,535 clients and
// cannot evict: it does not record further clients. So an AffinityEvictor deletes the entries of a
// full map that were not renewed for the longest time. It has its own socket, so that no caller of
// Set waits.
type AffinityEvictor struct {
	log     *slog.Logger
	evicted prometheus.Counter
	quit    chan struct{}
	done    chan struct{}
	once    sync.Once

	// changing is held while a transaction is made and counted.
	changing sync.Mutex

	mu   sync.Mutex // guards the fields below
	sock *nfnl.Socket
	last uint64            // flows counted by chain full
	seen map[string]uint64 // the same, by learning chain
	full map[state.AffinityID]AffinityOverflow
}

// AffinityOverflow counts clients of a frontend whose map was full.
type AffinityOverflow struct {
	Unremembered uint64 // new flows whose clients could not be recorded
	Evicted      uint64 // clients evicted for others
	Last         time.Time
}

// NewAffinityEvictor connects to the kernel and begins to watch. If r is not nil, it gets the
// counts as metrics.
func NewAffinityEvictor(log *slog.Logger, r prometheus.Registerer) (*AffinityEvictor, error) {
	sock, err := nfnl.Dial()
	if err != nil {
		return nil, err
	}
	m := &AffinityEvictor{
		log: log, sock: sock, quit: make(chan struct{}), done: make(chan struct{}),
		seen: make(map[string]uint64), full: make(map[state.AffinityID]AffinityOverflow),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "affinity_evicted_total",
			Help: "Clients that a Service with affinity forgot for others, since its map was full.",
		}),
	}
	if r != nil {
		err = errors.Join(r.Register(m.evicted), r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "affinity_full_total",
			Help: "New flows whose client could not be remembered for affinity, since the map of their Service was full.",
		}, func() float64 { return float64(m.count()) })))
	}
	if err != nil {
		sock.Close()
		return nil, err
	}
	go m.run()
	return m, nil
}

// Port is the netlink port of the socket that makes changes.
func (m *AffinityEvictor) Port() uint32 { return m.sock.Port }

// Without runs a change while the evictor makes none.
func (m *AffinityEvictor) Without(change func() error) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	return change()
}

// Full returns the counts since the start, for frontends whose map was full.
func (m *AffinityEvictor) Full() map[state.AffinityID]AffinityOverflow {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.full)
}

// count returns the number of flows since the rules were loaded, or the last known number if the
// kernel does not answer.
func (m *AffinityEvictor) count() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sock != nil {
		if n, err := countedBy(m.sock, chainFull); err == nil {
			return n
		}
	}
	return m.last
}

func (m *AffinityEvictor) run() {
	defer close(m.done)
	pause := lookInterval
	for {
		select {
		case <-m.quit:
			return
		case <-time.After(pause):
		}
		start := time.Now()
		m.changing.Lock()
		m.mu.Lock()
		if err := m.look(); err != nil {
			m.log.Warn("clients of Services with affinity may not be remembered", "err", err)
		}
		m.mu.Unlock()
		m.changing.Unlock()
		pause = max(lookInterval, lookShare*time.Since(start))
	}
}

// look evicts clients from the maps that became full since the last look. It costs next to nothing
// if there are none.
func (m *AffinityEvictor) look() error {
	n, err := countedBy(m.sock, chainFull)
	if err != nil || n == m.last {
		return err
	}
	m.last = n
	counts, err := fullCounts(m.sock)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	seen := m.seen
	m.seen = counts
	var errs []error
	for name, n := range counts {
		before := seen[name]
		if n < before { // the rules were loaded again
			before = 0
		}
		if id, _, ok := state.ParseLearnChain(name); ok && n > before {
			errs = append(errs, m.evict(id, n-before))
		}
	}
	return errors.Join(errs...)
}

// evict removes the clients of a frontend whose last flow began the longest time ago.
func (m *AffinityEvictor) evict(id state.AffinityID, unremembered uint64) error {
	now := m.full[id]
	if now.Unremembered == 0 {
		vip, at, _ := id.Frontend()
		m.log.Warn("affinity of a Service is full: it forgets the clients of longest ago", "vip", vip, "port", fmt.Sprintf("%s/%d", at.Proto, at.Port))
	}
	now.Unremembered, now.Last = now.Unremembered+unremembered, time.Now()
	defer func() { m.full[id] = now }()
	all, err := readMap(m.sock, id)
	if err != nil {
		return fmt.Errorf("list %s: %w", id.Map(), err)
	}
	// Each new flow of a client renews its entry, so the oldest entry expires first.
	slices.SortFunc(all, func(a, b affinityEntry) int { return cmp.Compare(a.expires, b.expires) })
	for oldest := range slices.Chunk(all[:(len(all)+evictShare-1)/evictShare], evictBatch) {
		b := newBatch(m.sock.Seq)
		b.delEntries(id, oldest)
		switch err := b.commit(m.sock); {
		case errors.Is(err, unix.ENOENT): // some have expired, which also makes room
		case err != nil:
			return fmt.Errorf("evict from %s: %w", id.Map(), err)
		default:
			now.Evicted += uint64(len(oldest))
			m.evicted.Add(float64(len(oldest)))
		}
	}
	return nil
}

// fullCounts returns the flows whose clients could not be recorded, by learning chain: the counter
// of the chain's last rule.
func fullCounts(s *nfnl.Socket) (counts map[string]uint64, err error) {
	var e nfnl.Encoder
	e.Text(unix.NFTA_RULE_TABLE, renderer.TableName)
	err = list(s, unix.NFT_MSG_GETRULE, e.B, func() { counts = make(map[string]uint64) }, func(data []byte) {
		name := nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_CHAIN))
		if _, _, ok := state.ParseLearnChain(name); ok && nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_TABLE)) == renderer.TableName {
			counts[name] = counterOf(nfnl.Attribute(data, unix.NFTA_RULE_EXPRESSIONS)) // the value of the last rule remains
		}
	})
	return counts, err
}

// counterOf returns the sum of the counters in a rule.
func counterOf(expressions []byte) (packets uint64) {
	for _, expr := range nfnl.Attributes(expressions) {
		if nfnl.CString(nfnl.Attribute(expr, unix.NFTA_EXPR_NAME)) != "counter" {
			continue
		}
		if n := nfnl.Attribute(expr, unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS); len(n) == 8 {
			packets += binary.BigEndian.Uint64(n)
		}
	}
	return packets
}

// Close stops the watch and closes the sockets.
func (m *AffinityEvictor) Close() (err error) {
	m.once.Do(func() {
		close(m.quit)
		<-m.done
		m.mu.Lock()
		defer m.mu.Unlock()
		err = m.sock.Close()
		m.sock = nil
	})
	return err
}

// countedBy returns the packets that a chain has counted; zero if the chain does not exist.
func countedBy(s *nfnl.Socket, chain string) (packets uint64, err error) {
	var e nfnl.Encoder
	e.Text(unix.NFTA_RULE_TABLE, renderer.TableName)
	e.Text(unix.NFTA_RULE_CHAIN, chain)
	err = list(s, unix.NFT_MSG_GETRULE, e.B, func() { packets = 0 }, func(data []byte) {
		// Old kernels ignore the table and the chain in the request.
		if nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_TABLE)) != renderer.TableName || nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_CHAIN)) != chain {
			return
		}
		packets += counterOf(nfnl.Attribute(data, unix.NFTA_RULE_EXPRESSIONS))
	})
	return packets, err
}
