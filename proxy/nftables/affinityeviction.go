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

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

const chainFull = "full" // counts

const (
	// lookInterval is the shortest time between two looks for full maps. After a look, the pause is
	// lookShare times as long as the look took: a flood of clients that keeps filling a map costs 5
	// % of a core.
	lookInterval = time.Second
	lookShare    = 19
	// evictShare is the share of a frontend's entries that is evicted at once: one in evictShare.
	evictShare = 4
	// evictBatch is how many entries one transaction deletes. If one of them has just expired, the
	// kernel deletes none.
	evictBatch = 1000
)

// An AffinityEvictor watches the maps of affinity, one for each family. The kernel limits each to
// [state.MaxClients] and cannot evict: it does not record further clients. So an AffinityEvictor
// deletes entries of a full map: the oldest of the frontend that has the most. A flood at one
// frontend thus forgets clients of that frontend. It has its own socket, so that no caller of Set
// waits.
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
	last uint64 // flows counted by chain full
	full map[state.AffinityKey]AffinityOverflow
}

// AffinityOverflow counts the clients of a frontend that were evicted for others.
type AffinityOverflow struct {
	Evicted uint64
	Last    time.Time
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
		full: make(map[state.AffinityKey]AffinityOverflow),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "affinity_evicted_total",
			Help: "Clients that a Service with affinity forgot for others, since the map was full.",
		}),
	}
	if r != nil {
		err = errors.Join(r.Register(m.evicted), r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "affinity_full_total",
			Help: "New flows whose client could not be remembered for affinity, since the map was full.",
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

// Full returns the counts since the start, for frontends that filled a map.
func (m *AffinityEvictor) Full() map[state.AffinityKey]AffinityOverflow {
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

// look evicts clients from the maps if one became full since the last look. It costs next to nothing
// if none did.
func (m *AffinityEvictor) look() error {
	n, err := countedBy(m.sock, chainFull)
	if err != nil || n == m.last {
		return err
	}
	m.last = n
	return errors.Join(m.evict(state.AffinityMap(0)), m.evict(state.AffinityMap(1)))
}

// evict removes the clients that a map has known for the longest time, of the frontend that has the
// most, until there is room.
func (m *AffinityEvictor) evict(name string) error {
	all, err := readMap(m.sock, name)
	if err != nil {
		return fmt.Errorf("list %s: %w", name, err)
	}
	if len(all) < state.MaxClients-evictBatch {
		return nil // the other map is full, or entries have expired
	}
	frontend, oldest := largestHolder(all)
	now := m.full[frontend]
	if now.Evicted == 0 {
		vip, at := frontend.Text()
		m.log.Warn("affinity remembers no more clients: it forgets the oldest ones of the Service "+
			"port that has the most", "vip", vip, "port", at)
	}
	now.Last = time.Now()
	defer func() { m.full[frontend] = now }()
	for part := range slices.Chunk(oldest, evictBatch) {
		b := newBatch(m.sock.Seq)
		b.delEntries(name, part)
		switch err := b.commit(m.sock); {
		case errors.Is(err, unix.ENOENT): // some have expired, which also makes room
		case err != nil:
			return fmt.Errorf("evict from %s: %w", name, err)
		default:
			now.Evicted += uint64(len(part))
			m.evicted.Add(float64(len(part)))
		}
	}
	return nil
}

// largestHolder returns the frontend with the most entries, and the oldest evictShare of them. An
// entry is never renewed, and all entries of a frontend live equally long.
func largestHolder(all []affinityEntry) (largest state.AffinityKey, oldest []affinityEntry) {
	counts := make(map[state.AffinityKey]int)
	for _, e := range all {
		counts[e.frontend()]++
	}
	for f, n := range counts {
		if n > counts[largest] || n == counts[largest] && f < largest {
			largest = f
		}
	}
	all = slices.DeleteFunc(all, func(e affinityEntry) bool { return e.frontend() != largest })
	slices.SortFunc(all, func(a, b affinityEntry) int { return cmp.Compare(a.expires, b.expires) })
	return largest, all[:(len(all)+evictShare-1)/evictShare]
}

// An affinityEntry is an entry of a map of clients.
type affinityEntry struct {
	key     string
	expires time.Duration
}

func (e affinityEntry) frontend() state.AffinityKey {
	_, f := state.SplitAffinityKey(e.key)
	return f
}

// readMap lists the entries of a map of clients; none if the map does not exist.
func readMap(s *nfnl.Socket, name string) (all []affinityEntry, err error) {
	err = list(s, unix.NFT_MSG_GETSETELEM, name, func() { all = nil }, func(data []byte) {
		for _, item := range nfnl.Attributes(nfnl.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			entry := affinityEntry{key: string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))}
			if ms := nfnl.Attribute(item, unix.NFTA_SET_ELEM_EXPIRATION); len(ms) == 8 {
				entry.expires = time.Duration(binary.BigEndian.Uint64(ms)) * time.Millisecond
			}
			if len(entry.key) == state.AffinityKeySize {
				all = append(all, entry)
			}
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return all, err
}

// delEntries deletes entries of a map of clients. They must exist.
func (b *batch) delEntries(name string, all []affinityEntry) {
	for len(all) > 0 {
		b.op("delete element of "+name, unix.NFT_MSG_DELSETELEM, 0, func() {
			b.e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, renderer.TableName)
			b.e.Text(unix.NFTA_SET_ELEM_LIST_SET, name)
			at := b.e.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for len(all) > 0 && len(b.e.B)-at < nfnl.MaxNested {
				b.item(all[0].key, 0, nil)
				all = all[1:]
			}
			b.e.Close(at)
		})
	}
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
	err = list(s, unix.NFT_MSG_GETRULE, chain, func() { packets = 0 }, func(data []byte) {
		// Old kernels ignore the chain in the request.
		if nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_CHAIN)) == chain {
			packets += counterOf(nfnl.Attribute(data, unix.NFTA_RULE_EXPRESSIONS))
		}
	})
	return packets, err
}
