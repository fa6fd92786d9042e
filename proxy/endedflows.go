package proxy

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
)

// redirect writes the redirects of what was set. Its failure does not fail Set: connections
// that are not redirected are refused, and the rules work.
func (p *Proxy) redirect(ctx context.Context, want State, look bool) {
	err := p.renderer.Redirect(ctx, want, look)
	if before := p.record.redirect(err); err != nil && before != err.Error() {
		p.log.WarnContext(ctx, "connections to addresses that move to this node cannot be redirected to the previous owner", "err", err)
	}
}

// deleteEnded deletes what conntrack remembers of connections to VIPs that have ended, once for
// each VIP that this node takes from another one.
//
// It is not left to the Cleaner: packets of connections that began elsewhere with the same clients'
// ports come as soon as the node answers, and packets that fit an ended one would be sent to
// its backend, which resets them. Nor is it done when the node answers already, as when
// it learns only then which node did before: a client may have begun another connection by the port of
// an ended one since that was listed, and would lose it (see conntrack.changeAll).
func deleteEnded(sock *nfnl.Socket, vips map[netip.Addr]bool) (n int, err error) {
	r := conntrack.RequestOf(maps.Keys(vips))
	r.Status, r.Mask = conntrack.StatusDstNAT, conntrack.StatusDstNAT
	deleted, err := conntrack.DeleteFlowsIf(sock, r, func(f *conntrack.Flow) bool { return f.DNAT && f.Ended && vips[f.VIP] })
	return len(deleted), err
}

// newlyOwned returns the VIPs of which ended connections must be forgotten.
func (p *Proxy) newlyOwned(want State) map[netip.Addr]bool {
	fresh := map[netip.Addr]bool{}
	for _, r := range want.Redirects {
		if _, taking := slices.BinarySearchFunc(want.Taking, r.VIP, netip.Addr.Compare); taking && !p.forgotten[r.VIP] {
			fresh[r.VIP] = true
		}
	}
	return fresh
}

// finishForgetting records the VIPs whose ended connections conntrack has forgotten, after the fast
// path has: it learns flows from conntrack.
func (p *Proxy) finishForgetting(ctx context.Context, t *preparation) {
	if len(t.ended) == 0 {
		return
	}
	if err := errors.Join(t.forgetErr, p.offloader.forget(ctx, t.ended)); err != nil {
		p.metrics.flowErrors.Inc()
		p.log.WarnContext(ctx, "connections to addresses that move to this node may be taken for earlier ones", "err", err)
		return
	}
	if p.forgotten == nil {
		p.forgotten = map[netip.Addr]bool{}
	}
	maps.Copy(p.forgotten, t.ended)
}
