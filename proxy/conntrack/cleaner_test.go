package conntrack

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/proxytest"
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

// A backend that went and came back before the sweep keeps the flows that it got
// since.
func TestBackendThatCameBackKeepsFlows(t *testing.T) {
	s := proxytest.UDPState("pod1")
	vip, b := proxytest.At("vip", 0), proxytest.Backends(0, "pod1")[0].Addr
	p := make(StaleEntries)
	p.at(vip).removedBackends[removedBackend{Port: state.Port{Proto: state.UDP, Port: 53}, Backend: b}] = state.SideExternal | state.SideInternal
	f := &Flow{Client: proxytest.At("client", 0), VIP: vip, Port: state.Port{Proto: state.UDP, Port: 53}, Backend: b, DNAT: true}
	if p.includes(f, &s) {
		t.Error("the flow must go, though its backend is wanted")
	}
	if s = proxytest.UDPState("remote"); !p.includes(f, &s) {
		t.Error("the flow may stay, though its backend is gone")
	}
}
