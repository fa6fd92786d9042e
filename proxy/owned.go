package proxy

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/conntrack"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// sweepOwned deletes the flows to owned addresses that are not translated, once
// the rules keep new ones from arising. It is not left to the sweeper: an address
// of these may be announced as soon as Set returns, and a client port whose
// flow goes past the rules would be refused. What fails is tried by the next Set.
func (p *Proxy) sweepOwned(owned []netip.Prefix) {
	covered := func(o netip.Prefix) bool {
		return slices.ContainsFunc(p.swept, func(s netip.Prefix) bool { return s.Bits() <= o.Bits() && s.Contains(o.Addr()) })
	}
	if !slices.ContainsFunc(owned, func(o netip.Prefix) bool { return !covered(o) }) {
		p.swept = owned
		return
	}
	own, err := conntrack.OwnAddrs()
	if err == nil {
		err = p.deleteUntranslated(owned, own)
	}
	if err != nil {
		p.metrics.flowErrors.Inc()
		p.log.Warn("flows to addresses of the pools may go past the rules", "err", err)
		return
	}
	p.swept = owned
}

func (p *Proxy) deleteUntranslated(owned []netip.Prefix, own []netip.Addr) error {
	deleted, err := conntrack.DeleteFlowsIf(p.sock, conntrack.Request{Family: unix.AF_UNSPEC}, func(f *conntrack.Flow) bool {
		return !f.DNAT && state.ContainsAddr(owned, f.VIP) && !slices.Contains(own, f.VIP)
	})
	p.metrics.flows.Add(float64(len(deleted)))
	return err
}
