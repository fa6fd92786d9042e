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
	limits := DefaultLimits(p.mode)
	refused := limits.Refuse(vips)
	for _, v := range vips {
		if v.Want == nil {
			continue
		}
		if err := p.renderer.Lacks(state.Family(v.Want.Addr)); err != nil {
			refused.Add(v.Want, err)
		}
	}
	limits.RefuseTotal(p.entries, vips, refused)
	limits.RefusePrograms(want, vips, refused)
	good := want.Without(p.have, refused)
	if err = p.set(ctx, good); blamesState(err) {
		good, err = p.bisect(ctx, good, refused, err)
	}
	return good, refused, err
}

// validate returns the VIPs that differ from the last State, and checks changed parts that belong
// to no VIP.
func (p *Proxy) validate(want State) ([]state.VipChange, error) {
	if !state.SameShared(p.have, want) || !slices.Equal(p.have.Redirects, want.Redirects) {
		if err := state.ValidateShared(want); err != nil {
			return nil, err
		}
	}
	return state.DiffVIPs(p.have.VIPs, want.VIPs), nil
}
