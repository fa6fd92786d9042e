package proxy

import (
	"context"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// setAccepted sets the acceptable part of want, and returns it with the refusals.
func (p *Proxy) setAccepted(ctx context.Context, want State) (State, state.Refusals, error) {
	if err := ctx.Err(); err != nil {
		return want, nil, err
	}
	vips, err := p.validate(want)
	if err != nil {
		return want, nil, err
	}
	limits := DefaultLimits(p.rules.mode)
	refused := limits.Refuse(vips)
	for _, v := range vips {
		if v.Want == nil {
			continue
		}
		if err := p.rules.renderer.Lacks(state.Family(v.Want.Addr)); err != nil {
			refused.Add(v.Want, err)
		}
	}
	limits.RefuseTotal(p.rules.entries, vips, refused)
	limits.RefusePrograms(want, vips, refused)
	good := want.Without(p.rules.have, refused)
	if err = p.set(ctx, good); blamesState(err) {
		good, err = p.bisect(ctx, good, refused, err)
	}
	return good, refused, err
}

// validate returns the VIPs that differ from the last State, and checks changed parts that belong
// to no VIP.
func (p *Proxy) validate(want State) ([]state.VIPChange, error) {
	if !state.SameShared(p.rules.have, want) || !slices.Equal(p.rules.have.Redirects, want.Redirects) {
		if err := state.ValidateShared(want); err != nil {
			return nil, err
		}
	}
	return state.DiffVIPs(p.rules.have.VIPs, want.VIPs), nil
}
