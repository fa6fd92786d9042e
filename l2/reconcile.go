package l2

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
)

// reconcile applies the State to the addresses that differ from before, the Addresses that were
// applied last; without plans, to all addresses. It releases addresses first, then assigns.
func (a *Announcer) reconcile(before []Address) {
	k := a.worker
	all := k.plans == nil
	if all {
		k.plans = planPools(a.want.Pools, a.interfaces) // written by this goroutine only
	}
	changed := changes(before, a.want.Addresses, all)
	k.plans.update(changed, a.interfaces)
	a.phases.mu.Lock()
	if all {
		a.updateSpeakers()
	}
	a.phases.release(k.plans, changed)
	a.phases.mu.Unlock()
	failed := k.openSockets(a, all)
	a.phases.mu.Lock()
	defer a.phases.mu.Unlock()
	maps.DeleteFunc(a.failures, func(k socketKey, _ error) bool { return k != listFailed })
	maps.Copy(a.failures, failed)
	a.phases.assign(k, changed, time.Now())
	if len(failed) > 0 {
		k.plans = nil // they lack the sockets that failed
	}
	notify.Changed(a.phases.wake)
}

// openSockets opens and closes sockets as planned, and deletes the plans of sockets that fail. It
// opens a socket again that has failed, but only if all addresses are reconsidered: the new socket
// has none. The socket's goroutine has requested that.
func (w *worker) openSockets(a *Announcer, all bool) map[socketKey]error {
	failed := make(map[socketKey]error)
	for key, p := range w.sockets {
		if w.plans[key] == nil || all && p.failed.Load() {
			p.close()
			delete(w.sockets, key)
		}
	}
	for key, b := range w.plans {
		p, err := w.sockets[key], error(nil)
		if p == nil {
			p, err = openSocket(a, key, b.iface)
		}
		if err == nil {
			w.sockets[key] = p
			err = p.apply(b)
		}
		if err != nil {
			failed[key] = fmt.Errorf("%s on %s: %w", key.protocol.name, b.iface.Name, err)
			delete(w.plans, key) // an open socket keeps its addresses
		}
	}
	return failed
}

// updateSpeakers lists, with mu held, the hardware addresses that cause no conflict.
func (a *Announcer) updateSpeakers() {
	maps.DeleteFunc(a.knownNodes, func(_ MAC, node netip.Addr) bool { return !slices.Contains(a.want.Nodes, node) })
	all := make(map[MAC]bool, len(a.want.Speakers)+len(a.knownNodes))
	for _, m := range a.want.Speakers {
		all[m] = true
	}
	for m := range a.knownNodes {
		all[m] = true
	}
	a.worker.speakers = all
}
