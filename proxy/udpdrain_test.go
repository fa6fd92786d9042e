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

// Flows leave a backend that drains, and each answer that is under way meanwhile arrives.
func TestUDPAnswersArriveWhileDraining(t *testing.T) {
	onAll(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		l.serveSlowly()
		mustSet(t, p, slowState(endsFrontend{port: 80, backends: []string{"pod1"}}))
		// At any moment some of the flows of each family wait for an answer. Then a flow rests for
		// longer than 2.25 s: the kernel forgets it after a second, if a sweep has found that it rests,
		// and sweeps may be up to 1.25 s apart (maxRestInterval of package conntrack).
		const flows, period = 40, 3 * time.Second
		var all sync.WaitGroup
		for i := range flows {
			c := l.Connect(l.Client, "udp", 0, netip.AddrPortFrom(proxytest.At("vip", state.SetID(i%2)), 80))
			all.Go(func() {
				<-time.After(period * time.Duration(i) / flows)
				for n := range 3 {
					began := time.Now()
					if got := l.Ask(c); got != "slow who?" && got != "pod3 saw client" {
						t.Errorf("flow %d, query %d: %s", i, n, got)
					}
					<-time.After(period - time.Since(began))
				}
			})
		}
		<-time.After(period) // each flow has asked once
		mustSet(t, p, slowState(endsFrontend{port: 80, backends: []string{"pod3"}, draining: []string{"pod1"}}))
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		setUntil(t, p, done)
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
