package speaker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// An announcer tells the network which addresses this node has.
type announcer interface {
	// Set announces those routes of d whose prefixes are allowed, and goes on with
	// those that are allowed and no longer d's; and no others. allowed is sorted. It
	// does as much as it can and returns what the network is told now, or may be told
	// any time before the next Set, sorted, also when it returns an error.
	Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) (told []netip.Prefix, err error)
}

// handover is how long an address stays announced after its last endpoint on
// this node has gone while other nodes have some. They see the same change at the
// same time and announce it too; whoever withdraws first leaves routers without
// any route, and they refuse clients. Until then this node forwards to the others.
const handover = 250 * time.Millisecond

// A way is one of the ways in which addresses are announced: BGP, by prefixes, or L2,
// by addresses, each of which is a prefix of its own. An address may go several ways,
// and leaves the network when the last of them is closed to it.
type way struct {
	protocol  string // as Reasons name it
	announcer announcer
	wants     func(*plan.Desired) wish
	// linger is how long an address is forwarded after it left this way.
	linger time.Duration

	// told is what the network is told, as the announcer last said, and have are
	// the addresses that are announced by it: those of asked that it covers, and
	// those that it could not be made to forget.
	told  []netip.Prefix
	have  []netip.Addr
	asked []netip.Addr
	// departed are the addresses that have left and may still be asked for. An entry
	// goes when its time is over or the address is announced this way again, not when
	// it is wanted again: announcing it may fail; nor when it is announced another way:
	// whoever asks by this one hears nothing of that.
	departed map[netip.Addr]departure
	// released are the aggregates that have left, and until when what is in them and
	// nobody's is refused: until then somebody may send to it.
	released map[netip.Prefix]time.Time
	// handing are the addresses that are announced until then although they are
	// no longer wanted, so that others can take over. It is nil where whoever takes
	// over waits to be told.
	handing map[netip.Addr]time.Time
	// keeps says whether an address that is no longer wanted stays for now, since whoever
	// takes over is not ready; nil: none does.
	keeps func(d *plan.Desired, a netip.Addr, now time.Time) bool
}

// A departure is an address that left the network.
type departure struct {
	until  time.Time // forwarded until then
	owners []cluster.Name
	// adopted: it was an earlier process that announced it, if anybody did.
	adopted bool
}

// byBGP is the way to routers.
func byBGP(a announcer, linger time.Duration) *way {
	w := newWay("bgp", a, linger, func(d *plan.Desired) wish { return wish{d.Prefixes, d.Routed} })
	w.handing = map[netip.Addr]time.Time{}
	return w
}

// byL2 is the way to neighbours.
func byL2(a announcer, linger time.Duration) *way {
	return newWay("l2", a, linger, func(d *plan.Desired) wish { return wish{d.Hosts, d.Answered} })
}

func newWay(protocol string, a announcer, linger time.Duration, wants func(*plan.Desired) wish) *way {
	return &way{protocol: protocol, announcer: a, linger: linger, wants: wants, departed: map[netip.Addr]departure{}, released: map[netip.Prefix]time.Time{}}
}

// A wish is what shall be announced: these prefixes, for these addresses. Both
// are sorted.
type wish struct {
	prefixes []netip.Prefix
	addrs    []netip.Addr
}

// adopt takes over addresses that an earlier process forwarded and may have
// announced this way. Whoever heard of them may send until the given time.
func (w *way) adopt(addr netip.Addr, until time.Time) {
	w.departed[addr] = departure{until: until, adopted: true}
}

// settle shortens the time that adopted addresses are kept, once the network is
// known to have forgotten what the earlier process told it.
func (w *way) settle(until time.Time) {
	for a, d := range w.departed {
		if d.adopted && until.Before(d.until) {
			d.until = until
			w.departed[a] = d
		}
	}
}

// wish is what d wants announced this way and, for now, those addresses that others
// are about to take over.
func (w *way) wish(d *plan.Desired, now time.Time) wish {
	want := w.wants(d)
	if w.keeps != nil {
		return w.and(want, d, now)
	}
	if w.handing == nil {
		return want
	}
	leaving := sortedset.Minus(w.have, want.addrs)
	for a := range w.handing {
		if _, still := slices.BinarySearchFunc(leaving, a, netip.Addr.Compare); !still {
			delete(w.handing, a)
		}
	}
	var addrs []netip.Addr
	var prefixes []netip.Prefix
	for _, addr := range leaving {
		host := sortedset.HostPrefix(addr)
		_, alone := slices.BinarySearchFunc(w.told, host, sortedset.ComparePrefixes)
		if a := d.Address(addr); a == nil || !a.Handover || !alone {
			continue
		}
		until, noticed := w.handing[addr]
		if !noticed {
			until = now.Add(handover)
			w.handing[addr] = until
		}
		if now.Before(until) {
			addrs, prefixes = append(addrs, addr), append(prefixes, host)
		}
	}
	return wish{sortedset.Union(want.prefixes, prefixes, sortedset.ComparePrefixes), sortedset.Union(want.addrs, addrs, netip.Addr.Compare)}
}

// and is want, and what is kept.
func (w *way) and(want wish, d *plan.Desired, now time.Time) wish {
	var kept []netip.Addr
	for _, a := range sortedset.Minus(w.have, want.addrs) {
		if w.keeps(d, a, now) {
			kept = append(kept, a)
		}
	}
	if len(kept) == 0 {
		return want
	}
	return wish{sortedset.Union(want.prefixes, sortedset.HostPrefixes(kept), sortedset.ComparePrefixes), sortedset.Union(want.addrs, kept, netip.Addr.Compare)}
}

// stays is what of the told remains before the kernel is given what want is for, and
// false when that is all. A prefix that nobody wants stays until another one that does
// the same for one of its addresses is there.
func (w *way) stays(want wish) (wish, bool) {
	addrs := sortedset.Intersect(w.have, want.addrs)
	prefixes := sortedset.IntersectFunc(w.told, want.prefixes, sortedset.ComparePrefixes)
	if len(addrs) == len(w.have) && len(prefixes) == len(w.told) {
		return wish{}, false
	}
	bridges := sortedset.Holding(sortedset.MinusFunc(w.told, prefixes, sortedset.ComparePrefixes), sortedset.Minus(addrs, sortedset.Covered(addrs, prefixes)))
	prefixes = sortedset.Union(prefixes, bridges, sortedset.ComparePrefixes)
	return wish{prefixes, addrs}, len(addrs) != len(w.have) || len(prefixes) != len(w.told)
}

// note takes down what the network is told after it was asked for want, and returns
// who came and who left. owners says who holds an address that left.
func (w *way) note(told []netip.Prefix, want wish, owners func(netip.Addr) []cluster.Name) (left, came []netip.Addr) {
	if sortedset.Same(told, w.told) && sortedset.Same(want.addrs, w.asked) {
		return nil, nil
	}
	have := sortedset.Covered(want.addrs, told)
	if stuck := sortedset.MinusFunc(told, want.prefixes, sortedset.ComparePrefixes); len(stuck) > 0 {
		have = sortedset.Union(have, sortedset.Covered(sortedset.Minus(w.have, want.addrs), stuck), netip.Addr.Compare)
	}
	now := time.Now()
	gone := sortedset.MinusFunc(w.told, told, sortedset.ComparePrefixes)
	left, came = sortedset.Minus(w.have, have), sortedset.Minus(have, w.have)
	// An aggregate that was announced for others led here what is new in it, from when
	// it was forwarded; now it is gone, and the address's own route could not be told.
	strayed := sortedset.Minus(sortedset.Covered(sortedset.Minus(want.addrs, w.have), w.told), have)
	left = sortedset.Union(left, strayed, netip.Addr.Compare)
	for _, a := range left {
		w.departed[a] = departure{until: now.Add(w.linger), owners: owners(a)}
	}
	w.told, w.have, w.asked = told, have, want.addrs
	w.release(gone, now)
	if len(w.departed) > 0 {
		for _, a := range have {
			delete(w.departed, a)
		}
	}
	return left, came
}

// release notes that prefixes have left the network. An address that had left
// before, while an aggregate that contained it stayed, leaves only now.
func (w *way) release(gone []netip.Prefix, now time.Time) {
	until := now.Add(w.linger)
	for _, prefix := range w.told {
		delete(w.released, prefix)
	}
	for _, prefix := range gone {
		if prefix.IsSingleIP() {
			continue
		}
		w.released[prefix] = until
		for a, left := range w.departed {
			if prefix.Contains(a) && now.Before(left.until) && left.until.Before(until) {
				left.until = until
				w.departed[a] = left
			}
		}
	}
}

// lingering are the addresses that have left and may still be asked for.
func (w *way) lingering(now time.Time) (addrs []netip.Addr) {
	for a, left := range w.departed {
		if now.Before(left.until) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// attracted are the aggregates whose traffic may still come although d does not
// announce them.
func (w *way) attracted(d *plan.Desired, now time.Time) (more []netip.Prefix) {
	for _, prefix := range sortedset.MinusFunc(w.told, w.wants(d).prefixes, sortedset.ComparePrefixes) {
		if !prefix.IsSingleIP() {
			more = append(more, prefix)
		}
	}
	for prefix, until := range w.released {
		if now.Before(until) {
			more = append(more, prefix)
		}
	}
	return more
}

// forget drops what has lingered long enough, once the kernel was told without it.
func (w *way) forget(now time.Time) {
	for a, left := range w.departed {
		if !now.Before(left.until) {
			delete(w.departed, a)
		}
	}
	for prefix, until := range w.released {
		if !now.Before(until) {
			delete(w.released, prefix)
		}
	}
}

// deadlines calls visit with each time at which something will have lingered or been
// handed over long enough.
func (w *way) deadlines(visit func(time.Time)) {
	for _, d := range w.departed {
		visit(d.until)
	}
	for _, until := range w.released {
		visit(until)
	}
	for _, until := range w.handing {
		visit(until)
	}
}
