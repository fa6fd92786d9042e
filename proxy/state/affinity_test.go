package state_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// stickyVIP has many ports with affinity, each with a port of its own of the same pods.
func stickyVIP(ports, pods int) *state.VIP {
	v := &state.VIP{Addr: netip.MustParseAddr("192.0.2.1")}
	for p := range ports {
		f := state.Frontend{Protocol: state.TCP, Port: uint16(p + 1), Affinity: time.Hour}
		for i := range pods {
			pod := netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})
			f.External.Backends = append(f.External.Backends, state.Backend{Addr: netip.AddrPortFrom(pod, uint16(p+1))})
		}
		f.Internal = f.External
		v.Frontends = append(v.Frontends, f)
	}
	return v
}

// Ports with affinity cost elements, as those without do, and no chain or table of their own; the
// estimate of the limits is no less.
func TestAffinityOfManyPorts(t *testing.T) {
	const ports, pods = 16384, 4
	v := stickyVIP(ports, pods)
	all := state.RenderState(state.State{Node: "n1", VIPs: proxytest.WithVIPs(state.VIPs{}, v)})
	chains, slots := state.ChainUses(all), 0
	for _, e := range all {
		if e.Set == state.SetTables {
			slots++
		}
	}
	if len(chains) > 3 { // xc251, ic251, learn3600
		t.Errorf("%d chains: %v", len(chains), chains)
	}
	if slots != 251 {
		t.Errorf("%d slots for %d ports of the same pods; want one table", slots, ports)
	}
	if have := v.Entries(state.ModeNFTables); len(all) > have {
		t.Errorf("%d elements, but %d were estimated", len(all), have)
	}
	if err := state.DefaultLimits(state.ModeNFTables).Check(v); err != nil {
		t.Error(err)
	}
}

// A new pod takes its share of the clients, and hardly any client moves between others.
func TestAffinityMovesFewClients(t *testing.T) {
	for pods := 1; pods < 50; pods++ {
		few, many := stickyVIP(1, pods).Frontends[0].External.Backends,
			stickyVIP(1, pods+1).Frontends[0].External.Backends
		moved := 0
		after := state.ClientSlots(many, state.MaxSlots)
		for slot, i := range state.ClientSlots(few, state.MaxSlots) {
			if few[i] != many[after[slot]] {
				moved++
			}
		}
		if share := float64(moved) / state.MaxSlots; share > 1/float64(pods+1)+0.12 {
			t.Errorf("from %d to %d pods, %.0f %% of the clients move", pods, pods+1, 100*share)
		}
	}
}

// Backends of one address have numbers of their own, and another backend changes no number.
func TestBackendIDs(t *testing.T) {
	backend := func(s string) state.Backend { return state.Backend{Addr: netip.MustParseAddrPort(s)} }
	a, b, c := backend("10.0.0.1:80"), backend("10.0.0.1:81"), backend("10.0.0.2:80")
	all, alone := state.BackendIDs([]state.Backend{a, b, c}), state.BackendIDs([]state.Backend{c})
	if all[0] == all[1] || all[1] == all[2] || all[2] != alone[0] {
		t.Errorf("numbers %v of three, %v of the last alone", all, alone)
	}
}
