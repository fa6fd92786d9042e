package bgp

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// Routes that change while a session comes up arrive all the same.
func TestChangesWhileComingUp(t *testing.T) {
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	conf := r.session("tor1")
	on, off := routes("192.0.2.1/32", "192.0.2.2/32"), routes("192.0.2.1/32")
	for i := range 20 {
		conf.KeepaliveTime = time.Duration(1+i%2) * time.Second // resets the session
		for range 40 {
			_, err := s.Set(t.Context(), state([]Session{conf}, on))
			must(t, err)
			_, err = s.Set(t.Context(), state([]Session{conf}, off))
			must(t, err)
		}
		eventually(t, "route", func() bool { return r.adjIn() == "192.0.2.1/32 via 127.0.0.1 as [65010]\n" })
	}
}

func TestUnchangedSetCostsNothing(t *testing.T) {
	s := newServer(t, Options{})
	want := state(nil, manyRoutes(10_000))
	_, err := s.Set(t.Context(), want)
	must(t, err)
	if n := testing.AllocsPerRun(100, func() { _, _ = s.Set(t.Context(), want) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func manyRoutes(n int) []Route {
	rs := make([]Route, n)
	for i := range rs {
		rs[i].Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	return rs
}

// BenchmarkSet is one route more, then one less, among 10,000 others.
func BenchmarkSet(b *testing.B) {
	s := newServer(b, Options{Logger: slog.New(slog.DiscardHandler)})
	conf := Session{
		Name: "dead", PeerAddress: netip.MustParseAddr("127.0.0.2"), PeerPort: 9, PeerASN: 65001,
		ConnectTime: time.Hour,
	}
	routes := manyRoutes(10_001)
	all := state([]Session{conf}, routes)
	less := all
	less.Routes = sortedset.Without(all.Routes, routes[5000:5001], compareRoutes)
	begin := time.Now()
	_, err := s.Set(b.Context(), all)
	must(b, err)
	b.ReportMetric(float64(time.Since(begin).Milliseconds()), "ms/first")
	for b.Loop() {
		_, _ = s.Set(b.Context(), less)
		_, _ = s.Set(b.Context(), all)
	}
}

// syncBuffer is a bytes.Buffer for a logger and a reader at once.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Whatever comes before End-of-RIB is everything: a router that kept our routes
// over a restart drops there what it has not heard again.
func TestFirstUpdateIsComplete(t *testing.T) {
	const n = 5000
	before := make(chan int, 1)
	r := startFake(t, func(c *fakeConn) {
		c.send(openMessage(65001, packet.NewCapMultiProtocol(packet.RF_IPv4_UC),
			packet.NewCapGracefulRestart(false, false, 60, nil)))
		c.read()
		c.send(packet.NewBGPKeepAliveMessage())
		c.read()
		prefixes := 0
		for {
			m := c.read()
			u, ok := m.Body.(*packet.BGPUpdate)
			if !ok {
				if m.Header.Type == msgKeepalive {
					continue
				}
				break
			}
			// After a restart GoBGP ends IPv6 as well, though this router has no part in it.
			if end, f := u.IsEndOfRib(); end && f == packet.RF_IPv4_UC {
				break
			}
			prefixes += len(u.NLRI)
		}
		before <- prefixes
		c.readAll()
	})
	s := newServer(t, Options{Restarting: true})
	conf := r.session()
	conf.GracefulRestart = true
	_, err := s.Set(t.Context(), state([]Session{conf}, manyRoutes(n)))
	must(t, err)
	if got := <-before; got != n {
		t.Errorf("%d routes before End-of-RIB, want %d", got, n)
	}
}

// How long a route takes from Set to the network, on an open session.
func TestLatency(t *testing.T) {
	heard := make(chan time.Time, 1)
	up := make(chan struct{}, 1)
	r := startFake(t, func(c *fakeConn) {
		c.establish()
		up <- struct{}{}
		for {
			m := c.read()
			if m.Header.Type == 0 {
				return
			}
			if m.Header.Type == msgUpdate {
				heard <- time.Now()
			}
		}
	})
	s := newServer(t, Options{})
	sessions := []Session{r.session()}
	sessions[0].HoldTime = time.Minute
	_, err := s.Set(t.Context(), state(sessions, nil))
	must(t, err)
	<-up
	eventually(t, "established", func() bool { return s.sessionStatus("tor1").State == Established })
	var took []time.Duration
	for i := range 100 {
		begin := time.Now()
		_, err := s.Set(t.Context(), state(sessions, manyRoutes(i+1)))
		must(t, err)
		took = append(took, (<-heard).Sub(begin))
	}
	slices.Sort(took)
	t.Logf("from Set to the UPDATE at the router: median %s, worst %s", took[50], took[99])
	if took[50] > 200*time.Millisecond {
		t.Errorf("median %s", took[50])
	}
}
