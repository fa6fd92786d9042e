package speaker

import (
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
)

const (
	// releasePatience is how long an address waits for another speaker that lives and
	// answers for it to say that it has stopped. That one has heard of the same change;
	// if it has not after a second it may never, and clients wait.
	releasePatience = time.Second
	// keepPatience is for how long this node goes on to answer for what another one shall,
	// until that one says that it is ready to. It is less than releasePatience, so that two
	// do not answer where words are lost.
	keepPatience = 800 * time.Millisecond
	// demandCounts is for how long somebody who waits for an address is taken to be ready.
	demandCounts = 2 * time.Second
	// wordsKept is for how long what was said of an address counts although this node
	// knows no Service that has it: it may hear of the Service later.
	wordsKept = time.Minute
)

// holdings is what speakers have told one another about who answers for which address.
// It decides nothing about who should: it lets a new owner begin when the old one has
// stopped, and knows whether anybody ever answered for an address.
//
// Each speaker says when it begins and when it has stopped, and all that it answers for
// when somebody is met. Nobody waits for longer than releasePatience for what is lost.
type holdings struct {
	node string
	log  *slog.Logger
	// changed says that an address may be admitted now, or has to be renewed.
	changed chan struct{} // has room for one

	mu sync.Mutex
	// paused is until when nothing new is admitted; zero: it is.
	paused time.Time
	// say tells all other speakers, and dead says of a node whether it is known not to
	// answer for anything.
	say func(message []byte)
	// whisper tells one of them; it is set before anybody is heard.
	whisper func(node string, message []byte)
	dead    func(node string) bool
	boot    uint64
	count   uint64            // of what this node has said
	boots   map[string]uint64 // of the other nodes' speakers
	met     map[string]bool   // who has said something, and has not died since, nor have we been cut off
	words   map[netip.Addr]map[string]word
	waits   map[netip.Addr]wait
	// demands are what others wait for, kept until when this node still answers for what
	// others shall.
	demands map[netip.Addr]demand
	kept    map[netip.Addr]time.Time
	// rounds is how often neighbours may have come to think that an address of this node's is
	// another's.
	rounds map[netip.Addr]uint64
	// former is the last other node that is known to have answered for an address, and formers
	// how often that has changed.
	former  map[netip.Addr]string
	formers uint64
}

// A word is the last that is known to be said by a node about an address.
type word struct {
	count uint64 // later words have higher ones
	held  bool   // it answers for the address
	heard time.Time
}

// A demand is that of a node that is ready to answer for an address.
type demand struct {
	node  string
	heard time.Time
}

// A wait is for another node that still answers for an address that shall be this one's.
type wait struct {
	holder string
	until  time.Time
}

// newHoldings knows of addresses that an earlier process answered for.
func newHoldings(node string, known []netip.Addr, log *slog.Logger) *holdings {
	h := &holdings{node: node, log: log, changed: make(chan struct{}, 1), say: func([]byte) {}, whisper: func(string, []byte) {}, dead: func(string) bool { return false },
		boot: rand.Uint64(), boots: map[string]uint64{}, met: map[string]bool{}, words: map[netip.Addr]map[string]word{}, waits: map[netip.Addr]wait{}, demands: map[netip.Addr]demand{}, kept: map[netip.Addr]time.Time{}, rounds: map[netip.Addr]uint64{}, former: map[netip.Addr]string{}}
	for _, a := range known {
		h.put(a, node, word{heard: time.Now()})
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
	maps.DeleteFunc(h.met, func(node string, _ bool) bool { return dead(node) && !was(node) })
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
		h.rounds[a]++
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

// admit returns those of want that may be answered for at now. It has those probed that
// nobody is known to have answered for, and those announced anew that neighbours may think
// are another node's. Whom others wait for is told that this node is ready.
func (h *holdings) admit(want []l2.Address, now time.Time) []l2.Address {
	admitted, messages := h.consider(want, now)
	for _, m := range messages {
		h.whisper(m.to, m.data)
	}
	return admitted
}

// A note is for one other speaker.
type note struct {
	to   string
	data []byte
}

// consider is admit, without saying anything.
func (h *holdings) consider(want []l2.Address, now time.Time) (_ []l2.Address, notes []note) {
	h.mu.Lock()
	defer h.mu.Unlock()
	begun := map[string][]netip.Addr{}
	admitted := make([]l2.Address, 0, len(want))
	for _, a := range want {
		_, waiting := h.waits[a.Addr]
		if !h.free(a.Addr, now) {
			if w, waits := h.waits[a.Addr]; waits && !waiting {
				begun[w.holder] = append(begun[w.holder], a.Addr)
			}
			continue
		}
		a.Probe, a.Round = len(h.words[a.Addr]) == 0, h.rounds[a.Addr]
		admitted = append(admitted, a)
	}
	for node, list := range begun {
		for _, m := range (saying{wants: true, boot: h.boot, count: h.count, held: list}).messages() {
			notes = append(notes, note{node, m})
		}
	}
	return admitted, notes
}

// keepsFor is keeps for what was decided.
func (h *holdings) keepsFor(d *plan.Desired, a netip.Addr, now time.Time) bool {
	decided := d.Address(a)
	return decided != nil && decided.OverL2 && !d.L2Withdrawn && h.keeps(a, decided.Owner, now)
}

// keeps says whether this node goes on to answer for an address that it answers for and
// another shall: as long as that one lives and has not said that it is ready, for a bounded
// time. A host that asks meanwhile gets an answer, although that one may have to wait for a
// processor.
func (h *holdings) keeps(a netip.Addr, owner string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.demands[a]
	ready := d.node == owner && now.Sub(d.heard) < demandCounts || h.words[a][owner].held
	answers := h.words[a][h.node].held // and is not only asking the link
	if !answers || owner == "" || owner == h.node || ready || !h.met[owner] || h.dead(owner) {
		delete(h.kept, a)
		return false
	}
	until, keeping := h.kept[a]
	if !keeping {
		until = now.Add(keepPatience)
		h.kept[a] = until
	}
	return now.Before(until)
}

// free says whether an address has nobody to wait for any more.
func (h *holdings) free(a netip.Addr, now time.Time) bool {
	if now.Before(h.paused) && !h.words[a][h.node].held {
		return false
	}
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

// want ends the waits of addresses that are not wanted here any more, and forgets what is
// kept and wanted again; they are sorted.
func (h *holdings) want(addrs []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.waits {
		if _, wanted := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare); !wanted {
			delete(h.waits, a)
		}
	}
	for a := range h.kept {
		if _, wanted := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare); wanted || !h.words[a][h.node].held {
			delete(h.kept, a)
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

// pause admits nothing new until then. Zero ends it.
func (h *holdings) pause(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = until
}

func (h *holdings) isPaused(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.paused)
}

// next is when the first of the addresses that wait has waited long enough, zero when
// none waits.
func (h *holdings) next(now time.Time) (at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused.After(now) {
		at = h.paused
	}
	for _, until := range h.kept {
		if until.After(now) && (at.IsZero() || until.Before(at)) {
			at = until
		}
	}
	for _, w := range h.waits {
		if w.until.After(now) && (at.IsZero() || w.until.Before(at)) {
			at = w.until
		}
	}
	return at
}

// renewAll has everything that this node answers for announced to neighbours anew.
func (h *holdings) renewAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.words {
		h.over(a)
	}
}

func (h *holdings) put(a netip.Addr, node string, w word) {
	if h.words[a] == nil {
		h.words[a] = map[string]word{}
	}
	h.words[a][node] = w
}

// strangers are those that are heard and have not said what they answer for.
func (h *holdings) strangers(m *membership.Members) (names []string) {
	if m == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range m.Nodes {
		if n.Reachable() && n.Node != h.node && !h.met[n.Node] {
			names = append(names, n.Node)
		}
	}
	return names
}

// cutOff takes it that this node may have missed what others said.
func (h *holdings) cutOff() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.met)
}

// others says whether somebody who is heard answers for anything.
func (h *holdings) others(m *membership.Members) bool {
	if m == nil {
		return false
	}
	heard := map[string]bool{}
	for _, n := range m.Nodes {
		heard[n.Node] = n.Reachable() && n.Node != h.node
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, said := range h.words {
		for node, w := range said {
			if w.held && heard[node] {
				return true
			}
		}
	}
	return false
}

// void takes it that a node answers for nothing any more: its speaker has begun anew.
func (h *holdings) void(node string) {
	for a, said := range h.words {
		if w, ok := said[node]; ok {
			said[node] = word{heard: time.Now()}
			if w.held {
				h.over(a)
			}
		}
	}
}

// note takes down one word, unless a later one is known. Words may overtake one another.
func (h *holdings) note(a netip.Addr, node string, w word) {
	if known, ok := h.words[a][node]; ok && known.count >= w.count {
		return
	}
	h.put(a, node, w)
	if !w.held {
		h.over(a)
		return
	}
	if h.former[a] != node {
		h.former[a] = node
		h.formers++
		if h.words[a][h.node].held {
			h.poke()
		}
	}
}

// remember takes down who answered for an address before this process did.
func (h *holdings) remember(a netip.Addr, former string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if former != "" && former != h.node {
		h.former[a] = former
		h.formers++
	}
}

// before is who answered for addresses before this node, as far as that is known.
func (h *holdings) before(of []netip.Addr) map[netip.Addr]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := make(map[netip.Addr]string)
	for _, a := range of {
		if node := h.former[a]; node != "" {
			before[a] = node
		}
	}
	return before
}

// changes is how often what before returns has changed.
func (h *holdings) changes() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.formers
}

// keep forgets addresses that no Service has any more, and takes it that those were
// answered for that were another node's so far: where speakers do not talk to one another,
// a probe would find that node. Assigned is sorted.
func (h *holdings) keep(assigned []*plan.Address, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range assigned {
		if a.Owner != "" && a.Owner != h.node && len(h.words[a.Addr]) == 0 {
			h.put(a.Addr, a.Owner, word{heard: now})
		}
	}
	for a, d := range h.demands {
		if now.Sub(d.heard) > demandCounts {
			delete(h.demands, a)
		}
	}
	for a, said := range h.words {
		_, of := slices.BinarySearchFunc(assigned, a, func(x *plan.Address, b netip.Addr) int { return x.Addr.Compare(b) })
		for node, w := range said {
			if !of && now.Sub(w.heard) > wordsKept && !(w.held && node == h.node) {
				delete(said, node)
			}
		}
		if len(said) == 0 {
			delete(h.words, a)
			delete(h.rounds, a)
			delete(h.former, a)
		}
	}
}
