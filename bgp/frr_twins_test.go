package bgp

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A router on a link of its own, which it secures and watches.
const frrTwinConfig = `
hostname tor%[1]d
interface eth0
 no ipv6 nd suppress-ra
 ipv6 nd ra-interval 1
 ipv6 nd ra-lifetime 0
router bgp 6500%[1]d
 bgp router-id 10.255.0.%[1]d
 no bgp ebgp-requires-policy
 neighbor eth0 interface remote-as external
 neighbor eth0 timers connect 1
 neighbor eth0 password sesame%[1]d
 neighbor eth0 bfd 20 300 300
 address-family ipv6 unicast
  neighbor eth0 activate
`

// Two routers have one link-local address, and so has the node on both links: nothing
// but the link tells the sessions apart. Each has its own password, its BFD, and a
// restart that its router does not notice; what happens to one is nothing to the other.
func TestFRRUnnumberedTwins(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		node := nstest.Node(t)
		var routers []*frr
		var sessions []Session
		for i := 1; i <= 2; i++ {
			r := newFRR(t, fmt.Sprintf("tor%d", i), fmt.Sprintf(frrTwinConfig, i), "bfdd")
			uplink := fmt.Sprintf("uplink%d", i)
			nstest.Link(t, node, uplink, r.ns, "eth0")
			for _, end := range []struct {
				ns        *nstest.NS
				name, mac string
			}{{node, uplink, "02:00:5e:00:53:01"}, {r.ns, "eth0", "02:00:5e:00:53:02"}} {
				end.ns.Down(end.name)
				end.ns.MAC(end.name, end.mac)
				end.ns.Up(end.name)
			}
			r.run()
			routers = append(routers, r)
			conf := unnumbered(fmt.Sprintf("tor%d", i), uplink)
			conf.HoldTime, conf.GracefulRestart = time.Hour, true
			// many tests share this machine
			conf.BFD = BFD{Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 20}
			conf.Password = Password(fmt.Sprintf("sesame%d", i))
			sessions = append(sessions, conf)
		}
		const ours, theirs = "fe80::5eff:fe00:5301", "fe80::5eff:fe00:5302"
		s := newServer(t, Options{})
		set := func(more ...string) {
			t.Helper()
			_, err := s.Set(t.Context(), state(sessions, routes(append(more, "192.0.2.1/32")...)))
			must(t, err)
		}
		up := func(i int) bool {
			st := s.sessionStatus(sessions[i].Name)
			// Until the timers are agreed on, silence would be noticed later.
			agreed := st.BFD != nil && st.BFD.Up() && st.BFD.Detection == 6*time.Second
			return st.State == Established && agreed && routers[i].kernel() == "192.0.2.1/32 via inet6 "+ours
		}
		both := func() bool { return up(0) && up(1) }
		set()
		eventually(t, "both sessions, and BFD", both)
		for i, conf := range sessions {
			st := s.sessionStatus(conf.Name)
			got := fmt.Sprintf("AS%d %s from %s", st.PeerASN, st.PeerAddress, st.LocalAddress)
			if want := fmt.Sprintf("AS6500%d %s%%%s from %s%%%[3]s", i+1, theirs, conf.Interface, ours); got != want {
				t.Errorf("%s: %s, want %s", conf.Name, got, want)
			}
		}

		// Routers are asked to keep the routes, and say so for their families.
		for _, r := range routers {
			r.happened()
		}
		must(t, s.Close(t.Context(), Restart))
		s = newServer(t, Options{Restarting: true})
		set()
		eventually(t, "synced", func() bool { _, ok := s.Synced(); return ok })
		set("198.51.100.99/32")
		for i, r := range routers {
			eventually(t, "route after the restart",
				func() bool { return strings.Contains(r.kernel(), "198.51.100.99/32") })
			if events := r.happened(); !slices.Equal(events, []string{"add 198.51.100.99/32"}) {
				t.Errorf("restart: tor%d: %v", i+1, events)
			}
		}
		set()
		eventually(t, "both sessions again", both)

		// The first router falls silent.
		before := s.sessionStatus("tor2")
		routers[1].happened()
		routers[0].signal("bfdd", syscall.SIGSTOP)
		eventually(t, "silence noticed", func() bool {
			return s.sessionStatus("tor1").LossReason == "BFD: nothing received from the router for 6s"
		})
		routers[0].signal("bfdd", syscall.SIGCONT)
		eventually(t, "both sessions after the silence", both)

		// The first password is wrong for a while.
		sessions[0].Password = "simsim"
		set()
		const wrong = "no answer from " + theirs +
			"%uplink1 port 179; so does a router that has no password for this node, or another one"
		eventually(t, wrong, func() bool { return s.sessionStatus("tor1").LastError == wrong })
		sessions[0].Password = "sesame1"
		set()
		eventually(t, "both sessions with the right password", both)

		if st := s.sessionStatus("tor2"); st.Since != before.Since || st.Flaps != before.Flaps ||
			st.BFD.Since != before.BFD.Since {
			t.Errorf("meanwhile the second: %+v, before %+v", st, before)
		}
		if events := routers[1].happened(); len(events) != 0 {
			t.Errorf("meanwhile the second router's kernel: %v", events)
		}
	})
}
