package proxy

import (
	"context"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/conntrack"
)

// deleteUntranslated deletes the untranslated flows to owned addresses, once the rules prevent new
// ones. It cannot be left to the Cleaner: connections from a client port whose flow bypasses the
// rules would be refused.
func deleteUntranslated(sock *nfnl.Socket, owned []netip.Prefix) (n int, err error) {
	own, err := conntrack.OwnAddrs()
	if err != nil {
		return 0, err
	}
	deleted, err := conntrack.DeleteFlowsIf(sock, conntrack.Request{Family: unix.AF_UNSPEC}, func(f *conntrack.Flow) bool {
		return !f.DNAT && sortedset.ContainsAddr(owned, f.VIP) && !slices.Contains(own, f.VIP)
	})
	return len(deleted), err
}

// finishSweep records that no untranslated flows to owned addresses are left.
func (p *preparer) finishSweep(ctx context.Context, t *preparation) {
	switch {
	case t.sweptErr != nil:
		p.metrics.flowErrors.Inc()
		p.log.WarnContext(ctx, "flows to addresses of the pools may go past the rules", "err", t.sweptErr)
	case t.owned != nil && !t.stale:
		p.swept = t.owned
	}
}
