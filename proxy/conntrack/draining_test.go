package conntrack

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A flow is deleted only after sweeps have seen for two seconds that it does not rest: a sweep that
// comes late could not see a rest, and begins these two seconds again.
func TestDeparture(t *testing.T) {
	const renewed, short = 30 * time.Second, 0
	vip, port, pod := proxytest.At("vip", 0), state.Port{Proto: state.UDP, Port: 53}, proxytest.Backends(0, "pod1")[0].Addr
	s := drainingFrom(pod)
	for name, tt := range map[string]struct {
		sweeps  []float64 // seconds after the drain began
		timeout time.Duration
		want    departure // at the last sweep
	}{
		"first":                  {[]float64{1}, renewed, shortened},
		"busy for a second":      {[]float64{1, 1.5, 2}, renewed, shortened},
		"busy for two seconds":   {[]float64{1, 1.5, 2, 2.5, 3}, renewed, deleted},
		"rests":                  {[]float64{1, 1.5}, short, expiring},
		"rests at the end":       {[]float64{1, 1.5, 2, 2.5, 3}, short, expiring},
		"late":                   {[]float64{3.5}, renewed, shortened},
		"late between":           {[]float64{1, 2.5, 3}, renewed, shortened},
		"busy after a late one":  {[]float64{1, 2.5, 3, 3.5, 4, 4.5}, renewed, deleted},
		"rare in a large table":  {[]float64{1, 2.1, 3.2}, renewed, deleted},
		"began again in between": {[]float64{0.5, 1, 1.5, 2}, renewed, shortened},
	} {
		t.Run(name, func(t *testing.T) {
			key := drainingBackend{vip, removedBackend{port, pod}}
			began := time.Now()
			c := &Cleaner{want: s, drains: map[drainingBackend]*drain{key: {began: began}}, again: make(StaleEntries)}
			stale := make(StaleEntries)
			stale.at(vip).removedBackends[key.removedBackend] = state.SideExternal
			for _, after := range tt.sweeps {
				c.watch(stale, began.Add(time.Duration(after*float64(time.Second))))
			}
			f := &Flow{Client: proxytest.At("client", 0), VIP: vip, Port: port, Backend: pod, DNAT: true, timeout: tt.timeout}
			if got := c.departure(f); got != tt.want {
				t.Errorf("departure %d, want %d", got, tt.want)
			}
			if again := len(c.again) > 0; again != (tt.want != deleted) {
				t.Errorf("the next sweep looks again: %t", again)
			}
		})
	}
}

// drainingFrom returns a State whose frontends drain pod.
func drainingFrom(pod netip.AddrPort) state.State {
	s := proxytest.UDPState("remote")
	for i := range s.VIPs {
		for j := range s.VIPs[i].Frontends {
			s.VIPs[i].Frontends[j].Draining = []netip.AddrPort{pod}
		}
	}
	return s
}

// Of a backend that has drained for too long, or no longer drains, every flow is deleted.
func TestDepartureWithoutDrain(t *testing.T) {
	c := &Cleaner{want: proxytest.UDPState("remote"), drains: make(map[drainingBackend]*drain), again: make(StaleEntries), wake: make(chan struct{}, 1)}
	vip, port, pod := proxytest.At("vip", 0), state.Port{Proto: state.UDP, Port: 53}, proxytest.Backends(0, "pod1")[0].Addr
	key := drainingBackend{vip, removedBackend{port, pod}}
	f := &Flow{VIP: vip, Port: port, Backend: pod, DNAT: true, timeout: 30 * time.Second}
	c.drains[key] = &drain{began: time.Now()}
	if got := c.departure(f); got != deleted {
		t.Errorf("the backend does not drain: %d", got)
	}
	c.want = drainingFrom(pod)
	if got := c.departure(f); got != shortened {
		t.Errorf("the backend drains: %d", got)
	}
	c.resting, c.pending = newDelay(restInterval), make(StaleEntries)
	c.drains[key].began = time.Now().Add(-maxDrainTime)
	c.ripen(&c.resting)
	if got := c.departure(f); got != deleted {
		t.Errorf("after %s: %d", maxDrainTime, got)
	}
}
