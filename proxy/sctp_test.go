package proxy

import (
	"net/netip"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// An association whose backend is removed ends there, and the same port finds
// another one.
func TestSCTPFlowLeavesRemovedEndpoint(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		stateWith := func(backend string) State {
			s := proxytest.UDPState(backend)
			for v := range s.VIPs.All() {
				v.Frontends[0].Protocol = SCTP
			}
			return s
		}
		mustSet(t, p, stateWith("pod1"))
		for _, step := range []struct{ backend, want string }{
			{"pod1", "pod1 saw client"},
			{"remote", "remote saw node"},
		} {
			mustSet(t, p, stateWith(step.backend))
			swept(t, p)
			for family := range state.SetID(2) {
				to := netip.AddrPortFrom(proxytest.At("vip", family), 53)
				if got := l.ProbeFrom(l.Client, "sctp", 4444, to, step.want); got != step.want {
					t.Errorf("%s with %s behind it: %s; want %s", to, step.backend, got, step.want)
				}
			}
		}
	})
}
