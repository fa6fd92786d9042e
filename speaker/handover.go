package speaker

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/redirect"
	"github.com/fanfare-lb/fanfare/l2"
)

const (
	// releaseTimeout is how long an address waits until another live speaker reports that
	// it stopped answering for it. If that speaker has not seen the same change after a
	// second, it may never see it, and clients wait.
	releaseTimeout = time.Second
	// keepTimeout is how long this node keeps answering for an address until the next owner
	// is ready. It is less than releaseTimeout, so that two nodes do not answer if messages
	// are lost.
	keepTimeout = 800 * time.Millisecond
	// readyLifetime is how long a node that waits for an address counts as ready.
	readyLifetime = 2 * time.Second
	// holderLifetime is how long a message about an address counts although no Service in this
	// node's snapshot holds the address: the snapshot may be older.
	holderLifetime = time.Minute
	// pruneInterval is the time between two searches for expired messages, which look at every address.
	pruneInterval = 10 * time.Second
)

// handoverState is what speakers report to each other about the addresses that they answer
// for. It elects no owner. It lets the new owner begin when the old one has stopped, and
// knows whether an address was ever in use.
//
// Each speaker reports each address that it begins or stops answering for, and sends its
// full state to a node that appears. If a message is lost, the address waits for
// releaseTimeout at most.
type handoverState struct {
	node string
	// changed: an address may be admitted now, or must be announced to neighbours again.
	changed chan struct{} // has room for one

	mu sync.Mutex
	// paused is until when no new address is admitted; zero: not paused.
	paused time.Time
	// broadcast sends to all other speakers. isDead reports whether a node is known to
	// answer for no address.
	broadcast func(message []byte)
	// send sends to one speaker. It is set before the first message arrives.
	send      func(node string, message []byte)
	isDead    func(node string) bool
	instance  uint64
	sequence  uint64            // of the messages of this process
	instances map[string]uint64 // of the other nodes' processes
	synced    map[string]bool   // nodes whose state has arrived, and that have been alive and reachable since
	holders   map[netip.Addr]map[string]holderState
	reported  []netip.Addr // the addresses that this node holds, sorted
	prunedAt  time.Time    // when prune last looked for expired messages
	waits     map[netip.Addr]releaseWait
	// ready are the nodes that wait for addresses. kept is until when this node answers for
	// addresses of other owners.
	ready map[netip.Addr]readyNode
	kept  map[netip.Addr]time.Time
	// wanted and admitted are the argument and the result of the last call of admit. decided says that
	// nothing was recorded since that changes the result.
	wanted, admitted []l2.Address
	decided          bool
	// rounds counts, for each address of this node, the events after which neighbours may map it to
	// another node.
	rounds  map[netip.Addr]uint64
	history *redirect.History
	// resumedAt is when this process continued after a suspension; zero if the addresses have been
	// announced since.
	resumedAt time.Time
}

// A holderState is the newest report of a node about an address.
type holderState struct {
	sequence uint64 // of the message
	held     bool   // the node answers for the address
	at       time.Time
}

// A readyNode is ready to answer for an address.
type readyNode struct {
	node string
	at   time.Time
}

// A releaseWait is for another node that still answers for an address of this node.
type releaseWait struct {
	holder string
	until  time.Time
}

// newHandoverState knows the addresses that an earlier process on this node answered for.
func newHandoverState(node string, known []netip.Addr) *handoverState {
	handover := &handoverState{
		node: node, instance: rand.Uint64(), changed: make(chan struct{}, 1), history: redirect.NewHistory(node),
		broadcast: func([]byte) {}, send: func(string, []byte) {}, isDead: func(string) bool { return false },
		instances: map[string]uint64{}, synced: map[string]bool{}, holders: map[netip.Addr]map[string]holderState{},
		waits: map[netip.Addr]releaseWait{}, ready: map[netip.Addr]readyNode{},
		kept: map[netip.Addr]time.Time{}, rounds: map[netip.Addr]uint64{},
	}
	for _, a := range known {
		handover.setHolder(a, node, holderState{at: time.Now()})
	}
	return handover
}

// setMembers sets how to reach the others, and which of them not to wait for. Neighbours
// may still map this node's addresses to a node that has died since the last call, for
// example because it was suspended while this node took over.
func (h *handoverState) setMembers(broadcast func(message []byte), isDead func(node string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.isDead
	h.broadcast, h.isDead, h.decided = broadcast, isDead, false
	maps.DeleteFunc(h.synced, func(node string, _ bool) bool { return isDead(node) && !was(node) })
	for a, byNode := range h.holders {
		for node, w := range byNode {
			if w.held && node != h.node && isDead(node) && !was(node) {
				h.holderGone(a)
			}
		}
	}
}

// holderGone is called when another node no longer answers for an address.
func (h *handoverState) holderGone(a netip.Addr) {
	_, waiting := h.waits[a]
	ours := h.holders[a][h.node].held
	h.decided = false
	if ours {
		h.rounds[a]++
		h.history.Begin(a)
	}
	if ours || waiting {
		notify.Changed(h.changed)
	}
}

// keepsOf returns those of addrs that this node keeps, as decided.
func (h *handoverState) keepsOf(d *plan.Desired, addrs []netip.Addr, now time.Time) (kept []netip.Addr) {
	for _, a := range addrs {
		if decided := d.Address(a); decided != nil && decided.OverL2 && !d.L2Withdrawn &&
			h.keeps(a, decided.Owner, now) {
			kept = append(kept, a)
		}
	}
	return kept
}

// keeps reports whether this node continues to answer for an address whose new owner is
// another node: until that node is ready, as long as it is alive, for a bounded time. Hosts
// that ask meanwhile get an answer even if the new owner is slow.
func (h *handoverState) keeps(a netip.Addr, owner string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.ready[a]
	ready := d.node == owner && now.Sub(d.at) < readyLifetime || h.holders[a][owner].held
	answers := h.holders[a][h.node].held // and has finished its probe
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

// setWanted ends waits for addresses that are no longer wanted, and clears kept for addresses that
// are wanted again.
func (h *handoverState) setWanted(addrs sortedset.Set[netip.Addr]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.waits {
		if !sortedset.HasAddr(addrs, a) {
			delete(h.waits, a)
		}
	}
	for a := range h.kept {
		if sortedset.HasAddr(addrs, a) || !h.holders[a][h.node].held {
			delete(h.kept, a)
		}
	}
}

// waiting returns the node that each waiting address waits for.
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

// pause admits no new address until the given time. Zero ends the pause.
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

// next returns when the next wait or pause ends, zero if there is none.
func (h *handoverState) next(now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	times := append(slices.Collect(maps.Values(h.kept)), h.paused)
	for _, w := range h.waits {
		times = append(times, w.until)
	}
	return earliest(now, times...)
}

// reannounceAll requests a new announcement of all held addresses to neighbours.
func (h *handoverState) reannounceAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reannounce()
}

func (h *handoverState) reannounce() {
	for a := range h.holders {
		h.holderGone(a)
	}
}

// resumed is called when this process continues after it was suspended. Other nodes may have
// answered meanwhile, and have connections that this node must redirect to them.
func (h *handoverState) resumed(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resumedAt = now
	clear(h.synced)
	notify.Changed(h.changed)
}

// announceResumed announces all held addresses again if this process was suspended and the
// state of other nodes is known, as far as they answer. It returns when the process continued;
// zero if the addresses have been announced since.
func (h *handoverState) announceResumed(synced bool, now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.resumedAt.IsZero() && (synced || !now.Before(h.resumedAt.Add(discoveryTime))) {
		h.resumedAt = time.Time{}
		h.reannounce()
	}
	return h.resumedAt
}

// restoreOwners restores what an earlier process on this node knew of owners.
func (h *handoverState) restoreOwners(s redirect.Saved) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history.Restore(s)
	for a := range s.Owners {
		if len(h.holders[a]) == 0 {
			h.setHolder(a, h.node, holderState{at: time.Now()}) // so that prune forgets it
		}
	}
}

func (h *handoverState) setHolder(a netip.Addr, node string, w holderState) {
	if h.holders[a] == nil {
		h.holders[a] = map[string]holderState{}
	}
	h.holders[a][node] = w
	h.decided = false
}

// unsynced returns the nodes that gossip reaches and whose state has not arrived.
func (h *handoverState) unsynced(m *membership.Members) (names []string) {
	if m == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range m.Nodes {
		if n.Reachable() && n.Node != h.node && !h.synced[n.Node] {
			names = append(names, n.Node)
		}
	}
	return names
}

// forgetSynced assumes that this node may have missed messages.
func (h *handoverState) forgetSynced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.synced)
}

// othersHold reports whether any node that gossip reaches answers for an address.
func (h *handoverState) othersHold(m *membership.Members) bool {
	if m == nil {
		return false
	}
	reachable := map[string]bool{}
	for _, n := range m.Nodes {
		reachable[n.Node] = n.Reachable() && n.Node != h.node
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, byNode := range h.holders {
		for node, w := range byNode {
			if w.held && reachable[node] {
				return true
			}
		}
	}
	return false
}

// clearNode clears the state of a node whose speaker has restarted.
func (h *handoverState) clearNode(node string) {
	for a, byNode := range h.holders {
		if w, ok := byNode[node]; ok {
			byNode[node] = holderState{at: time.Now()}
			if w.held {
				h.holderGone(a)
			}
		}
	}
}

// recordHolder records one report, unless a newer one is known: messages may overtake each
// other.
func (h *handoverState) recordHolder(a netip.Addr, node string, w holderState) {
	if known, ok := h.holders[a][node]; ok && known.sequence >= w.sequence {
		return
	}
	h.setHolder(a, node, w)
	ours := h.holders[a][h.node].held
	if !w.held {
		if ours {
			h.history.Record(a, node) // the message that it answered may be lost
		}
		h.holderGone(a)
		return
	}
	if h.history.Record(a, node) {
		notify.Changed(h.changed) // redirects to that node
	}
}

// setAssigned takes over which addresses Services hold, and forgets others. It assumes that other
// owners answer for theirs: where speakers do not communicate, a probe would detect them. was is
// the argument of the last call.
func (h *handoverState) setAssigned(was, assigned sortedset.Set[*plan.Address], now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range sortedset.Differences(was, assigned, compareAddresses) {
		if a.Owner != "" && a.Owner != h.node && len(h.holders[a.Addr]) == 0 && isAssigned(assigned, a.Addr) {
			h.setHolder(a.Addr, a.Owner, holderState{at: now})
		}
	}
	h.prune(assigned, now)
}

func isAssigned(assigned sortedset.Set[*plan.Address], addr netip.Addr) bool {
	_, found := sortedset.Get(assigned, addr, compareAddress)
	return found
}

// prune forgets messages that have expired, and addresses that no Service holds any longer.
func (h *handoverState) prune(assigned sortedset.Set[*plan.Address], now time.Time) {
	if now.Sub(h.prunedAt) < pruneInterval {
		return
	}
	h.prunedAt = now
	for a, d := range h.ready {
		if now.Sub(d.at) > readyLifetime {
			delete(h.ready, a)
		}
	}
	for a, byNode := range h.holders {
		if isAssigned(assigned, a) {
			continue
		}
		for node, w := range byNode {
			if now.Sub(w.at) > holderLifetime && !(w.held && node == h.node) {
				h.decided = false
				delete(byNode, node)
			}
		}
		if len(byNode) == 0 {
			delete(h.holders, a)
			delete(h.rounds, a)
			h.history.Forget(a)
		}
	}
}
