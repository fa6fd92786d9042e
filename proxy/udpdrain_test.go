package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

const (
	slowPort   = 9090 // where pod1 answers a datagram after answerTime
	answerTime = 300 * time.Millisecond
)

// serveSlowly answers datagrams in pod1.
func (l *lab) serveSlowly() {
	l.T.Helper()
	var server net.PacketConn
	var err error
	l.Pod1.Do(func() { server, err = net.ListenPacket("udp", fmt.Sprintf(":%d", slowPort)) })
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { server.Close() })
	go func() {
		buf := make([]byte, 128)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return // closed
			}
			answer := append([]byte("slow "), buf[:n]...)
			time.AfterFunc(answerTime, func() { server.WriteTo(answer, from) })
		}
	}()
}

// slowState is endsState for UDP, with slowPort in the place of pod1's port.
func slowState(fronts ...endsFrontend) State {
	slow := func(a netip.AddrPort) netip.AddrPort {
		if a.Addr() == proxytest.At("pod1", 0) || a.Addr() == proxytest.At("pod1", 1) {
			return netip.AddrPortFrom(a.Addr(), slowPort)
		}
		return a
	}
	s := endsState(fronts...)
	for v := range s.VIPs.All() {
		for i := range v.Frontends {
			f := &v.Frontends[i]
			for j := range f.External.Backends {
				f.External.Backends[j].Addr = slow(f.External.Backends[j].Addr)
			}
			for j := range f.Draining {
				f.Draining[j] = slow(f.Draining[j])
			}
			f.Internal.Backends = f.External.Backends
		}
	}
	return s
}

// Flows leave a backend that drains, and each answer arrives to a request that was sent when it
// began to drain or within the next two seconds.
func TestUDPAnswersArriveWhileDraining(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		l.serveSlowly()
		mustSet(t, p, slowState(endsFrontend{port: 80, backends: []string{"pod1"}}))
		// The last request before the drain ends is answered answerTime later: a flow is forgotten after
		// three seconds (drainTime of package conntrack).
		const flows, asks = 40, 2 * time.Second
		var ask, later sync.WaitGroup
		ended := make(chan struct{})
		began := make(chan struct{})
		for i := range flows {
			c := l.Connect(l.Client, "udp", 0, netip.AddrPortFrom(proxytest.At("vip", state.SetID(i%2)), 80))
			if got := l.Ask(c); got != "slow who?" {
				t.Fatalf("flow %d before: %s", i, got)
			}
			ask.Go(func() {
				<-began
				<-time.After(asks * time.Duration(i) / flows)
				if got := l.Ask(c); got != "slow who?" && got != "pod3 saw client" {
					t.Errorf("flow %d while it drains: %s", i, got)
				}
			})
			later.Go(func() {
				<-ended
				if got := l.Ask(c); got != "pod3 saw client" {
					t.Errorf("flow %d after that: %s", i, got)
				}
			})
		}
		close(began)
		mustSet(t, p, slowState(endsFrontend{port: 80, backends: []string{"pod3"}, draining: []string{"pod1"}}))
		done := make(chan struct{})
		go func() { ask.Wait(); close(done) }()
		setUntil(t, p, done)
		swept(t, p)
		close(ended)
		later.Wait()
	})
}

// A client that sends from one port all the time reaches another backend when its own drains and
// is dead, though its packets keep the entry alive: after a fixed time if the backend stays
// listed, and at once if it is gone before that.
func TestClientOfDeadDrainingBackend(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		mustSet(t, p, endsState(
			endsFrontend{port: 80, backends: []string{"pod1"}},
			endsFrontend{port: 81, backends: []string{"pod1"}}))
		listed, gone := l.sessions("udp", 80, "client"), l.sessions("udp", 81, "client")
		l.Pod1.Do(func() {
			proxytest.NFT(t, "table inet dead { chain in { type filter hook input priority 0; policy drop; meta "+
				"l4proto icmpv6 accept; }; }")
		})
		drains := endsFrontend{port: 80, backends: []string{"pod3"}, draining: []string{"pod1"}}
		began := time.Now()
		mustSet(t, p, endsState(drains, endsFrontend{port: 81, backends: []string{"pod3"}, draining: []string{"pod1"}}))
		mustSet(t, p, endsState(drains, endsFrontend{port: 81, backends: []string{"pod3"}}))
		reached := func(s session) time.Duration {
			for time.Since(began) < 30*time.Second {
				_ = s.SetDeadline(time.Now().Add(20 * time.Millisecond)) // It is open.
				if _, err := s.Write([]byte("who?")); err != nil {
					t.Fatal(err)
				}
				if n, err := s.Read(make([]byte, 64)); err == nil && n > 0 {
					return time.Since(began)
				}
			}
			t.Fatalf("%s: no other backend", s)
			return 0
		}
		for _, s := range gone {
			if after := reached(s); after >= 3*time.Second {
				t.Errorf("%s, whose backend is gone: another one after %s", s, after)
			}
		}
		for _, s := range listed {
			if after := reached(s); after < 3*time.Second {
				t.Errorf("%s, whose backend is listed: another one after %s", s, after)
			}
		}
		swept(t, p)
	})
}

// setUntil sets what is set again whenever the Proxy asks for it, as the speaker does.
func setUntil(t *testing.T, p *Proxy, done <-chan struct{}) {
	t.Helper()
	for {
		select {
		case <-p.Changed():
			mustSet(t, p, p.rules.have)
		case <-done:
			return
		}
	}
}
