package proxy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// bisectPatience limits the search for addresses that the kernel rejects. After that, all remaining
// candidates are refused.
const bisectPatience = 20 * time.Second

// bisect sets as much of want as the kernel accepts, after it has rejected all of it, and adds the
// rejected addresses to refused. It suspects the largest changes first: usually all others can be
// set at once. The error is failed if nothing at all can be set.
func (p *Proxy) bisect(ctx context.Context, want State, refused state.Refusals, failed error) (State, error) {
	var doubted []state.VIPChange
	out := make(state.Refusals)
	for _, c := range state.DiffVIPs(p.rules.have.VIPs, want.VIPs) {
		if c.Want != nil {
			doubted = append(doubted, c)
			out.Add(c.Want, failed)
		}
	}
	before := p.rules.have
	// First try everything but the suspected addresses, with a change of no consequence.
	base := want.Without(before, out)
	if err := p.set(ctx, base); err != nil {
		return want, failed
	}
	if err := p.rules.renderer.Probe(ctx); err != nil {
		return want, failed
	}
	// The cause may be gone since the failure, and lie in no address, such as a lack of memory.
	if failed = p.set(ctx, want); failed == nil {
		return want, nil
	}
	p.log.WarnContext(ctx, "the kernel refuses a change: looking for the addresses that it does not take", "addresses", len(doubted), "err", failed)
	slices.SortStableFunc(doubted, func(a, b state.VIPChange) int { return a.Want.Entries(ModeNFTables) - b.Want.Entries(ModeNFTables) })
	n := &bisection{p: p, want: want, before: before, out: out, until: time.Now().Add(bisectPatience)}
	n.admit(ctx, doubted, len(doubted)-1, failed)
	for a, r := range out {
		refused[a] = r
	}
	good := want.Without(before, out)
	if !p.rules.known {
		return good, p.set(ctx, good) // the last attempt failed
	}
	return good, nil
}

// A bisection searches for the addresses that the kernel rejects.
type bisection struct {
	p            *Proxy
	want, before State
	out          state.Refusals // not set, or not yet
	until        time.Time
}

// admit sets the changes, which failed together, in two parts, as far as possible. failed is the
// error of the failure.
func (b *bisection) admit(ctx context.Context, doubted []state.VIPChange, cut int, failed error) {
	if len(doubted) == 0 {
		return
	}
	if time.Now().After(b.until) {
		for _, c := range doubted {
			b.out.Add(c.Want, fmt.Errorf("the kernel refuses it, or another of %d addresses that have changed: %w", len(doubted), failed))
		}
		return
	}
	if len(doubted) == 1 {
		b.out.Add(doubted[0].Want, fmt.Errorf("the kernel refuses it: %w", failed))
		return
	}
	b.try(ctx, doubted[:cut])
	b.try(ctx, doubted[cut:])
}

// try sets changes. If they fail, it searches for changes that cannot be set.
func (b *bisection) try(ctx context.Context, changes []state.VIPChange) {
	for _, c := range changes {
		delete(b.out, c.Want.Addr)
	}
	err := b.p.set(ctx, b.want.Without(b.before, b.out))
	if err == nil {
		return
	}
	for _, c := range changes {
		b.out.Add(c.Want, err)
	}
	b.admit(ctx, changes, len(changes)/2, err)
}
