package speaker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// A link answers for addresses on the links of this node: an *l2.Announcer, or what
// tests have in its place.
type link interface {
	Set(ctx context.Context, want l2.State) (have []netip.Addr, err error)
}

// overL2 announces over L2. What another speaker still answers for waits until that one
// has said that it stopped, for a bounded time.
type overL2 struct {
	link  link
	holds *holdings

	sent []l2.Address   // last; sorted
	have []netip.Addr   // what the link answers for, as it last said
	told []netip.Prefix // what was answered last
}

// Set implements announcer. An address that the link has been asked for counts as told:
// the link answers for it as soon as it has found that nobody else does, and asks nobody
// here whether it is forwarded still.
func (o *overL2) Set(ctx context.Context, d *plan.Desired, allowed []netip.Prefix) ([]netip.Prefix, error) {
	if !d.UsesL2 && len(o.sent)+len(o.have) == 0 {
		return nil, nil // A node of a cluster without L2 opens nothing for it.
	}
	// What waits is not allowed in every call, but wanted.
	o.holds.want(d.Answered)
	want := d.L2.Addresses
	if !sortedset.Same(allowed, d.Hosts) {
		want = answersTo(allowed, d.L2.Addresses, o.sent)
	}
	state := l2.State{Speakers: d.L2.Speakers, Nodes: d.L2.Nodes, Addresses: o.holds.admit(want, time.Now())}
	if slices.EqualFunc(state.Addresses, o.sent, saidAlike) {
		state.Addresses = o.sent
	}
	have, err := o.link.Set(ctx, state)
	o.sent, o.have = state.Addresses, have
	o.holds.tell(have)
	told := sortedset.Union(hostsOf(state.Addresses), sortedset.HostPrefixes(have), sortedset.ComparePrefixes)
	// The same slice, so that whoever compares need not look into it.
	o.told = sortedset.Keep(o.told, sortedset.Keep(allowed, told))
	return o.told, err
}

// saidAlike compares all that the link is told. What was to be probed when it was new must
// not be when the link takes it again.
func saidAlike(a, b l2.Address) bool {
	return a.Addr == b.Addr && slices.Equal(a.Interfaces, b.Interfaces) && a.Probe == b.Probe && a.Round == b.Round
}

// answersTo returns the addresses of prefixes, from the first of the lists that has one.
// All are sorted.
func answersTo(prefixes []netip.Prefix, lists ...[]l2.Address) []l2.Address {
	out := make([]l2.Address, 0, len(prefixes))
	for _, p := range prefixes {
		for _, list := range lists {
			i, ok := slices.BinarySearchFunc(list, p.Addr(), func(a l2.Address, b netip.Addr) int { return a.Addr.Compare(b) })
			if ok {
				out = append(out, list[i])
				break
			}
		}
	}
	return out
}

func hostsOf(list []l2.Address) []netip.Prefix {
	hosts := make([]netip.Prefix, len(list))
	for i, a := range list {
		hosts[i] = sortedset.HostPrefix(a.Addr)
	}
	return hosts
}
