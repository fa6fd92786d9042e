package plan

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Lingering returns how an address that is withdrawn is forwarded for clients that still send
// to it: as decided for the Services that hold it, or held it last. Without endpoints on this
// node, it is forwarded to other nodes, masqueraded. Deleted pods get no traffic: another
// tenant's pod may have their addresses by now.
func (d *Desired) Lingering(addr netip.Addr, holders []cluster.Name) *proxy.VIP {
	a := d.Address(addr)
	if a == nil {
		var services []cluster.Service
		for _, name := range holders {
			if i := find(d.Snapshot, name); i >= 0 {
				services = append(services, d.Snapshot.Services[i])
			}
		}
		// The last decision is gone with the address: decide again for its last Services.
		byPrecedence(services)
		a = d.View.decide(addr, "", cluster.Origin{}, services, nil)
	}
	vip := &proxy.VIP{Addr: addr, Frontends: slices.Clone(a.VIP.Frontends)}
	for i := range vip.Frontends {
		f := &vip.Frontends[i]
		if len(f.External.Backends) == 0 {
			f.External = proxy.Target{Backends: f.Internal.Backends, Remote: proxy.Masquerade}
		}
	}
	if d.View.refusalOf(vip) != "" {
		return &proxy.VIP{Addr: addr}
	}
	return vip
}
