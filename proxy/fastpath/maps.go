package fastpath

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// An offloadedFrontend is a frontend that takes new flows.
type offloadedFrontend struct {
	choice kernelChoice
	// backends are those in the slots. The weights of adopted ones are unknown: 0.
	backends []Backend
}

// remaining are the backends that f still gives new flows; f may be nil.
func (o *offloadedFrontend) remaining(f *Frontend) []Backend {
	if f == nil || !f.Take {
		return nil
	}
	var keep []Backend
	for _, b := range o.backends {
		if i, found := slices.BinarySearchFunc(f.Backends, b.Addr,
			func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) }); found {
			keep = append(keep, f.Backends[i])
		}
	}
	return keep
}

// table is the frontends that take new flows, as in the maps.
type table struct {
	kernel    *objects
	usages    *usages
	frontends map[kernelFrontend]*offloadedFrontend
	left      map[kernelFrontend]string // wanted frontends that the rules keep, and why
	nextSet   uint32
	// retired are sets of slots without a frontend, retiring those from before the last
	// walk.
	retired, retiring []kernelChoice
}

// take makes a frontend take new flows for these backends; without backends, none. The
// change is atomic: each packet uses the old slots or the new ones.
func (t *table) take(key kernelFrontend, backends []Backend) error {
	had := t.frontends[key]
	if len(backends) == 0 {
		if had == nil {
			return nil
		}
		if err := ignoreNotExist(t.kernel.Frontends.Delete(key)); err != nil {
			return fmt.Errorf("frontend %s: %w", key.addrPort(), err)
		}
		delete(t.frontends, key)
		t.usages.stale = true
		t.retired = append(t.retired, had.choice)
		return nil
	}
	now := kernelChoice{Set: t.nextSet, Count: uint32(len(backends))}
	t.nextSet++
	places := make([]kernelPlace, len(backends))
	for i := range places {
		places[i] = kernelPlace{Set: now.Set, Slot: uint32(i)}
	}
	if _, err := t.kernel.Slots.BatchUpdate(places, slotsOf(backends), nil); err != nil {
		return errors.Join(t.leaveFull(key, had, "backends", err), t.clear(now))
	}
	err := t.usages.admit(key.Address)
	if err == nil {
		err = t.kernel.Frontends.Put(key, now)
	}
	if err != nil {
		return errors.Join(t.leaveFull(key, had, "frontends", err), t.clear(now))
	}
	t.frontends[key] = &offloadedFrontend{now, slices.Clone(backends)}
	if had != nil {
		t.retired = append(t.retired, had.choice)
	}
	return nil
}

// leaveFull leaves a frontend to the rules if err says that a map is full, and records the
// reason. A full map is not an error.
func (t *table) leaveFull(key kernelFrontend, had *offloadedFrontend, what string, err error) error {
	if !isFull(err) {
		return fmt.Errorf("frontend %s: %w", key.addrPort(), err)
	}
	t.left[key] = "the table of " + what + " is full"
	if had != nil {
		return t.take(key, nil)
	}
	return nil
}

// retire deletes the slots of sets that were replaced before the previous walk. Newer ones
// stay: a running program may have read the set and not yet its slot.
func (t *table) retire() error {
	var errs []error
	for _, c := range t.retiring {
		errs = append(errs, t.clear(c))
	}
	t.retiring, t.retired = t.retired, nil
	return errors.Join(errs...)
}

// clear deletes the slots of a set.
func (t *table) clear(c kernelChoice) error {
	var errs []error
	for i := range c.Count {
		errs = append(errs, ignoreNotExist(t.kernel.Slots.Delete(kernelPlace{Set: c.Set, Slot: i})))
	}
	return errors.Join(errs...)
}

// adopt reads frontends and slots from the maps, and deletes slots without a frontend.
func (t *table) adopt() error {
	var key kernelFrontend
	var choice kernelChoice
	sets := make(map[uint32]*offloadedFrontend)
	for fronts := t.kernel.Frontends.Iterate(); fronts.Next(&key, &choice); {
		f := &offloadedFrontend{choice: choice}
		t.frontends[key], sets[choice.Set] = f, f
		t.nextSet = max(t.nextSet, choice.Set+1)
	}
	var place kernelPlace
	var slot kernelSlot
	var left []kernelPlace
	slots := t.kernel.Slots.Iterate()
	for slots.Next(&place, &slot) {
		t.nextSet = max(t.nextSet, place.Set+1)
		f := sets[place.Set]
		if f == nil || place.Slot >= f.choice.Count {
			left = append(left, place)
			continue
		}
		f.backends = append(f.backends, Backend{Addr: slot.Backend.Address.port(slot.Backend.Port)})
	}
	errs := []error{slots.Err()}
	for _, place := range left {
		errs = append(errs, ignoreNotExist(t.kernel.Slots.Delete(place)))
	}
	return errors.Join(errs...)
}

// clients are the sources whose new flows the programs leave to the rules, as in the map.
type clients struct {
	kernel *objects
	have   map[kernelPrefix]bool
}

// add adds sources; the present ones stay.
func (c *clients) add(sources []netip.Prefix) error {
	var errs []error
	for _, s := range sources {
		source := prefixOf(s)
		if c.have[source] {
			continue
		}
		if err := c.kernel.Clients.Put(source, uint32(1)); err != nil {
			errs = append(errs, fmt.Errorf("client %s: %w", s, err))
			continue
		}
		c.have[source] = true
	}
	return errors.Join(errs...)
}

// set adds sources and deletes all others.
func (c *clients) set(sources []netip.Prefix) error {
	want := make(map[kernelPrefix]bool)
	for _, s := range sources {
		want[prefixOf(s)] = true
	}
	errs := []error{c.add(sources)}
	for source := range c.have {
		if want[source] {
			continue
		}
		if err := ignoreNotExist(c.kernel.Clients.Delete(source)); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(c.have, source)
	}
	return errors.Join(errs...)
}

// adopt reads the sources from the map.
func (c *clients) adopt() error {
	var key kernelPrefix
	var value uint32
	all := c.kernel.Clients.Iterate()
	for all.Next(&key, &value) {
		c.have[key] = true
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
	i, found := slices.BinarySearchFunc(s.VIPs, a, (*VIP).CompareAddr)
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
	return sortedset.Same(s.Outward, o.Outward) && sortedset.Same(s.Clients, o.Clients) &&
		sortedset.Same(s.VIPs, o.VIPs) && sortedset.Same(s.Owned, o.Owned)
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
