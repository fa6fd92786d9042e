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

// How long a flow may be silent, in seconds: as long as conntrack lets it by default,
// or nearly so.
const (
	synTimeout         = 60 // no answer yet, or none to that
	establishedTimeout = 5 * 24 * 3600
	finTimeout         = 120 // one side has nothing more to say
	closedTimeout      = 30  // both sides, and what was lost on the way may come again
	resetTimeout       = 10
	udpTimeout         = 30 // UDP without an answer
	udpStreamTimeout   = 120

	shortestTimeout = resetTimeout
)

// seconds is the clock of kernelFlow.Seen.
func seconds() uint32 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		panic(err) // a clock that Linux has had for as long as there is tcx
	}
	return uint32(t.Sec)
}

// timeoutOf is how long a flow may be silent, by what came of it in both directions.
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

// A verdict is what becomes of a flow that a State speaks about.
type verdict int

const (
	stays verdict = iota
	ends
	endsUnanswered // only if no answer has come
)

// judge says what becomes of a flow.
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

// A walk is one look at all flows.
type walk struct {
	path    *Path
	now     uint32
	want    *State // nil: only age matters
	flows   int
	began   time.Time
	pending bool // a flow may stay still
	expired map[kernelTuple]time.Time
	ended   []Flow // connections to report
	errs    []error
}

// walk looks at all flows, and deletes old ones and flows that p.want ends. It
// says whether it should soon look again.
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
			p.uncheckedGrows = 0 // nothing is waited for, nor did another State come
		}
	}
	again = p.uncheckedGrows > 0
	if w.flows == 0 {
		w.errs = append(w.errs, p.release(unusedHooks))
	}
	p.mu.Unlock()
	if err := errors.Join(w.errs...); err != nil {
		p.log.Warn("look at flows", "err", err)
	}
	if len(w.ended) > 0 && p.ended != nil {
		p.ended(w.ended)
	}
	return again
}

// Forget deletes what is known of connections to some addresses that have ended. Packets of
// others that have begun at another node with the same clients' ports would be taken for theirs.
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

// closed says whether a connection has ended, by what came of it in both directions.
func closed(there, back *kernelFlow) bool {
	return (there.State|back.State)&flowRST != 0 || there.State&back.State&flowFIN != 0
}

// all calls f for each entry, two for a flow.
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
			if !errors.Is(err, ebpf.ErrKeyNotExist) { // which is the end
				w.errs = append(w.errs, err)
			}
			return
		}
	}
}

// idle is for how long there was silence. A packet may have come since now.
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

// over ends a flow if the State has it so.
func (w *walk) endIfUnwanted(key kernelTuple, f *kernelFlow) bool {
	flow := key.flow(f)
	v := w.want.judge(&flow)
	if v == stays {
		return false
	}
	// Who watches may have changed his mind since the walk began.
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

// endDelay is how long a connection whose backend is gone stays, as that may come back,
// and how long a backend that gets no new ones may take to answer a SYN. It is that of the rules.
const endDelay = 500 * time.Millisecond

// overdue says whether a flow has been found to end for long enough.
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

// same says whether nothing came of the flow since it was looked at.
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

// orphan deletes an entry for replies whose other half has gone, as when a process was
// killed between the two.
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
