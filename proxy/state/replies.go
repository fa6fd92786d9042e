package state

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
)

// Replies counts how many backends of frontends each element of the sets of replies stands for.
// These elements say from where replies come: VIPs share them, because Services may have the same
// pods. So an element is added for its first backend, and deleted after its last.
type Replies map[Element]int

// RepliesOf counts the backends of all VIPs.
func RepliesOf(vips VIPs) Replies {
	r := make(Replies)
	for v := range vips.All() {
		r.Record(VIPChange{Want: v})
	}
	return r
}

// Record counts the change of a VIP.
func (r Replies) Record(c VIPChange) {
	r.count(c.Have, -1, c.Want)
	r.count(c.Want, 1, c.Have)
}

// Elements returns what is counted, sorted.
func (r Replies) Elements() []Element { return slices.SortedFunc(maps.Keys(r), Element.Compare) }

// diff returns the elements that changes of VIPs add and delete. r is as before the changes, and
// stays so.
func (r Replies) diff(changes []VIPChange) (c Change) {
	by := make(Replies)
	for _, v := range changes {
		by.Record(v)
	}
	for _, e := range by.Elements() {
		have := r[e]
		switch want := have + by[e]; {
		case have == 0 && want > 0:
			c.Add = append(c.Add, e)
		case have > 0 && want <= 0:
			c.Del = append(c.Del, e)
		}
	}
	return c
}

// count adds by for each backend of a VIP, also for draining ones: they keep their flows. It leaves
// out frontends that have the same backends in the other version of the VIP.
func (r Replies) count(v *VIP, by int, other *VIP) {
	if v == nil {
		return
	}
	f := Family(v.Addr)
	for i := range v.Frontends {
		fe := &v.Frontends[i]
		if fe.keepsBackends(other.frontend(Port{Proto: fe.Protocol, Port: fe.Port})) {
			continue
		}
		for _, b := range fe.allBackends() {
			addr := make(Encoding, 0, 24).Addr(b.Addr())
			r.add(Element{Set: SetRepliers + f, Key: string(addr)}, by)
			r.add(Element{Set: SetReplies + f, Key: string(addr.Proto(fe.Protocol).Port(b.Port()))}, by)
		}
	}
}

// Reply returns the address of an element of the sets of replies, and its port if it has one.
func (e Element) Reply() (addr netip.Addr, p Port) {
	n := Specs[e.Set].Key[0].Size()
	addr, _ = netip.AddrFromSlice([]byte(e.Key[:n]))
	if rest := e.Key[n:]; Base(e.Set) == SetReplies {
		p = Port{Proto: Protocol(rest[0]), Port: binary.BigEndian.Uint16([]byte(rest[4:]))}
	}
	return addr, p
}

func (r Replies) add(e Element, by int) {
	if r[e] += by; r[e] == 0 {
		delete(r, e)
	}
}

// allBackends returns the backends of both kinds of clients, and the draining ones.
func (f *Frontend) allBackends() []netip.AddrPort {
	all := slices.Clone(f.Draining)
	for _, t := range f.targets() {
		for _, b := range t.Backends {
			all = append(all, b.Addr)
		}
	}
	return all
}

// keepsBackends reports whether all backends are the same in another version of the frontend.
func (f *Frontend) keepsBackends(o *Frontend) bool {
	return o != nil && slices.Equal(f.Draining, o.Draining) &&
		slices.Equal(f.External.Backends, o.External.Backends) && slices.Equal(f.Internal.Backends, o.Internal.Backends)
}
