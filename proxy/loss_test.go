package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A packet may be between two lookups while a change is made. Of the datagrams that
// processes of the host send to a frontend with backends before and after, the kernel
// refuses none, whatever changes.
func TestChangesLoseNothing(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		l.Node.Sysctl("netfilter.nf_conntrack_udp_timeout", "1") // ports are used again
		p := newProxy(t)
		two, three, other := podBackends("pod1", "pod2"), podBackends("pod1", "pod2", "pod3"),
			podBackends("pod1", "pod3")
		sticky := func(f *Frontend) { f.Affinity = time.Hour }
		restricted := func(f *Frontend) { f.Sources = proxytest.Prefixes("10.0.0.0/8", "fd00::/16") }
		narrow := func(f *Frontend) { f.Sources = proxytest.Prefixes("10.0.0.0/16", "fd00:2::/32", "fd00:9::/32") }
		turns := func(f *Frontend) { f.Scheduler = RoundRobin }
		for _, tc := range []struct {
			name string
			a, b State
		}{
			{"sources", lossState(two), lossState(two, restricted)},
			{"sources of a sticky frontend", lossState(two, sticky), lossState(two, sticky, restricted)},
			{"other sources", lossState(two, restricted), lossState(two, narrow)},
			{"affinity", lossState(two), lossState(other, sticky)},
			{"backends", lossState(two), lossState(three)},
			{"backends of a sticky frontend", lossState(two, sticky), lossState(other, sticky)},
			{"turns", lossState(two, turns), lossState(three, turns)},
		} {
			mustSet(t, p, tc.a)
			done := l.sendOften()
			for range 40 {
				mustSet(t, p, tc.b)
				mustSet(t, p, tc.a)
			}
			if sent, refused := done(); refused > 0 {
				t.Errorf("%s: %d of %d datagrams refused", tc.name, refused, sent)
			}
		}
	})
}

// A packet chooses its backend at one hook, and is remembered at another, with others' rules between:
// thousands, as of a kube-proxy in iptables mode, take long. A packet that was sent to a backend that goes
// still gets there, and is not remembered, or the client's next packets would follow without end.
func TestChangesLoseNothingOnTheWay(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		l.Node.Sysctl("netfilter.nf_conntrack_udp_timeout", "1")
		var rules strings.Builder
		rules.WriteString("table inet others { chain output { type filter hook output priority 0;\n")
		for i := range 10_000 {
			fmt.Fprintf(&rules, "meta mark %d drop\n", i+1)
		}
		proxytest.NFT(t, rules.String()+"}; }\n")
		p := newProxy(t)
		sticky := func(f *Frontend) { f.Affinity = time.Hour }
		a, b := lossState(podBackends("pod1"), sticky), lossState(podBackends("pod3"), sticky)
		mustSet(t, p, a)
		done := l.sendOften()
		for range 60 {
			mustSet(t, p, b)
			mustSet(t, p, a)
		}
		if sent, refused := done(); refused > 0 {
			t.Errorf("%d of %d datagrams refused", refused, sent)
		}
	})
}

// sendOften lets processes of the host send datagrams to the VIPs, as fast as they
// can, until what it returns is called.
func (l *lab) sendOften() (done func() (sent, refused int64)) {
	var sent, refused atomic.Int64
	var stop atomic.Bool
	var workers sync.WaitGroup
	for family := range state.SetID(2) {
		workers.Go(func() {
			l.Node.Do(func() {
				for !stop.Load() {
					// The sender of a datagram learns at once what becomes of it on its way out.
					if err := sendOnce(netip.AddrPortFrom(proxytest.At("vip", family), 80)); errors.Is(err,
						unix.EPERM) {
						refused.Add(1)
					}
					sent.Add(1)
				}
			})
		})
	}
	return func() (int64, int64) {
		stop.Store(true)
		workers.Wait()
		return sent.Load(), refused.Load()
	}
}

// lossState is a frontend of UDP in each family.
func lossState(backends [2][]Backend, with ...func(*Frontend)) State {
	s := State{Node: "n1"}
	for family := range state.SetID(2) {
		f := Frontend{
			Protocol: UDP, Port: 80, External: Target{Backends: backends[family], Remote: Masquerade},
			Internal: Target{Backends: slices.Clone(backends[family]), Remote: Preserve},
		}
		for _, do := range with {
			do(&f)
		}
		s.VIPs = proxytest.WithVIPs(s.VIPs, &VIP{Addr: proxytest.At("vip", family), Frontends: []Frontend{f}})
	}
	return s
}

// sendOnce sends a datagram from a port of its own.
func sendOnce(to netip.AddrPort) error {
	domain, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		domain, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, []byte("who?"), unix.MSG_DONTWAIT, addr)
}
