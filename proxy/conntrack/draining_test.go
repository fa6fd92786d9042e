package conntrack

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// drainingCleaner returns a Cleaner without a socket, whose State drains pod1, and a flow there.
func drainingCleaner() (*Cleaner, drainingBackend, *Flow) {
	vip, port := proxytest.At("vip", 0), state.Port{Proto: state.UDP, Port: 53}
	pod := proxytest.Backends(0, "pod1")[0].Addr
	c := &Cleaner{
		want: drainingFrom(pod), pending: make(StaleEntries), drains: make(map[drainingBackend]drain),
		wake: make(chan struct{}, 1),
	}
	f := &Flow{Client: proxytest.At("client", 0), VIP: vip, Port: port, Backend: pod, DNAT: true}
	return c, drainingBackend{vip, removedBackend{port, pod}}, f
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

// begin lets the flows of a draining backend leave after drainTime.
func (c *Cleaner) begin(key drainingBackend, sides state.Sides) {
	stale := make(StaleEntries)
	stale.at(key.vip).removedBackends[key.removedBackend] = sides
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beginDrains(stale)
}

// drained reports whether a backend still drains, and for which sides its flows are pending.
func (c *Cleaner) drained(key drainingBackend) (drains bool, sides state.Sides) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, drains = c.drains[key]
	if v := c.pending[key.vip]; v != nil {
		sides = v.removedBackends[key.removedBackend]
	}
	return drains, sides
}

// The flows of a draining backend become pending once, drainTime after it began to drain. If it
// drains again meanwhile, the last time counts, for all clients of both.
func TestDrainEndsOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		begins []time.Duration
		end    time.Duration
	}{
		"once":               {[]time.Duration{0}, drainTime},
		"again in between":   {[]time.Duration{0, drainTime / 2}, drainTime * 3 / 2},
		"again at the end":   {[]time.Duration{0, drainTime - 1}, 2*drainTime - 1},
		"twice at that time": {[]time.Duration{0, 0}, drainTime},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c, key, _ := drainingCleaner()
				sides := []state.Sides{state.SideExternal, state.SideInternal}
				began, want := time.Now(), state.Sides(0)
				for i, after := range tt.begins {
					<-time.After(after - time.Since(began))
					c.begin(key, sides[i])
					want |= sides[i]
				}
				var got state.Sides
				for left := true; left; { // An earlier drain's timer wakes too, and ends nothing.
					<-c.wake
					if left, got = c.drained(key); left && got != 0 {
						t.Fatalf("pending after %s", time.Since(began))
					}
				}
				if after := time.Since(began); after != tt.end || got != want {
					t.Errorf("pending after %s for sides %d, want %s, %d", after, got, tt.end, want)
				}
				<-time.After(time.Minute) // by the bubble's clock
			})
		})
	}
}

// A cleanup for another change leaves a flow alone whose backend has just begun to drain, unless its
// source is forbidden or the backend has gone.
func TestDrainTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, key, f := drainingCleaner()
		if c.hasDrainTime(f) {
			t.Error("drain time before the backend drains")
		}
		c.begin(key, state.SideExternal)
		<-time.After(drainTime - 1) // by the bubble's clock
		if !c.hasDrainTime(f) {
			t.Error("no drain time")
		}
		restricted := drainingFrom(f.Backend)
		for v := range restricted.VIPs.All() {
			for j := range v.Frontends {
				v.Frontends[j].Sources = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")}
			}
		}
		for name, s := range map[string]state.State{
			"a forbidden source": restricted, "a backend that has gone": proxytest.UDPState("remote"),
		} {
			if c.want = s; c.hasDrainTime(f) {
				t.Errorf("%s has drain time", name)
			}
		}
		c.want = drainingFrom(f.Backend)
		<-time.After(time.Minute) // by the bubble's clock
		if drains, _ := c.drained(key); drains || c.hasDrainTime(f) {
			t.Errorf("after the drain: drains %t, has drain time %t", drains, c.hasDrainTime(f))
		}
	})
}
