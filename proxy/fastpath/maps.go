package fastpath

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// An offloadedFrontend is a frontend that takes new flows.
type offloadedFrontend struct {
	choice kernelChoice
	// backends are those in the slots. The weights of adopted ones are unknown: 0.
	backends []Backend
}

// remaining are the backends that f still gives new flows; f may be nil.
func (t *offloadedFrontend) remaining(f *Frontend) []Backend {
	if f == nil || !f.Take {
		return nil
	}
	var keep []Backend
	for _, b := range t.backends {
		if i, found := slices.BinarySearchFunc(f.Backends, b.Addr, func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) }); found {
			keep = append(keep, f.Backends[i])
		}
	}
	return keep
}

// take makes a frontend take new flows for these backends; without backends, none. The
// change is atomic: each packet uses the old slots or the new ones.
func (p *Datapath) take(key kernelFrontend, backends []Backend) error {
	had := p.offloaded[key]
	if len(backends) == 0 {
		if had == nil {
			return nil
		}
		if err := ignoreNotExist(p.kernel.Frontends.Delete(key)); err != nil {
			return fmt.Errorf("frontend %s: %w", key.addrPort(), err)
		}
		delete(p.offloaded, key)
		p.usagesStale = true
		p.retired = append(p.retired, had.choice)
		return nil
	}
	now := kernelChoice{Set: p.nextSet, Count: uint32(len(backends))}
	p.nextSet++
	places := make([]kernelPlace, len(backends))
	for i := range places {
		places[i] = kernelPlace{Set: now.Set, Slot: uint32(i)}
	}
	if _, err := p.kernel.Slots.BatchUpdate(places, slotsOf(backends), nil); err != nil {
		return errors.Join(p.leaveFull(key, had, "backends", err), p.clear(now))
	}
	err := p.admit(key.Address)
	if err == nil {
		err = p.kernel.Frontends.Put(key, now)
	}
	if err != nil {
		return errors.Join(p.leaveFull(key, had, "frontends", err), p.clear(now))
	}
	p.offloaded[key] = &offloadedFrontend{now, slices.Clone(backends)}
	if had != nil {
		p.retired = append(p.retired, had.choice)
	}
	return nil
}

// redo makes the next apply decide again about frontends that may take new flows.
func (p *Datapath) redo(is func(kernelFrontend) bool) {
	for key := range p.uses {
		if is(key) {
			p.dirty[key] = true
		}
	}
}

// leaveFull leaves a frontend to the rules if err says that a map is full, and records the
// reason. A full map is not an error.
func (p *Datapath) leaveFull(key kernelFrontend, had *offloadedFrontend, what string, err error) error {
	if !isFull(err) {
		return fmt.Errorf("frontend %s: %w", key.addrPort(), err)
	}
	p.left[key] = "the table of " + what + " is full"
	if had != nil {
		return p.take(key, nil)
	}
	return nil
}

// retire deletes the slots of sets that were replaced before the previous walk. Newer ones
// stay: a running program may have read the set and not yet its slot.
func (p *Datapath) retire() error {
	var errs []error
	for _, c := range p.retiring {
		errs = append(errs, p.clear(c))
	}
	p.retiring, p.retired = p.retired, nil
	return errors.Join(errs...)
}

// clear deletes the slots of a set.
func (p *Datapath) clear(c kernelChoice) error {
	var errs []error
	for i := range c.Count {
		errs = append(errs, ignoreNotExist(p.kernel.Slots.Delete(kernelPlace{Set: c.Set, Slot: i})))
	}
	return errors.Join(errs...)
}

// leaveAll makes the programs leave new flows from these sources to the rules.
func (p *Datapath) leaveAll(sources []netip.Prefix) error {
	var errs []error
	for _, s := range sources {
		errs = append(errs, p.leave(prefixOf(s)))
	}
	return errors.Join(errs...)
}

// leave is leaveAll for one source.
func (p *Datapath) leave(source kernelPrefix) error {
	if p.clients[source] {
		return nil
	}
	if err := p.kernel.Clients.Put(source, uint32(1)); err != nil {
		return fmt.Errorf("client %s/%d: %w", source.Address.addr(), source.Length, err)
	}
	p.clients[source] = true
	return nil
}

// forgetClients deletes sources that p.want does not list.
func (p *Datapath) forgetClients() error {
	want := make(map[kernelPrefix]bool)
	for _, c := range p.want.Clients {
		want[prefixOf(c)] = true
	}
	var errs []error
	for c := range p.clients {
		if want[c] {
			continue
		}
		if err := ignoreNotExist(p.kernel.Clients.Delete(c)); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(p.clients, c)
	}
	return errors.Join(errs...)
}

// adoptTaken reads frontends and slots from the maps, and deletes slots without a frontend.
func (p *Datapath) adoptTaken() error {
	var key kernelFrontend
	var choice kernelChoice
	sets := make(map[uint32]*offloadedFrontend)
	for fronts := p.kernel.Frontends.Iterate(); fronts.Next(&key, &choice); {
		t := &offloadedFrontend{choice: choice}
		p.offloaded[key], sets[choice.Set] = t, t
		p.nextSet = max(p.nextSet, choice.Set+1)
	}
	var place kernelPlace
	var slot kernelSlot
	var left []kernelPlace
	slots := p.kernel.Slots.Iterate()
	for slots.Next(&place, &slot) {
		p.nextSet = max(p.nextSet, place.Set+1)
		t := sets[place.Set]
		if t == nil || place.Slot >= t.choice.Count {
			left = append(left, place)
			continue
		}
		t.backends = append(t.backends, Backend{Addr: slot.Backend.Address.port(slot.Backend.Port)})
	}
	errs := []error{slots.Err()}
	for _, place := range left {
		errs = append(errs, ignoreNotExist(p.kernel.Slots.Delete(place)))
	}
	return errors.Join(errs...)
}

// adoptClients reads the sources that are left to the rules from the map.
func (p *Datapath) adoptClients() error {
	var key kernelPrefix
	var value uint32
	all := p.kernel.Clients.Iterate()
	for all.Next(&key, &value) {
		p.clients[key] = true
	}
	return all.Err()
}

// frontend returns the frontend of a port, or nil.
func (s *State) frontend(a netip.AddrPort, protocol uint8) *Frontend {
	v := s.vip(a.Addr())
	if v == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(v.Frontends, a, func(f Frontend, a netip.AddrPort) int {
		return cmpFrontends(f.Addr, f.Protocol, a, protocol)
	})
	if !found {
		return nil
	}
	return &v.Frontends[i]
}

// vip returns the VIP of an address, or nil.
func (s *State) vip(a netip.Addr) *VIP {
	i, found := slices.BinarySearchFunc(s.VIPs, a, func(v *VIP, a netip.Addr) int { return v.Addr.Compare(a) })
	if !found {
		return nil
	}
	return s.VIPs[i]
}

// cmpFrontends is the order of VIP.Frontends.
func cmpFrontends(a netip.AddrPort, p uint8, b netip.AddrPort, q uint8) int {
	return cmp.Or(a.Compare(b), cmp.Compare(p, q))
}

// is reports whether s has the same slices as o: they are never modified, so this suffices.
func (s *State) is(o *State) bool {
	return sortedset.Same(s.Outward, o.Outward) && sortedset.Same(s.Clients, o.Clients) && sortedset.Same(s.VIPs, o.VIPs) && sortedset.Same(s.Owned, o.Owned)
}

// is reports whether f equals o.
func (f *Frontend) is(o *Frontend) bool {
	return f.Addr == o.Addr && f.Protocol == o.Protocol && f.Take == o.Take && sameElements(f.Backends, o.Backends) &&
		sameElements(f.Draining, o.Draining) && sameElements(f.Replying, o.Replying) &&
		(f.Sources == nil) == (o.Sources == nil) && sameElements(f.Sources, o.Sources)
}

// sameElements is slices.Equal, at once for the same slice.
func sameElements[E comparable](a, b []E) bool { return sortedset.Same(a, b) || slices.Equal(a, b) }

// ignoreNotExist returns err, or nil if it says that the key does not exist.
func ignoreNotExist(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
