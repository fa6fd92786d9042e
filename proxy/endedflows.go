package proxy

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
)

// deleteEnded deletes the conntrack entries of ended connections to VIPs, once for each VIP that
// this node takes from another one.
//
// This cannot be left to the Cleaner. As soon as the node answers, packets arrive for connections
// that began elsewhere; if their client port matches an ended connection, conntrack would send them
// to its backend, which resets them. For the same reason it is too late once the node answers, even
// if the node learns the previous owner only then: a client may have begun a new connection from
// the port of a listed entry, and would lose it (see conntrack.deleteAll).
func deleteEnded(sock *nfnl.Socket, vips map[netip.Addr]bool) (n int, err error) {
	r := conntrack.RequestOf(maps.Keys(vips))
	r.Status, r.Mask = conntrack.StatusDstNAT, conntrack.StatusDstNAT
	deleted, err := conntrack.DeleteFlowsIf(sock, r, func(f *conntrack.Flow) bool { return f.DNAT && f.Ended && vips[f.VIP] })
	return len(deleted), err
}

// newlyOwned returns the VIPs whose ended connections must be deleted from conntrack.
func (p *preparer) newlyOwned(want State) map[netip.Addr]bool {
	fresh := map[netip.Addr]bool{}
	for _, r := range want.Redirects {
		if _, taking := slices.BinarySearchFunc(want.Taking, r.VIP, netip.Addr.Compare); taking && !p.forgotten[r.VIP] {
			fresh[r.VIP] = true
		}
	}
	return fresh
}

// finishForgetting records the VIPs whose ended connections conntrack has forgotten, once the fast
// path has forgotten them too: it learns flows from conntrack.
func (p *preparer) finishForgetting(ctx context.Context, t *preparation) {
	if len(t.ended) == 0 {
		return
	}
	if err := errors.Join(t.forgetErr, p.forget(ctx, t.ended)); err != nil {
		p.metrics.flowErrors.Inc()
		p.log.WarnContext(ctx, "connections to addresses that move to this node may be taken for earlier ones", "err", err)
		return
	}
	if p.forgotten == nil {
		p.forgotten = map[netip.Addr]bool{}
	}
	maps.Copy(p.forgotten, t.ended)
}
