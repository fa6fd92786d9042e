package nftables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A change that is too large for the socket is made in several transactions.
func TestTooLargeForSocket(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		k := newKernel(t)
		k.set(proxytest.BenchState(1))
		if err := unix.SetsockoptInt(k.Sock.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1000, 2} {
			k.set(proxytest.BenchState(n))
			k.check()
		}
	})
}

// Count chains come with their first use, and go when there are too many that
// nothing uses, in a transaction after the end of their last use.
func TestCountChainsComeAndGo(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		k := newKernel(t)
		vip := netip.MustParseAddr("192.0.2.1")
		set := func(n int, port uint16) {
			t.Helper()
			to := state.Target{}
			for i := range n {
				a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
				to.Backends = append(to.Backends, state.Backend{Addr: netip.AddrPortFrom(a, 80), Node: "n1"})
			}
			f := state.Frontend{Protocol: state.TCP, Port: port, External: to, Internal: to}
			k.set(state.State{
				Node: "n1", VIPs: proxytest.VIPsOf(&state.VIP{Addr: vip, Frontends: []state.Frontend{f}}),
			})
		}
		chains := func(want ...string) {
			t.Helper()
			got, err := readTable(k.Sock)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got.madeChains()); diff != "" {
				t.Errorf("chains (-want +got)\n%s", diff)
			}
		}
		set(1, 80)
		chains()
		set(3, 80)
		chains("i3", "x3")
		set(4, 80)
		set(0, 81)
		set(4, 81)
		chains("i3", "i4", "x3", "x4")
		for n := range spareChains/2 + 1 {
			set(5+n, 80)
		}
		// All before these had gone idle; the first of them has only now.
		last := 5 + spareChains/2
		left := []string{fmt.Sprint("i", last-1), fmt.Sprint("i", last), fmt.Sprint("x", last-1), fmt.Sprint("x", last)}
		chains(left...)
		set(0, 80)
		k.have = nil
		set(1, 81)
		chains(left...)
	})
}
