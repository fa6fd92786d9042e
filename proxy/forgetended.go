package proxy

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/conntrack"
)

// redirect writes the redirects of what was set. Its failure does not fail Set: connections
// that are not redirected are refused, and the rules work.
func (p *Proxy) redirect(ctx context.Context, want State, look bool) {
	err := p.renderer.Redirect(ctx, want, look)
	if before := p.record.redirect(err); err != nil && before != err.Error() {
		p.log.WarnContext(ctx, "connections to addresses that move to this node cannot be redirected to the previous owner", "err", err)
	}
	if err != nil {
		return
	}
	if err := p.forgetEnded(ctx, want); err != nil {
		p.metrics.flowErrors.Inc()
		p.log.WarnContext(ctx, "connections to addresses that move to this node may be taken for earlier ones", "err", err)
	}
}

// forgetEnded deletes what conntrack and the fast path remember of connections to VIPs that
// have ended, once for each VIP that this node takes from another one.
//
// It is not left to the sweeper: packets of connections that began elsewhere with the same clients'
// ports may come as soon as Set returns, and packets that fit an ended one would be sent to
// its backend, which resets them. Nor is it done when the node answers already, as when
// it learns only then which node did before: a client may have begun another connection by the port of
// an ended one since that was listed, and would lose it (see deleteAll).
//
// What fails is tried by the next Set.
func (p *Proxy) forgetEnded(ctx context.Context, want State) error {
	taken, fresh := make(map[netip.Addr]bool), make(map[netip.Addr]bool)
	for _, h := range want.Redirects {
		if _, taking := slices.BinarySearchFunc(want.Taking, h.VIP, netip.Addr.Compare); !taking {
			continue
		}
		if p.forgotten[h.VIP] {
			taken[h.VIP] = true
		} else {
			fresh[h.VIP] = true
		}
	}
	p.forgotten = taken
	if len(fresh) == 0 {
		return nil
	}
	r := conntrack.RequestOf(maps.Keys(fresh))
	r.Status, r.Mask = conntrack.StatusDstNAT, conntrack.StatusDstNAT
	deleted, err := conntrack.DeleteFlowsIf(p.sock, r, func(f *conntrack.Flow) bool { return f.DNAT && f.Ended && fresh[f.VIP] })
	p.metrics.flows.Add(float64(len(deleted)))
	if err = errors.Join(err, p.bypass.forget(ctx, fresh)); err == nil {
		maps.Copy(p.forgotten, fresh)
	}
	return err
}
