package speaker

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/l2"
)

const (
	// releasePatience is how long an address waits for another speaker that lives and
	// answers for it to say that it has stopped. That one has heard of the same change;
	// if it has not after a second it may never, and clients wait.
	releasePatience = time.Second
	// wordsKept is for how long what was said of an address counts although this node
	// knows no Service that has it: it may hear of the Service later.
	wordsKept = time.Minute
	// maxSaying is how many addresses go into one message: 25 IPv6 addresses and the name
	// of a node are less than the 1,200 bytes that go through any network in one piece.
	maxSaying = 25
)

// holdings is what speakers have told one another about who answers for which address.
// It decides nothing about who should: it lets a new owner begin when the old one has
// stopped, and knows whether anybody ever answered for an address.
//
// Each speaker says when it begins and when it has stopped. What is lost on the way is
// made good when speakers exchange everything, as they do when they meet and from time to
// time; and nobody waits for longer than releasePatience.
type holdings struct {
	node string
	log  *slog.Logger
	// changed says that an address may be admitted now, or has to be renewed.
	changed chan struct{} // has room for one

	mu sync.Mutex
	// say tells all other speakers, and dead says of a node whether it is known not to
	// answer for anything.
	say   func(message []byte)
	dead  func(node string) bool
	count uint64 // of what this node has said
	words map[netip.Addr]map[string]word
	waits map[netip.Addr]wait
	stale map[netip.Addr]bool // that neighbours may think are another node's
}

// A word is the last that is known to be said by a node about an address.
type word struct {
	count uint64 // later words have higher ones
	held  bool   // it answers for the address
	heard time.Time
}

// A wait is for another node that still answers for an address that shall be this one's.
type wait struct {
	holder string
	until  time.Time
}

// A saying is what speakers send one another.
type saying struct {
	Node     string       `json:"n"`
	Count    uint64       `json:"c"`
	Held     []netip.Addr `json:"h,omitempty"`
	Released []netip.Addr `json:"r,omitempty"`
	// All: the node answers for nothing but Held.
	All bool `json:"a,omitempty"`
}

// newHoldings knows of addresses that an earlier process answered for. Counts go on
// where those of that process ended, unless the clock was set back.
func newHoldings(node string, known []netip.Addr, log *slog.Logger) *holdings {
	h := &holdings{node: node, log: log, changed: make(chan struct{}, 1), say: func([]byte) {}, dead: func(string) bool { return false },
		count: uint64(time.Now().UnixNano()), words: map[netip.Addr]map[string]word{}, waits: map[netip.Addr]wait{}, stale: map[netip.Addr]bool{}}
	for _, a := range known {
		h.put(a, node, word{count: 1, heard: time.Now()})
	}
	return h
}

// meet has others told by say from now on, and the dead not waited for. What a node that
// has died since the last call answered for may be known to neighbours as its, though this
// node has answered for it meanwhile: the dead one was only frozen for a while, say.
func (h *holdings) meet(say func(message []byte), dead func(node string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.dead
	h.say, h.dead = say, dead
	for a, said := range h.words {
		for node, w := range said {
			if w.held && node != h.node && dead(node) && !was(node) {
				h.over(a)
			}
		}
	}
}

// over notes that somebody no longer answers for an address.
func (h *holdings) over(a netip.Addr) {
	_, waiting := h.waits[a]
	ours := h.words[a][h.node].held
	if ours {
		h.stale[a] = true
	}
	if ours || waiting {
		h.poke()
	}
}

func (h *holdings) poke() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// admit returns those of want that may be answered for at now, and has those probed that
// nobody is known to have answered for.
func (h *holdings) admit(want []l2.Address, now time.Time) []l2.Address {
	h.mu.Lock()
	defer h.mu.Unlock()
	admitted := make([]l2.Address, 0, len(want))
	for _, a := range want {
		if !h.free(a.Addr, now) {
			continue
		}
		a.Probe = len(h.words[a.Addr]) == 0
		admitted = append(admitted, a)
	}
	return admitted
}

// free says whether an address has nobody to wait for any more.
func (h *holdings) free(a netip.Addr, now time.Time) bool {
	holder := h.holder(a)
	if holder == "" {
		delete(h.waits, a)
		return true
	}
	w, waiting := h.waits[a]
	if !waiting {
		w.until = now.Add(releasePatience)
	}
	w.holder = holder
	h.waits[a] = w
	return !now.Before(w.until)
}

// want ends the waits of addresses that are not wanted here any more; they are sorted.
func (h *holdings) want(addrs []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.waits {
		if _, wanted := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare); !wanted {
			delete(h.waits, a)
		}
	}
}

// holder is the node that an address has to wait for, empty if it need not.
func (h *holdings) holder(a netip.Addr) (node string) {
	said := h.words[a]
	if said[h.node].held {
		return ""
	}
	for other, w := range said {
		if w.held && other != h.node && !h.dead(other) && (node == "" || other < node) {
			node = other
		}
	}
	return node
}

// waiting is whom addresses wait for at now.
func (h *holdings) waiting(now time.Time) map[netip.Addr]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := map[netip.Addr]string{}
	for a, w := range h.waits {
		if now.Before(w.until) {
			waiting[a] = w.holder
		}
	}
	return waiting
}

// next is when the first of the addresses that wait has waited long enough, zero when
// none waits.
func (h *holdings) next(now time.Time) (at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.waits {
		if w.until.After(now) && (at.IsZero() || w.until.Before(at)) {
			at = w.until
		}
	}
	return at
}

// renew has addresses announced to neighbours anew.
func (h *holdings) renew(addrs ...netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range addrs {
		h.over(a)
	}
}

// renewAll is renew for everything that this node answers for.
func (h *holdings) renewAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.words {
		h.over(a)
	}
}

// renewals returns, once, what is to be announced anew.
func (h *holdings) renewals() []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.stale) == 0 {
		return nil
	}
	all := slices.Collect(maps.Keys(h.stale))
	clear(h.stale)
	return all
}

// tell says to the others what differs between have, for which this node answers now, and
// what it has said before.
func (h *holdings) tell(have []netip.Addr) {
	h.mu.Lock()
	var begun, ended []netip.Addr
	for _, a := range have {
		if !h.words[a][h.node].held {
			begun = append(begun, a)
		}
	}
	for a, said := range h.words {
		if _, still := slices.BinarySearchFunc(have, a, netip.Addr.Compare); said[h.node].held && !still {
			ended = append(ended, a)
		}
	}
	if len(begun)+len(ended) == 0 {
		h.mu.Unlock()
		return
	}
	h.count++
	now := time.Now()
	for _, a := range begun {
		h.put(a, h.node, word{h.count, true, now})
	}
	for _, a := range ended {
		h.put(a, h.node, word{h.count, false, now})
		delete(h.stale, a)
	}
	say, count := h.say, h.count
	h.mu.Unlock()
	slices.SortFunc(ended, netip.Addr.Compare)
	// What has ended is what somebody waits for.
	for some := range slices.Chunk(ended, maxSaying) {
		say(encode(saying{Node: h.node, Count: count, Released: some}))
	}
	for some := range slices.Chunk(begun, maxSaying) {
		say(encode(saying{Node: h.node, Count: count, Held: some}))
	}
}

func (h *holdings) put(a netip.Addr, node string, w word) {
	if h.words[a] == nil {
		h.words[a] = map[string]word{}
	}
	h.words[a][node] = w
}

// hear takes what another speaker said: one saying, or all that it knows.
func (h *holdings) hear(message []byte) error {
	var sayings []saying
	if err := json.Unmarshal(message, &sayings); err != nil {
		return fmt.Errorf("what another speaker said: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range sayings {
		if s.Node == h.node {
			h.outdo(s)
			continue
		}
		for _, a := range s.Held {
			h.note(a, s.Node, word{s.Count, true, time.Now()})
		}
		for _, a := range s.Released {
			h.note(a, s.Node, word{s.Count, false, time.Now()})
		}
		if s.All {
			h.rest(s)
		}
	}
	return nil
}

// note takes down one word, unless a later one is known. Words may overtake one another.
func (h *holdings) note(a netip.Addr, node string, w word) {
	if known, ok := h.words[a][node]; ok && known.count >= w.count {
		return
	}
	h.put(a, node, w)
	if !w.held {
		h.over(a)
	}
}

// rest takes it that a node released what it does not hold any more: it did not live to
// say so, or nobody heard.
func (h *holdings) rest(s saying) {
	held := make(map[netip.Addr]bool, len(s.Held))
	for _, a := range s.Held {
		held[a] = true
	}
	for a, said := range h.words {
		if w := said[s.Node]; w.held && w.count < s.Count && !held[a] {
			h.note(a, s.Node, word{s.Count, false, time.Now()})
		}
	}
}

// outdo has what this node says count for more than what is remembered of an earlier
// process on it, whose clock was ahead of ours.
func (h *holdings) outdo(s saying) {
	h.count = max(h.count, s.Count)
	for _, a := range slices.Concat(s.Held, s.Released) {
		if _, known := h.words[a][h.node]; !known {
			h.put(a, h.node, word{s.Count, false, time.Now()})
		}
	}
}

// all is what there is to tell to whoever knows nothing: what this node answers for,
// and what it has heard of the others.
func (h *holdings) all() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	type version struct {
		node  string
		count uint64
	}
	parts := map[version]*saying{}
	part := func(node string, count uint64) *saying {
		s := parts[version{node, count}]
		if s == nil {
			s = &saying{Node: node, Count: count, All: node == h.node}
			parts[version{node, count}] = s
		}
		return s
	}
	part(h.node, h.count)
	for a, said := range h.words {
		for node, w := range said {
			if node == h.node {
				w.count = h.count
			}
			s := part(node, w.count)
			if w.held {
				s.Held = append(s.Held, a)
			} else {
				s.Released = append(s.Released, a)
			}
		}
	}
	list := make([]saying, 0, len(parts))
	for _, s := range parts {
		list = append(list, *s)
	}
	return encode(list...)
}

// encode cannot fail: there is nothing in a saying that JSON does not have.
func encode(s ...saying) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return b
}

// keep forgets addresses that no Service has any more; assigned is sorted.
func (h *holdings) keep(assigned []*Address, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a, said := range h.words {
		_, of := slices.BinarySearchFunc(assigned, a, func(x *Address, b netip.Addr) int { return x.Addr.Compare(b) })
		for node, w := range said {
			if !of && now.Sub(w.heard) > wordsKept && !(w.held && node == h.node) {
				delete(said, node)
			}
		}
		if len(said) == 0 {
			delete(h.words, a)
		}
	}
}
