package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// slowDNS answers datagrams from a pod after 200 ms.
func (l *lab) slowDNS(name string, port uint16) {
	l.T.Helper()
	for family := range state.SetID(2) {
		var conn net.PacketConn
		var err error
		l.Ns(name).Do(func() {
			conn, err = net.ListenPacket("udp", netip.AddrPortFrom(proxytest.At(name, family), port).String())
		})
		if err != nil {
			l.T.Fatal(err)
		}
		l.T.Cleanup(func() { conn.Close() })
		go func() {
			buf := make([]byte, 64)
			for {
				n, from, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				answer := name + " " + string(buf[:n])
				time.AfterFunc(200*time.Millisecond, func() { _, _ = conn.WriteTo([]byte(answer), from) })
			}
		}()
	}
}

// No answer is lost that is under way when its backend begins to drain beside others, and
// flows leave it soon after.
func TestAnswersOfDrainingBackend(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l := newLab(t)
		l.slowDNS("pod1", 5353)
		l.slowDNS("pod2", 5353)
		p := newProxy(t)
		stateOf := func(to string, draining ...string) State {
			s := State{Node: "n1"}
			for family := range state.SetID(2) {
				at := func(name string) netip.AddrPort { return netip.AddrPortFrom(proxytest.At(name, family), 5353) }
				target := Target{Backends: []Backend{{Addr: at(to), Node: "n1"}}, Remote: Preserve}
				f := Frontend{Protocol: UDP, Port: 53, External: target, Internal: target}
				for _, name := range draining {
					f.Draining = append(f.Draining, at(name))
				}
				s.VIPs = proxytest.WithVIPs(s.VIPs, &VIP{Addr: proxytest.At("vip", family), Frontends: []Frontend{f}})
			}
			return s
		}
		mustSet(t, p, stateOf("pod1"))
		from, to := "pod1", "pod2"
		var asked []session
		for round := range 5 {
			asked = nil
			for i := range 20 {
				vip := netip.AddrPortFrom(proxytest.At("vip", state.SetID(i%2)), 53)
				asked = append(asked, session{
					Conn: l.Connect(l.Client, "udp", 0, vip), from: "client", network: "udp", to: vip,
				})
				if _, err := fmt.Fprint(asked[i], "asks ", round, i); err != nil {
					t.Fatal(err)
				}
			}
			mustSet(t, p, stateOf(to, from))
			for i, s := range asked {
				if got, want := s.answer(), fmt.Sprint(from, " asks ", round, i); got != want {
					t.Errorf("round %d, %s from port %s: %q; want %q of the backend that drains", round, s.to,
						s.LocalAddr(), got, want)
				}
			}
			from, to = to, from
		}
		swept(t, p)
		for _, s := range asked {
			if _, err := s.Write([]byte("later")); err != nil {
				t.Fatal(err)
			}
			if got := s.answer(); got != from+" later" {
				t.Errorf("a flow after that: %q", got)
			}
		}
	})
}

// answer reads the next datagram, for a second at most.
func (s session) answer() string {
	buf := make([]byte, 64)
	_ = s.SetReadDeadline(time.Now().Add(time.Second))
	n, err := s.Read(buf)
	if err != nil {
		return err.Error()
	}
	return string(buf[:n])
}
