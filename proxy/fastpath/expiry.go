package fastpath

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
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
func timeoutOf(protocol uint8, there, back uint32) uint32 {
	switch {
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
)

// judge returns the verdict for a flow. Flows to addresses outside of s.Owned are not this
// State's: they stay until they time out.
func (s *State) judge(f *Flow) verdict {
	fe := s.frontend(f.VIP, f.Protocol)
	if fe == nil {
		if s.vip(f.VIP.Addr()) != nil || !within(s.Owned, f.VIP.Addr()) {
			return stays
		}
		return ends
	}
	if fe.forbids(f.Client.Addr()) {
		return ends
	}
	if _, is := slices.BinarySearchFunc(fe.Backends, f.Backend, func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) }); is {
		return stays
	}
	if _, is := slices.BinarySearchFunc(fe.Draining, f.Backend, netip.AddrPort.Compare); !is {
		return ends
	}
	if f.Protocol == TCP {
		return endsUnanswered
	}
	return stays
}

func (f *Frontend) forbids(client netip.Addr) bool {
	return f.Sources != nil && !within(f.Sources, client)
}

func within(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// A walk is one iteration over all flows.
type walk struct {
	path    *Path
	now     uint32
	want    *State // nil: flows end by timeouts only
	flows   int
	began   time.Time
	pending bool // a flow waits for endDelay or for a reply
	expired map[kernelTuple]time.Time
	ended   []Flow // open connections that were deleted, to report
	errs    []error
}

// walk deletes flows that have timed out and flows that p.want ends. It reports whether the
// next walk should come soon.
func (p *Path) walk() (again bool) {
	w := walk{path: p, now: seconds(), began: time.Now(), expired: make(map[kernelTuple]time.Time)}
	p.mu.Lock()
	if p.grown && p.uncheckedGrows > 0 {
		want := p.want
		w.want, p.walking = &want, true
	}
	grows := p.uncheckedGrows
	unusedHooks := p.unusedHooks()
	w.errs = append(w.errs, p.retire())
	p.mu.Unlock()

	w.all(w.check)
	p.mu.Lock()
	p.status.Flows, p.walking = w.flows, false
	if w.want != nil {
		p.expired = w.expired
		if !w.pending && p.uncheckedGrows == grows {
			p.uncheckedGrows = 0 // no flow is pending, and there was no other Grow
		}
	}
	again = p.uncheckedGrows > 0
	if w.flows == 0 {
		w.errs = append(w.errs, p.release(unusedHooks))
	}
	p.mu.Unlock()
	if err := errors.Join(w.errs...); err != nil {
		p.log.Warn("fast path: walk over flows", "err", err)
	}
	if len(w.ended) > 0 && p.ended != nil {
		p.ended(w.ended)
	}
	return again
}

// Forget deletes closed connections to these addresses. Otherwise packets of a connection
// that began at another node from the same client port would match the old flow.
func (p *Path) Forget(_ context.Context, vips map[netip.Addr]bool) error {
	w := walk{path: p}
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
	const chunk = 4096
	keys, values := make([]kernelTuple, chunk), make([]kernelFlow, chunk)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := w.path.kernel.Flows.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], &values[i])
		}
		if err != nil {
			if !errors.Is(err, ebpf.ErrKeyNotExist) { // the end of the map
				w.errs = append(w.errs, err)
			}
			return
		}
	}
}

// idle returns the seconds since the last packet; 0 if it came after the walk began.
func (w *walk) idle(f *kernelFlow) uint32 { return uint32(max(int32(w.now-f.Seen), 0)) }

func (w *walk) check(key kernelTuple, f *kernelFlow) {
	if key.Direction == inward {
		w.deleteOrphan(key, f)
		return
	}
	w.flows++
	if w.want != nil && w.endIfUnwanted(key, f) {
		return
	}
	if w.idle(f) <= shortestTimeout {
		return
	}
	back, found := w.lookup(key.reply(f))
	if !found {
		w.end(key, f)
		return
	}
	if min(w.idle(f), w.idle(back)) > timeoutOf(key.Protocol, f.State, back.State) && w.same(key, f) {
		w.end(key, f)
	}
}

// endIfUnwanted ends a flow that the State does not allow, and reports whether it did.
func (w *walk) endIfUnwanted(key kernelTuple, f *kernelFlow) bool {
	flow := key.flow(f)
	v := w.want.judge(&flow)
	if v == stays {
		return false
	}
	// A Grow may have changed the State since the walk began.
	w.path.mu.Lock()
	v, forbidden := w.path.want.judge(&flow), w.path.want.forbids(&flow)
	w.path.mu.Unlock()
	back, found := w.lookup(key.reply(f))
	answered := found && back.State&flowOpen != 0
	if v == stays || v == endsUnanswered && answered {
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

func (s *State) forbids(f *Flow) bool {
	fe := s.frontend(f.VIP, f.Protocol)
	return fe != nil && fe.forbids(f.Client.Addr())
}

// same reports whether an entry is unchanged since it was read: no packet has matched it.
func (w *walk) same(key kernelTuple, f *kernelFlow) bool {
	now, found := w.lookup(key)
	return found && *now == *f
}

func (w *walk) lookup(key kernelTuple) (*kernelFlow, bool) {
	var f kernelFlow
	err := w.path.kernel.Flows.Lookup(key, &f)
	if ignoreNotExist(err) != nil {
		w.errs = append(w.errs, err)
	}
	return &f, err == nil
}

// end deletes both entries of a flow.
func (w *walk) end(key kernelTuple, f *kernelFlow) {
	w.flows--
	for _, k := range []kernelTuple{key, key.reply(f)} {
		if err := ignoreNotExist(w.path.kernel.Flows.Delete(k)); err != nil {
			w.errs = append(w.errs, err)
		}
	}
}

// deleteOrphan deletes an entry for replies without a forward entry, as a process leaves it
// that is killed between the two updates.
func (w *walk) deleteOrphan(key kernelTuple, f *kernelFlow) {
	if w.idle(f) <= shortestTimeout {
		return
	}
	if there, found := w.lookup(key.forward(f)); found && key.forward(f).reply(there) == key {
		return
	}
	if w.same(key, f) {
		if err := ignoreNotExist(w.path.kernel.Flows.Delete(key)); err != nil {
			w.errs = append(w.errs, err)
		}
	}
}
