package conntrack

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A flow is deleted only after sweeps have seen for two seconds that it does not rest: a sweep that
// comes late could not see a rest, and begins these two seconds again.
func TestDeparture(t *testing.T) {
	vip, port, pod := proxytest.At("vip", 0), state.Port{Proto: state.UDP, Port: 53},
		proxytest.Backends(0, "pod1")[0].Addr
	s := drainingFrom(pod)
	for name, tt := range map[string]struct {
		sweeps  []float64 // when they begin, in seconds after the drain
		nearEnd bool
		want    departure // at the last sweep
		err     error     // of the sweeps before
	}{
		"first":                  {sweeps: []float64{1}, want: shortened},
		"busy for a second":      {sweeps: []float64{1, 1.5, 2}, want: shortened},
		"busy for two seconds":   {sweeps: []float64{1, 1.5, 2, 2.5, 3}, want: deleted},
		"rests":                  {sweeps: []float64{1, 1.5}, nearEnd: true, want: expiring},
		"rests at the end":       {sweeps: []float64{1, 1.5, 2, 2.5, 3}, nearEnd: true, want: expiring},
		"late":                   {sweeps: []float64{3.5}, want: shortened},
		"late between":           {sweeps: []float64{1, 2.5, 3}, want: shortened},
		"busy after a late one":  {sweeps: []float64{1, 2.5, 3, 3.5, 4, 4.5}, want: deleted},
		"rare in a large table":  {sweeps: []float64{1, 2.1, 3.2}, want: deleted},
		"after failures":         {sweeps: []float64{1, 2, 3, 4}, want: shortened, err: errors.New("no memory")},
		"began again in between": {sweeps: []float64{0.5, 1, 1.5, 2}, want: shortened},
	} {
		t.Run(name, func(t *testing.T) {
			key := drainingBackend{vip, removedBackend{port, pod}}
			began := time.Now()
			c := &Cleaner{want: s, drains: map[drainingBackend]*drain{key: {began: began}}, again: make(StaleEntries)}
			stale := make(StaleEntries)
			stale.at(vip).removedBackends[key.removedBackend] = state.SideExternal
			for i, after := range tt.sweeps {
				at := began.Add(time.Duration(after * float64(time.Second)))
				c.watch(stale, at)
				if i < len(tt.sweeps)-1 {
					c.watchEnd(stale, at.Add(time.Millisecond), tt.err)
				}
			}
			f := &Flow{
				Client: proxytest.At("client", 0), VIP: vip, Port: port, Backend: pod, DNAT: true, nearEnd: tt.nearEnd,
			}
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
	for v := range s.VIPs.All() {
		for j := range v.Frontends {
			v.Frontends[j].Draining = []netip.AddrPort{pod}
		}
	}
	return s
}

// A flow is deleted at once if its backend has drained for too long or no longer drains, or if its
// source is forbidden.
func TestDepartureWithoutDrain(t *testing.T) {
	c := &Cleaner{
		want: proxytest.UDPState("remote"), drains: make(map[drainingBackend]*drain), again: make(StaleEntries),
		wake: make(chan struct{}, 1),
	}
	vip, port, pod := proxytest.At("vip", 0), state.Port{Proto: state.UDP, Port: 53},
		proxytest.Backends(0, "pod1")[0].Addr
	key := drainingBackend{vip, removedBackend{port, pod}}
	f := &Flow{VIP: vip, Port: port, Backend: pod, DNAT: true}
	c.drains[key] = &drain{began: time.Now()}
	if got := c.departure(f); got != deleted {
		t.Errorf("the backend does not drain: %d", got)
	}
	c.want = drainingFrom(pod)
	if got := c.departure(f); got != shortened {
		t.Errorf("the backend drains: %d", got)
	}
	restricted := drainingFrom(pod)
	for v := range restricted.VIPs.All() {
		for j := range v.Frontends {
			v.Frontends[j].Sources = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")}
		}
	}
	c.want = restricted
	if got := c.departure(f); got != deleted || c.hasDrainTime(f) {
		t.Errorf("a forbidden source: %d, has drain time: %t", got, c.hasDrainTime(f))
	}
	c.want = drainingFrom(pod)
	if !c.hasDrainTime(f) {
		t.Error("no drain time")
	}
	c.resting, c.pending = newDelay(restInterval), make(StaleEntries)
	c.drains[key].began = time.Now().Add(-maxDrainTime)
	if got := c.departure(f); got != deleted {
		t.Errorf("after %s: %d", maxDrainTime, got)
	}
	if c.ripen(&c.resting); len(c.drains) > 0 {
		t.Error("the drain is not forgotten")
	}
}
