package speaker

import (
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// admit returns the addresses of want that this node may answer for now. It requests a
// probe for addresses without any known owner. Holders of the others receive the message
// that this node is ready.
func (h *handoverState) admit(want []l2.Address, now time.Time) []l2.Address {
	admitted, messages := h.selectAdmitted(want, now)
	for node, list := range messages {
		for _, m := range list {
			h.send(node, m)
		}
	}
	return admitted
}

// selectAdmitted is admit, and returns the messages by node instead of sending them.
func (h *handoverState) selectAdmitted(want []l2.Address,
	now time.Time) (admitted []l2.Address, messages map[string][][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	paused := now.Before(h.paused)
	if h.decided && sortedset.Same(h.wanted, want) && len(h.waits) == 0 && !paused {
		return h.admitted, nil
	}
	begun := map[string][]netip.Addr{}
	admitted = make([]l2.Address, 0, len(want))
	for _, a := range want {
		_, waited := h.waits[a.Addr]
		if !h.isFree(a.Addr, now) {
			if w, waits := h.waits[a.Addr]; waits && !waited {
				begun[w.holder] = append(begun[w.holder], a.Addr)
			}
			continue
		}
		a.Probe, a.Round = len(h.holders[a.Addr]) == 0, h.rounds[a.Addr]
		admitted = append(admitted, a)
	}
	h.wanted, h.admitted, h.decided = want, admitted, !paused
	messages = make(map[string][][]byte, len(begun))
	for node, list := range begun {
		messages[node] = message{kind: readyMessage, instance: h.instance, sequence: h.sequence, held: list}.encode()
	}
	return admitted, messages
}

func compareL2(a l2.Address, b netip.Addr) int { return a.Addr.Compare(b) }

// isFree reports whether this node may answer for an address: no other node holds it, or
// the wait for that node is over.
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

// holder returns the node that an address waits for, empty if it waits for none.
func (h *handoverState) holder(a netip.Addr) (node string) {
	byNode := h.holders[a]
	if byNode[h.node].held {
		return ""
	}
	for other, w := range byNode {
		if w.held && other != h.node && !h.isDead(other) && (node == "" || other < node) {
			node = other
		}
	}
	return node
}
