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

// A proposal is a State of which not all may be acceptable. Refused addresses stay as they were before.
type proposal struct {
	want, before State
	vips         []state.VIPChange // that differ between the two
	refused      state.Refusals
	// set makes the kernel forward a checked State.
	set   func(context.Context, State) error
	until time.Time // of the search for rejected addresses
}

// newProposal checks want, and refuses the addresses that are known to be wrong. The error is for parts that
// belong to no address.
func newProposal(r *ruleset, want State, set func(context.Context, State) error) (*proposal, error) {
	if !state.SameShared(r.have, want) || !slices.Equal(r.have.Redirects, want.Redirects) {
		if err := state.ValidateShared(want); err != nil {
			return nil, err
		}
	}
	vips := state.DiffVIPs(r.have.VIPs, want.VIPs)
	limits := DefaultLimits(r.mode)
	refused := limits.Refuse(vips)
	for _, v := range vips {
		if v.Want == nil {
			continue
		}
		if err := r.renderer.Lacks(state.Family(v.Want.Addr)); err != nil {
			refused.Add(v.Want, err)
		}
	}
	limits.RefuseTotal(r.entries, vips, refused)
	limits.RefusePrograms(r.have.VIPs, vips, refused)
	return &proposal{want: want, before: r.have, vips: vips, refused: refused, set: set}, nil
}

// try sets what is not refused.
func (p *proposal) try(ctx context.Context) error {
	return p.set(ctx, p.want.Without(p.before, p.refused))
}

// bisect sets as much as the kernel accepts, after it has rejected all of it, and refuses the
// rejected addresses. It suspects the largest changes first: usually all others can be
// set at once. The error is failed if nothing at all can be set.
func (p *proposal) bisect(ctx context.Context, r *ruleset, failed error) error {
	var doubted []state.VIPChange
	for _, c := range p.vips {
		if c.Want == nil {
			continue
		}
		if _, is := p.refused[c.Want.Addr]; !is {
			doubted = append(doubted, c)
		}
	}
	// First try everything but the suspected addresses, with a change of no consequence.
	p.refuse(doubted, failed)
	if err := p.try(ctx); err != nil {
		return failed
	}
	if err := r.renderer.Probe(ctx); err != nil {
		return failed
	}
	// The cause may be gone since the failure, and lie in no address, such as a lack of memory.
	if failed = p.admit(ctx, doubted); failed == nil {
		return nil
	}
	r.log.WarnContext(ctx, "the kernel refuses a change: looking for the addresses that it does not take",
		"addresses", len(doubted), "err", failed)
	slices.SortStableFunc(doubted, func(a, b state.VIPChange) int {
		return a.Want.Entries(ModeNFTables) - b.Want.Entries(ModeNFTables)
	})
	p.until = time.Now().Add(bisectPatience)
	p.split(ctx, doubted, len(doubted)-1, failed)
	if r.known {
		return nil
	}
	return p.try(ctx) // the last attempt failed
}

func (p *proposal) refuse(changes []state.VIPChange, err error) {
	for _, c := range changes {
		p.refused.Add(c.Want, err)
	}
}

// admit sets refused changes too. If they fail, they are refused again.
func (p *proposal) admit(ctx context.Context, changes []state.VIPChange) error {
	for _, c := range changes {
		delete(p.refused, c.Want.Addr)
	}
	err := p.try(ctx)
	if err != nil {
		p.refuse(changes, err)
	}
	return err
}

// split admits changes, which failed together, in two parts, and these again in parts, as far as possible.
// failed is the error of the failure.
func (p *proposal) split(ctx context.Context, doubted []state.VIPChange, cut int, failed error) {
	switch {
	case len(doubted) == 0:
		return
	case time.Now().After(p.until):
		const why = "the kernel refuses it, or another of %d addresses that have changed: %w"
		p.refuse(doubted, fmt.Errorf(why, len(doubted), failed))
		return
	case len(doubted) == 1:
		p.refuse(doubted, fmt.Errorf("the kernel refuses it: %w", failed))
		return
	}
	for _, part := range [][]state.VIPChange{doubted[:cut], doubted[cut:]} {
		if err := p.admit(ctx, part); err != nil {
			p.split(ctx, part, len(part)/2, err)
		}
	}
}
