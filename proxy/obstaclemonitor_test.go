package proxy

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

// awaitObstacles waits until the Proxy reports the wanted obstacles: "about; about".
func awaitObstacles(t *testing.T, p *Proxy, want string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		var got []string
		for _, o := range p.Status().Obstacles {
			got = append(got, o.About)
		}
		if all, _ := p.monitor.Found(); strings.Join(got, "; ") == want && all != nil {
			return
		}
		select {
		case <-p.Changed():
		case <-time.After(10 * time.Millisecond): // the first look finds nothing, and notifies nothing
		case <-deadline:
			t.Fatalf("in the way: %q; want %q", got, want)
		}
	}
}

// The monitor finds an obstacle by itself, and also that it has gone.
func TestObstacleMonitor(t *testing.T) {
	onEach(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		l := newLab(t)
		p, err := New(t.Context(), Options{Registerer: registry, Mode: testMode})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		s := proxytest.PacketState(LocalClients{})
		mustSet(t, p, s)
		awaitObstacles(t, p, "")
		proxytest.NFT(t, "table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }")
		awaitObstacles(t, p, "chain inet filter forward")
		if n := obstacleCount(t, registry, obstacle.Firewall); n != 1 {
			t.Errorf("%v obstacles are counted", n)
		}
		proxytest.NFT(t, "add rule inet filter forward accept")
		awaitObstacles(t, p, "")
		l.Node.Sysctl("ipv4.ip_forward", "0")
		p.Recheck()
		mustSet(t, p, s)
		awaitObstacles(t, p, "net.ipv4.ip_forward")
		l.Node.Sysctl("ipv4.ip_forward", "1") // sends no notification, but while there is an obstacle it looks again
		awaitObstacles(t, p, "")
		if n := obstacleCount(t, registry, obstacle.ForwardingOff); n != 0 {
			t.Errorf("%v obstacles are counted, and none is there", n)
		}
	})
}

func obstacleCount(t *testing.T, r *prometheus.Registry, code obstacle.Code) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "fanfare_proxy_obstacles" && m.Label[0].GetValue() == string(code) {
				return m.Gauge.GetValue()
			}
		}
	}
	t.Fatalf("no series for %s", code)
	return 0
}
