package conntrack

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A sweep that fails is kept and reported, not forgotten.
func TestFailedCleanup(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "n"}) }
		s, err := NewCleaner(slog.New(slog.NewTextHandler(t.Output(), nil)), counter(), counter())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		// A file that is no socket. To close the socket would leave its number to
		// the next file that is opened.
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		if err := unix.Dup3(int(null.Fd()), s.sock.FD(), unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		vip := netip.MustParseAddr("192.0.2.1")
		s.Add(StaleEntries{vip: {newVIP: true}}, state.State{}, nil)
		for end := time.Now().Add(5 * time.Second); s.LastError() == ""; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no error")
			}
		}
		if s.IsIdle() {
			t.Error("forgotten")
		}
	})
}

// What comes while other entries wait is cleaned up together, after the interval.
func TestDelayGathers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var rounds []string
		d, began := newDelay(time.Second), time.Now()
		d.interval = 3 * time.Second
		var mu sync.Mutex
		add := func(last byte) {
			mu.Lock()
			defer mu.Unlock()
			vip := netip.AddrFrom4([4]byte{192, 0, 2, last})
			d.add(StaleEntries{vip: {newVIP: true}}, func() {
				mu.Lock()
				defer mu.Unlock()
				rounds = append(rounds, fmt.Sprint(time.Since(began), " ",
					slices.SortedFunc(maps.Keys(d.due()), netip.Addr.Compare)))
			})
		}
		// by the bubble's clock, which skips it: the test is about when entries come
		wait := func(d time.Duration) { time.Sleep(d) }
		for last, after := range []time.Duration{0, 200 * time.Millisecond, 200 * time.Millisecond,
			200 * time.Millisecond, 200 * time.Millisecond, time.Minute} {
			wait(after)
			add(1 + byte(last))
		}
		wait(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		want := []string{"1s [192.0.2.1]", "4s [192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5]", "1m1.8s [192.0.2.6]"}
		if !slices.Equal(rounds, want) {
			t.Errorf("cleaned up at %q, want %q", rounds, want)
		}
	})
}

// Flows that only the host itself can have begun wait longest.
func TestSplitDeferrable(t *testing.T) {
	swept, other, gone := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"),
		netip.MustParseAddr("192.0.2.2")
	stale := StaleEntries{swept: {newVIP: true}, other: {newVIP: true}, gone: {removedVIP: true}}
	deferrable, local := stale.splitDeferrable([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	for name, has := range map[string]bool{
		"at once": stale[other] != nil, "soon": deferrable[gone] != nil, "later": local[swept] != nil,
	} {
		if !has {
			t.Errorf("%s: nothing", name)
		}
	}
	if len(stale)+len(deferrable)+len(local) != 3 {
		t.Errorf("%d at once, %d soon, %d later: want one each", len(stale), len(deferrable), len(local))
	}
}

// A backend that went and came back before the sweep keeps the flows that it got
// since.
func TestBackendThatCameBackKeepsFlows(t *testing.T) {
	s := proxytest.UDPState("pod1")
	vip, b := proxytest.At("vip", 0), proxytest.Backends(0, "pod1")[0].Addr
	p := make(StaleEntries)
	p.at(vip).removedBackends[removedBackend{Port: state.Port{Proto: state.UDP, Port: 53},
		Backend: b}] = state.SideExternal | state.SideInternal
	f := &Flow{
		Client: proxytest.At("client", 0), VIP: vip, Port: state.Port{Proto: state.UDP, Port: 53}, Backend: b,
		DNAT: true,
	}
	if p.includes(f, &s) {
		t.Error("the flow must go, though its backend is wanted")
	}
	if s = proxytest.UDPState("remote"); !p.includes(f, &s) {
		t.Error("the flow may stay, though its backend is gone")
	}
}
