package fastpath

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// How long a flow may be without packets, in seconds: conntrack's default timeouts
// (net.netfilter.nf_conntrack_*_timeout_*), or nearly so.
const (
	synTimeout         = 60 // the handshake is not complete
	establishedTimeout = 5 * 24 * 3600
	finTimeout         = 120 // one side has sent FIN
	closedTimeout      = 30  // both sides have sent FIN; lost segments may be repeated
	resetTimeout       = 10
	udpTimeout         = 30 // UDP without a reply
	udpStreamTimeout   = 120

	shortestTimeout = resetTimeout
	// A flow without an answer ends after this time where its address has more than half of the
	// flows that it may have. Conntrack drops such flows first, too, when it is full.
	pressedTimeout = 5
)

// seconds returns the time by the clock of kernelFlow.Seen: seconds since boot.
func seconds() uint32 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		panic(err) // cannot happen: every kernel with tcx has this clock
	}
	return uint32(t.Sec)
}

// timeoutOf returns how long a flow may be without packets, by its state in both directions.
// pressed says that its address has many flows.
func timeoutOf(protocol uint8, there, back uint32, pressed bool) uint32 {
	answered := back&flowOpen != 0 && (protocol == UDP || there&flowOpen != 0)
	switch {
	case pressed && !answered:
		return pressedTimeout
	case protocol == UDP && back&flowOpen != 0:
		return udpStreamTimeout
	case protocol == UDP:
		return udpTimeout
	case (there|back)&flowRST != 0:
		return resetTimeout
	case there&back&flowFIN != 0:
		return closedTimeout
	case (there|back)&flowFIN != 0:
		return finTimeout
	case there&back&flowOpen != 0:
		return establishedTimeout
	}
	return synTimeout
}

// A verdict says whether a State allows a flow to continue.
type verdict int

const (
	stays verdict = iota
	ends
	endsUnanswered // only if the backend has not replied
	repliesOnly    // replies pass, and the client's next packet begins another flow
)

// judge returns the verdict for a flow. Flows to addresses outside of s.Owned are not this
// State's: they stay until they time out.
func (s *State) judge(f *Flow) verdict {
	fe := s.frontend(f.VIP, f.Protocol)
	if fe == nil {
		if s.vip(f.VIP.Addr()) != nil || !sortedset.ContainsAddr(s.Owned, f.VIP.Addr()) {
			return stays
		}
		return ends
	}
	if fe.forbids(f.Client.Addr()) {
		return ends
	}
	if _, is := slices.BinarySearchFunc(fe.Backends, f.Backend,
		func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) }); is {
		return stays
	}
	if _, is := slices.BinarySearchFunc(fe.Replying, f.Backend, netip.AddrPort.Compare); is {
		return repliesOnly
	}
	if _, is := slices.BinarySearchFunc(fe.Draining, f.Backend, netip.AddrPort.Compare); !is {
		return ends
	}
	if f.Protocol == TCP {
		return endsUnanswered
	}
	return stays
}

// forbids reports whether flows of a client must end. Nil Sources allow all clients, empty ones
// allow none.
func (f *Frontend) forbids(client netip.Addr) bool {
	return f.Sources != nil && !sortedset.ContainsAddr(f.Sources, client)
}

// A walk is one iteration over all flows. The programs insert flows meanwhile, which the walk
// may miss.
type walk struct {
	path  *Datapath
	now   uint32 // when the walk began; see seconds
	want  *State // nil: flows end by timeouts only
	flows int
	// replies counts entries for replies. Some have no flow: see keepReplies.
	replies int
	used    map[kernelAddress]int // flows, by the VIP
	// before is what the programs had counted when the walk began.
	before  counts
	pressed map[kernelAddress]bool // the addresses that have many flows
	began   time.Time
	pending bool // a flow waits for endDelay or for a reply
	expired map[kernelTuple]time.Time
	ended   []Flow                     // open connections that were deleted, to report
	leaving map[kernelTuple]kernelFlow // to be moved, by the client's entry
	errs    []error
}

// newWalk returns a walk that has seen nothing.
func (d *Datapath) newWalk() *walk {
	return &walk{path: d, now: seconds(), began: time.Now(), used: make(map[kernelAddress]int),
		expired: make(map[kernelTuple]time.Time), leaving: make(map[kernelTuple]kernelFlow)}
}

// walk deletes flows that have timed out and flows that d.want ends. It reports whether the
// next walk should come soon.
func (d *Datapath) walk() (again bool) {
	w := d.newWalk()
	before, err := d.kernel.readCounts()
	w.before, w.errs = before, append(w.errs, err)
	d.mu.Lock()
	w.pressed = d.usages.pressed
	if d.grown && d.grows > d.checked {
		want := d.want
		w.want, d.walking = &want, true
	}
	grows := d.grows
	unused := d.attachments.unused()
	w.errs = append(w.errs, d.table.retire())
	d.mu.Unlock()

	errs := len(w.errs)
	w.all(w.check)
	complete := len(w.errs) == errs
	w.errs = append(w.errs, w.move())
	if err == nil {
		w.errs = append(w.errs, d.correct(w))
	}
	d.mu.Lock()
	d.status.Flows, d.walking = w.flows, false
	if w.want != nil {
		d.expired = w.expired
		if complete && !w.pending {
			d.checked = max(d.checked, grows)
		}
	}
	again = d.grows > d.checked
	if w.flows == 0 && w.replies == 0 {
		w.errs = append(w.errs, d.attachments.release(unused))
	}
	d.mu.Unlock()
	if err := errors.Join(w.errs...); err != nil {
		d.log.Warn("fast path: walk over flows", "err", err)
	}
	if len(w.ended) > 0 && d.ended != nil {
		d.ended(w.ended)
	}
	return again
}

// Forget deletes closed connections to these addresses, whose traffic has come back from another
// node. Otherwise packets of a connection that began there from the same client port would match
// the old flow. It reads the whole flow table, without the lock. Open connections stay.
func (d *Datapath) Forget(_ context.Context, vips map[netip.Addr]bool) error {
	w := d.newWalk()
	w.all(func(key kernelTuple, f *kernelFlow) {
		if key.Direction == inward || key.Protocol != TCP || !vips[key.Destination.addr()] {
			return
		}
		if back, found := w.lookup(key.reply(f)); found && closed(f, back) && w.same(key, f) {
			w.end(key, f)
		}
	})
	return errors.Join(w.errs...)
}

// closed reports whether a connection has ended, by its state in both directions.
func closed(there, back *kernelFlow) bool {
	return (there.State|back.State)&flowRST != 0 || there.State&back.State&flowFIN != 0
}

// all calls f for each entry; a flow has two.
func (w *walk) all(f func(kernelTuple, *kernelFlow)) {
	if err := eachEntry(w.path.kernel.Flows, f); err != nil {
		w.errs = append(w.errs, err)
	}
}

// eachEntry calls f for each entry of a map. It reads entries in batches, because one system
// call for each takes seconds for a full table. f must not keep the pointer.
func eachEntry[K, V any](m *ebpf.Map, f func(K, *V)) error {
	const chunk = 4096
	keys, values := make([]K, chunk), make([]V, chunk)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], &values[i])
		}
		if err != nil {
			return ignoreNotExist(err) // the end of the map
		}
	}
}

// idle returns the seconds since the last packet; 0 if it came after the walk began.
func (w *walk) idle(f *kernelFlow) uint32 { return uint32(max(int32(w.now-f.Seen), 0)) }

// check ends a flow that the State does not allow or that has timed out. A flow that had a
// packet within the shortest timeout needs no second lookup.
func (w *walk) check(key kernelTuple, f *kernelFlow) {
	w.findLeaving(key, f)
	if key.Direction == inward {
		w.deleteUnpaired(key, f)
		return
	}
	w.flows++
	w.used[key.Destination]++
	if f.State&flowLeft != 0 {
		if w.idle(f) > udpStreamTimeout && w.same(key, f) {
			w.end(key, f)
		}
		return
	}
	pressed := w.pressed[key.Destination]
	if w.endIfUnwanted(key, f) {
		return
	}
	if w.idle(f) <= pressedTimeout || !pressed && w.idle(f) <= shortestTimeout {
		return
	}
	back, found := w.lookup(key.reply(f))
	if !found {
		w.end(key, f)
		return
	}
	if min(w.idle(f), w.idle(back)) > timeoutOf(key.Protocol, f.State, back.State, pressed) && w.same(key, f) {
		w.end(key, f)
	}
}

// judge returns the verdict for a flow, and whether its client is forbidden.
func (w *walk) judge(f *Flow) (v verdict, forbidden bool) {
	if w.want == nil || w.want.judge(f) == stays {
		return stays, false
	}
	// A Grow may have changed the State since the walk began.
	w.path.mu.Lock()
	defer w.path.mu.Unlock()
	return w.path.want.judge(f), w.path.want.forbids(f)
}

// endIfUnwanted ends a flow that the State does not allow, and reports whether it did.
func (w *walk) endIfUnwanted(key kernelTuple, f *kernelFlow) bool {
	flow := key.flow(f)
	v, forbidden := w.judge(&flow)
	if v == stays {
		return false
	}
	back, found := w.lookup(key.reply(f))
	if v == repliesOnly {
		if found {
			w.keepReplies(key.reply(f), back)
		}
		w.endForward(key)
		return true
	}
	answered := found && back.State&flowOpen != 0
	if v == endsUnanswered && answered {
		return false
	}
	if key.Protocol == TCP && !forbidden && !w.overdue(key) {
		return false
	}
	w.end(key, f)
	if answered && key.Protocol == TCP && !forbidden && !closed(f, back) {
		w.ended = append(w.ended, flow)
	}
	return true
}

// endDelay is how long a connection stays after its backend was removed, in case the backend
// returns, and how long a draining backend may take to answer a SYN. The rules use the same.
const endDelay = 500 * time.Millisecond

// overdue reports whether walks have found for at least endDelay that a flow must end.
func (w *walk) overdue(key kernelTuple) bool {
	since, found := w.path.expired[key]
	if !found {
		since = w.began
	}
	if w.began.Sub(since) >= endDelay {
		return true
	}
	w.expired[key], w.pending = since, true
	return false
}

// forbids reports whether a flow's frontend restricts clients and does not allow this one.
func (s *State) forbids(f *Flow) bool {
	fe := s.frontend(f.VIP, f.Protocol)
	return fe != nil && fe.forbids(f.Client.Addr())
}

// same reports whether an entry is unchanged since it was read: no packet has matched it.
func (w *walk) same(key kernelTuple, f *kernelFlow) bool {
	now, found := w.lookup(key)
	return found && *now == *f
}

// lookup returns an entry, and whether it exists. An error counts as missing and is recorded.
func (w *walk) lookup(key kernelTuple) (*kernelFlow, bool) {
	var f kernelFlow
	err := w.path.kernel.Flows.Lookup(key, &f)
	if ignoreNotExist(err) != nil {
		w.errs = append(w.errs, err)
	}
	return &f, err == nil
}

// end deletes both entries of a flow. The next packet is left to the rules, which reset its
// connection.
func (w *walk) end(key kernelTuple, f *kernelFlow) {
	w.endForward(key)
	w.delete(key.reply(f))
}

// endForward deletes the client's entry of a flow. Conntrack would lead its packets to the backend
// that it leaves, so that move must not make an entry.
func (w *walk) endForward(key kernelTuple) {
	w.flows--
	w.used[key.Destination]--
	delete(w.leaving, key)
	w.delete(key)
}

// delete deletes an entry, if it exists.
func (w *walk) delete(key kernelTuple) {
	if err := ignoreNotExist(w.path.kernel.Flows.Delete(key)); err != nil {
		w.errs = append(w.errs, err)
	}
}

// keepReplies keeps an entry for replies, from now on for as long as deleteUnpaired does: its flow
// may have rested until a request that the backend is answering now.
func (w *walk) keepReplies(key kernelTuple, f *kernelFlow) {
	f.Seen = seconds()
	if err := ignoreNotExist(w.path.kernel.Flows.Update(key, *f, ebpf.UpdateExist)); err != nil {
		w.errs = append(w.errs, err)
	}
}

// deleteUnpaired deletes an entry for replies without a forward entry, when no more replies come or
// the State does not allow them. keepReplies leaves such entries, and so does a process that is
// killed between two updates or deletions.
func (w *walk) deleteUnpaired(key kernelTuple, f *kernelFlow) {
	w.replies++
	forward := key.forward(f)
	unwanted := key.Protocol == UDP && w.forbidsReplies(key, forward)
	if !unwanted && w.idle(f) <= shortestTimeout {
		return
	}
	if there, found := w.lookup(forward); found && forward.reply(there) == key {
		return
	}
	if unwanted || w.same(key, f) {
		w.replies--
		w.delete(key)
	}
}

// forbidsReplies reports whether the State ends the flow of an entry for replies.
func (w *walk) forbidsReplies(key, forward kernelTuple) bool {
	flow := forward.flow(&kernelFlow{Address: key.Source, Port: key.SourcePort})
	v, _ := w.judge(&flow)
	return v == ends
}
