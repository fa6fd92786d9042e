package speaker

import (
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// An address is not announced while the kernel certainly drops its flows. A rule that drops
// everything for a moment, as firewalls do when they load, withdraws nothing. What lasts
// withdraws the address, and at its end the address is announced again.
func TestObstacleWithholdsAnnouncement(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds: an obstacle counts after it has lasted for two")
	}
	nstest.Run(t, func(t *testing.T) {
		u := newTableTest(t)
		u.await(t, "the route", u.announces)
		node := nstest.Node(t)
		reason := func() (code cluster.Code, why string) {
			d := u.result.Load().desired
			for _, r := range d.Reasons() {
				if r.Protocol == "bgp" {
					return r.Code, r.Message
				}
			}
			return "", ""
		}

		nftables(t, "table inet firewall { chain forward { type filter hook forward priority 0; policy drop; }; }")
		u.await(t, "the report", func() bool { return len(u.proxy.Obstacles()) > 0 })
		nftables(t, "delete table inet firewall")
		u.await(t, "its end", func() bool { return len(u.proxy.Obstacles()) == 0 })
		if u.lost.Load() || !u.announces() {
			t.Error("withdrawn because of a moment")
		}

		for _, obstacle := range []struct {
			what       string
			begin, end func()
		}{
			{"chain inet firewall forward drops traffic",
				func() {
					nftables(t, "table inet firewall { chain forward { type filter hook forward priority "+
						"0; policy drop; }; }")
				},
				func() { nftables(t, "delete table inet firewall") }},
			{"net.ipv4.ip_forward is 0", func() {
				node.Sysctl("ipv4.ip_forward", "0")
			}, func() { node.Sysctl("ipv4.ip_forward", "1") }},
		} {
			obstacle.begin()
			u.await(t, "the withdrawal", func() bool { return !u.announces() })
			u.await(t, "the reason: "+obstacle.what, func() bool {
				code, why := reason()
				return code == cluster.Obstructed && strings.Contains(why, obstacle.what)
			})
			obstacle.end()
			began := time.Now()
			u.await(t, "the announcement", u.announces)
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("%s: announced again after %s: the change was not noticed", obstacle.what, took)
			}
		}
	})
}

// The first announcement waits until it is known that nothing is in the way.
func TestObstacleBeforeStart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		u := newTableTestWith(t, func(node *nstest.NS) { node.Sysctl("ipv4.ip_forward", "0") })
		// An announcement of the first pass is seen when the next one begins.
		u.await(t, "passes", func() bool { return u.result.Load().ready && u.passes.Load() >= 2 })
		if u.announced.Load() || u.announces() {
			t.Fatal("announced, although the kernel does not forward")
		}
		nstest.Node(t).Sysctl("ipv4.ip_forward", "1")
		u.await(t, "the route", u.announces)
	})
}
