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
	// releaseTimeout is how long an address waits for another speaker that lives and
	// answers for it to say that it has stopped. That one has heard of the same change;
	// if it has not after a second it may never, and clients wait.
	releaseTimeout = time.Second
	// keepTimeout is for how long this node goes on to answer for what another one shall,
	// until that one says that it is ready to. It is less than releasePatience, so that two
	// do not answer where words are lost.
	keepTimeout = 800 * time.Millisecond
	// readyLifetime is for how long somebody who waits for an address is taken to be ready.
	readyLifetime = 2 * time.Second
	// holderLifetime is for how long what was said of an address counts although this node
	// knows no Service that has it: it may hear of the Service later.
	holderLifetime = time.Minute
)

// handoverState is what speakers have told one another about who answers for which address.
// It decides nothing about who should: it lets a new owner begin when the old one has
// stopped, and knows whether anybody ever answered for an address.
//
// Each speaker says when it begins and when it has stopped, and all that it answers for
// when somebody is met. Nobody waits for longer than releasePatience for what is lost.
type handoverState struct {
	node string
	log  *slog.Logger
	// changed says that an address may be admitted now, or has to be renewed.
	changed chan struct{} // has room for one

	mu sync.Mutex
	// paused is until when nothing new is admitted; zero: it is.
	paused time.Time
	// broadcast tells all other speakers, and dead says of a node whether it is known not to
	// answer for anything.
	broadcast func(message []byte)
	// send tells one of them; it is set before anybody is heard.
	send      func(node string, message []byte)
	isDead    func(node string) bool
	instance  uint64
	sequence  uint64            // of what this node has said
	instances map[string]uint64 // of the other nodes' speakers
	synced    map[string]bool   // who has said something, and has not died since, nor have we been cut off
	holders   map[netip.Addr]map[string]holderState
	waits     map[netip.Addr]releaseWait
	// ready are what others wait for, kept until when this node still answers for what
	// others shall.
	ready map[netip.Addr]readyNode
	kept  map[netip.Addr]time.Time
	// rounds is how often neighbours may have come to think that an address of this node's is
	// another's.
	rounds map[netip.Addr]uint64
	// formerOwner is the last other node that is known to have answered for an address, and formers
	// how often that has changed.
	formerOwner    map[netip.Addr]string
	formerRevision uint64
}

// A holderState is the last that is known to be said by a node about an address.
type holderState struct {
	sequence uint64 // later words have higher ones
	held     bool   // it answers for the address
	at       time.Time
}

// A readyNode is that of a node that is ready to answer for an address.
type readyNode struct {
	node string
	at   time.Time
}

// A releaseWait is for another node that still answers for an address that shall be this one's.
type releaseWait struct {
	holder string
	until  time.Time
}

// newHandoverState knows of addresses that an earlier process answered for.
func newHandoverState(node string, known []netip.Addr, log *slog.Logger) *handoverState {
	handover := &handoverState{node: node, log: log, changed: make(chan struct{}, 1), broadcast: func([]byte) {}, send: func(string, []byte) {}, isDead: func(string) bool { return false },
		instance: rand.Uint64(), instances: map[string]uint64{}, synced: map[string]bool{}, holders: map[netip.Addr]map[string]holderState{}, waits: map[netip.Addr]releaseWait{}, ready: map[netip.Addr]readyNode{}, kept: map[netip.Addr]time.Time{}, rounds: map[netip.Addr]uint64{}, formerOwner: map[netip.Addr]string{}}
	for _, a := range known {
		handover.setHolder(a, node, holderState{at: time.Now()})
	}
	return handover
}

// setMembers has others told by say from now on, and the dead not waited for. What a node that
// has died since the last call answered for may be known to neighbours as its, though this
// node has answered for it meanwhile: the dead one was only frozen for a while, say.
func (h *handoverState) setMembers(say func(message []byte), dead func(node string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.isDead
	h.broadcast, h.isDead = say, dead
	maps.DeleteFunc(h.synced, func(node string, _ bool) bool { return dead(node) && !was(node) })
	for a, said := range h.holders {
		for node, w := range said {
			if w.held && node != h.node && dead(node) && !was(node) {
				h.holderGone(a)
			}
		}
	}
}

// holderGone notes that somebody no longer answers for an address.
func (h *handoverState) holderGone(a netip.Addr) {
	_, waiting := h.waits[a]
	ours := h.holders[a][h.node].held
	if ours {
		h.rounds[a]++
	}
	if ours || waiting {
		notify(h.changed)
	}
}

// admit returns those of want that may be answered for at now. It has those probed that
// nobody is known to have answered for, and those announced anew that neighbours may think
// are another node's. Whom others wait for is told that this node is ready.
func (h *handoverState) admit(want []l2.Address, now time.Time) []l2.Address {
	admitted, messages := h.selectAdmitted(want, now)
	for _, m := range messages {
		h.send(m.to, m.data)
	}
	return admitted
}

// A outgoing is for one other speaker.
type outgoing struct {
	to   string
	data []byte
}

// selectAdmitted is admit, without saying anything.
func (h *handoverState) selectAdmitted(want []l2.Address, now time.Time) (_ []l2.Address, notes []outgoing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	begun := map[string][]netip.Addr{}
	admitted := make([]l2.Address, 0, len(want))
	for _, a := range want {
		_, waiting := h.waits[a.Addr]
		if !h.isFree(a.Addr, now) {
			if w, waits := h.waits[a.Addr]; waits && !waiting {
				begun[w.holder] = append(begun[w.holder], a.Addr)
			}
			continue
		}
		a.Probe, a.Round = len(h.holders[a.Addr]) == 0, h.rounds[a.Addr]
		admitted = append(admitted, a)
	}
	for node, list := range begun {
		for _, m := range (message{ready: true, instance: h.instance, sequence: h.sequence, held: list}).encode() {
			notes = append(notes, outgoing{node, m})
		}
	}
	return admitted, notes
}

// keepsFor is keeps for what was decided.
func (h *handoverState) keepsFor(d *plan.Desired, a netip.Addr, now time.Time) bool {
	decided := d.Address(a)
	return decided != nil && decided.OverL2 && !d.L2Withdrawn && h.keeps(a, decided.Owner, now)
}

// keeps says whether this node goes on to answer for an address that it answers for and
// another shall: as long as that one lives and has not said that it is ready, for a bounded
// time. A host that asks meanwhile gets an answer, although that one may have to wait for a
// processor.
func (h *handoverState) keeps(a netip.Addr, owner string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.ready[a]
	ready := d.node == owner && now.Sub(d.at) < readyLifetime || h.holders[a][owner].held
	answers := h.holders[a][h.node].held // and is not only asking the link
	if !answers || owner == "" || owner == h.node || ready || !h.synced[owner] || h.isDead(owner) {
		delete(h.kept, a)
		return false
	}
	until, keeping := h.kept[a]
	if !keeping {
		until = now.Add(keepTimeout)
		h.kept[a] = until
	}
	return now.Before(until)
}

// isFree says whether an address has nobody to wait for any more.
func (h *handoverState) isFree(a netip.Addr, now time.Time) bool {
	if now.Before(h.paused) && !h.holders[a][h.node].held {
		return false
	}
	holder := h.holder(a)
	if holder == "" {
		delete(h.waits, a)
		return true
	}
	w, waiting := h.waits[a]
	if !waiting {
		w.until = now.Add(releaseTimeout)
	}
	w.holder = holder
	h.waits[a] = w
	return !now.Before(w.until)
}

// setWanted ends the waits of addresses that are not wanted here any more, and forgets what is
// kept and wanted again; they are sorted.
func (h *handoverState) setWanted(addrs []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.waits {
		if _, wanted := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare); !wanted {
			delete(h.waits, a)
		}
	}
	for a := range h.kept {
		if _, wanted := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare); wanted || !h.holders[a][h.node].held {
			delete(h.kept, a)
		}
	}
}

// holder is the node that an address has to wait for, empty if it need not.
func (h *handoverState) holder(a netip.Addr) (node string) {
	said := h.holders[a]
	if said[h.node].held {
		return ""
	}
	for other, w := range said {
		if w.held && other != h.node && !h.isDead(other) && (node == "" || other < node) {
			node = other
		}
	}
	return node
}

// waiting is whom addresses wait for at now.
func (h *handoverState) waiting(now time.Time) map[netip.Addr]string {
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
func (h *handoverState) pause(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = until
}

func (h *handoverState) isPaused(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.paused)
}

// next is when the first of the addresses that wait has waited long enough, zero when
// none waits.
func (h *handoverState) next(now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	times := append(slices.Collect(maps.Values(h.kept)), h.paused)
	for _, w := range h.waits {
		times = append(times, w.until)
	}
	return earliest(now, times...)
}

// reannounceAll has everything that this node answers for announced to neighbours anew.
func (h *handoverState) reannounceAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.holders {
		h.holderGone(a)
	}
}

func (h *handoverState) setHolder(a netip.Addr, node string, w holderState) {
	if h.holders[a] == nil {
		h.holders[a] = map[string]holderState{}
	}
	h.holders[a][node] = w
}

// unsynced are those that are heard and have not said what they answer for.
func (h *handoverState) unsynced(m *membership.Members) (names []string) {
	if m == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range m.Nodes {
		if n.Heard() && n.Node != h.node && !h.synced[n.Node] {
			names = append(names, n.Node)
		}
	}
	return names
}

// forgetSynced takes it that this node may have missed what others said.
func (h *handoverState) forgetSynced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.synced)
}

// othersHold says whether somebody who is heard answers for anything.
func (h *handoverState) othersHold(m *membership.Members) bool {
	if m == nil {
		return false
	}
	heard := map[string]bool{}
	for _, n := range m.Nodes {
		heard[n.Node] = n.Heard() && n.Node != h.node
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, said := range h.holders {
		for node, w := range said {
			if w.held && heard[node] {
				return true
			}
		}
	}
	return false
}

// clearNode takes it that a node answers for nothing any more: its speaker has begun anew.
func (h *handoverState) clearNode(node string) {
	for a, said := range h.holders {
		if w, ok := said[node]; ok {
			said[node] = holderState{at: time.Now()}
			if w.held {
				h.holderGone(a)
			}
		}
	}
}

// recordHolder takes down one word, unless a later one is known. Words may overtake one another.
func (h *handoverState) recordHolder(a netip.Addr, node string, w holderState) {
	if known, ok := h.holders[a][node]; ok && known.sequence >= w.sequence {
		return
	}
	h.setHolder(a, node, w)
	if !w.held {
		h.holderGone(a)
		return
	}
	if h.formerOwner[a] != node {
		h.formerOwner[a] = node
		h.formerRevision++
		if h.holders[a][h.node].held {
			notify(h.changed)
		}
	}
}

// setFormerOwner takes down who answered for an address before this process did.
func (h *handoverState) setFormerOwner(a netip.Addr, former string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if former != "" && former != h.node {
		h.formerOwner[a] = former
		h.formerRevision++
	}
}

// formerOwners is who answered for addresses before this node, as far as that is known.
func (h *handoverState) formerOwners(of []netip.Addr) map[netip.Addr]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := make(map[netip.Addr]string)
	for _, a := range of {
		if node := h.formerOwner[a]; node != "" {
			before[a] = node
		}
	}
	return before
}

// revision is how often what before returns has changed.
func (h *handoverState) revision() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.formerRevision
}

// prune forgets addresses that no Service has any more, and takes it that those were
// answered for that were another node's so far: where speakers do not talk to one another,
// a probe would find that node. Assigned is sorted.
func (h *handoverState) prune(assigned []*plan.Address, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range assigned {
		if a.Owner != "" && a.Owner != h.node && len(h.holders[a.Addr]) == 0 {
			h.setHolder(a.Addr, a.Owner, holderState{at: now})
		}
	}
	for a, d := range h.ready {
		if now.Sub(d.at) > readyLifetime {
			delete(h.ready, a)
		}
	}
	for a, said := range h.holders {
		_, of := slices.BinarySearchFunc(assigned, a, func(x *plan.Address, b netip.Addr) int { return x.Addr.Compare(b) })
		for node, w := range said {
			if !of && now.Sub(w.at) > holderLifetime && !(w.held && node == h.node) {
				delete(said, node)
			}
		}
		if len(said) == 0 {
			delete(h.holders, a)
			delete(h.rounds, a)
			delete(h.formerOwner, a)
		}
	}
}
