package bgp

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Two neighbours that have nothing in common. The first waits for us, the second
// connects. (With ttl-security FRR 8.4 takes BFD for one over several hops.)
const frrDifferentConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.11 remote-as 65099
 neighbor 10.0.0.11 timers 20 60
 neighbor 10.0.0.11 password sesame
 neighbor 10.0.0.11 bfd 7 300 300
 neighbor 10.0.0.11 passive
 neighbor fd00::2 remote-as 65001
 neighbor fd00::2 timers 10 30
 neighbor fd00::2 timers connect 1
 neighbor fd00::2 ttl-security hops 1
`

func frrDifferent() []Session {
	return []Session{{
		Name: "tor1", PeerAddress: netip.MustParseAddr("10.0.0.1"), PeerASN: 65001, LocalASN: 65099,
		RouterID: netip.MustParseAddr("10.255.0.99"), SourceAddress: netip.MustParseAddr("10.0.0.11"), Device: "uplink",
		HoldTime: time.Minute, KeepaliveTime: 7 * time.Second, ConnectTime: time.Second, Password: "sesame",
		BFD: BFD{300 * time.Millisecond, 300 * time.Millisecond, 8, true}, GracefulRestart: true,
		RestartTime: 40 * time.Second,
	}, {
		Name: "tor2", PeerAddress: netip.MustParseAddr("fd00::1"), PeerASN: 65001, LocalASN: 65001,
		SourceInterface: "uplink", Passive: true, TTLSecurityHops: 1, HoldTime: 30 * time.Second,
		ConnectTime: 2 * time.Second,
	}}
}

// Sessions that differ in everything live on one node. While every field of a third
// one changes, and each change resets that one, the router sees nothing happen
// to these two.
func TestFRRChangeOfAnother(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrDifferentConfig, "bfdd")
		nstest.Node(t).Addr("uplink", "10.0.0.11/24")
		script := func(c *fakeConn) { c.establish(); c.readAll() }
		fake, elsewhere := startFake(t, script), startFake(t, script)
		base := fake.session()
		base.Name, base.HoldTime = "other", time.Minute
		s := newServer(t, Options{})
		set := func(x Session) {
			t.Helper()
			_, err := s.Set(t.Context(), state(append([]Session{x}, frrDifferent()...), routes("192.0.2.1/32")))
			must(t, err)
		}
		set(base)
		eventually(t, "two sessions, and BFD on one", func() bool {
			const hop = "10.0.0.2" // of the iBGP session over IPv6: its AS path is shorter
			return upWithBFD(s) && s.sessionStatus("tor2").State == Established && r.kernel() == "192.0.2.1/32 via "+hop
		})
		seen := frrSeen(r)
		for neighbor, want := range map[string][]string{
			"10.0.0.11": {`"remoteAs":65099`, `"remoteRouterId":"10.255.0.99"`, `"bgpTimerHoldTimeMsecs":60000`,
				`"connectionsEstablished":1`, `"connectionsDropped":0`},
			"fd00::2": {`"remoteAs":65001`, `"remoteRouterId":"10.255.0.10"`, `"bgpTimerHoldTimeMsecs":30000`,
				`"connectionsEstablished":1`, `"connectionsDropped":0`},
		} {
			for _, w := range want {
				if !strings.Contains(seen[neighbor], w) {
					t.Errorf("of %s the router does not say %s:\n%s", neighbor, w, seen[neighbor])
				}
			}
		}
		before := []SessionStatus{s.sessionStatus("tor1"), s.sessionStatus("tor2")}

		changes := map[string]func(x *Session){
			"Name":        func(x *Session) { x.Name = "another" },
			"PeerAddress": func(x *Session) { x.PeerAddress = netip.MustParseAddr("127.0.0.6") },
			"Interface": func(x *Session) {
				x.PeerAddress, x.SourceAddress, x.Interface = netip.Addr{}, netip.Addr{}, "none0"
			},
			"PeerPort":        func(x *Session) { x.PeerPort = elsewhere.addr.Port() },
			"PeerASN":         func(x *Session) { x.PeerASN = 65002 },
			"External":        func(x *Session) { x.PeerASN, x.External = 0, true },
			"LocalASN":        func(x *Session) { x.LocalASN = 65020 },
			"RouterID":        func(x *Session) { x.RouterID = netip.MustParseAddr("10.255.0.20") },
			"SourceAddress":   func(x *Session) { x.SourceAddress = netip.MustParseAddr("127.0.0.9") },
			"SourceInterface": func(x *Session) { x.SourceInterface = "lo" },
			"NextHop":         func(x *Session) { x.NextHop = netip.MustParseAddr("2001:db8::20") },
			"Device":          func(x *Session) { x.Device = "lo" },
			"Passive":         func(x *Session) { x.Passive = true },
			"HoldTime":        func(x *Session) { x.HoldTime = 2 * time.Minute },
			"KeepaliveTime":   func(x *Session) { x.KeepaliveTime = 5 * time.Second },
			"ConnectTime":     func(x *Session) { x.ConnectTime = time.Second },
			"EBGPMultihopTTL": func(x *Session) { x.EBGPMultihopTTL = 5 },
			"TTLSecurityHops": func(x *Session) { x.TTLSecurityHops = 1 },
			"Password":        func(x *Session) { x.Password = "sesame" },
			"BFD": func(x *Session) {
				x.BFD = BFD{300 * time.Millisecond, 300 * time.Millisecond, 3, false}
			},
			"GracefulRestart": func(x *Session) { x.GracefulRestart = true },
			"RestartTime":     func(x *Session) { x.GracefulRestart, x.RestartTime = true, time.Minute },
			// What opens it is that it is as at first: see TestStates.
			"Weights": func(x *Session) { x.Weights = true },
		}
		fields := reflect.TypeFor[Session]()
		for i := range fields.NumField() {
			field := fields.Field(i).Name
			t.Run(field, func(t *testing.T) {
				change := changes[field]
				if change == nil {
					t.Fatal("no change of this field is tested")
				}
				x := base
				change(&x)
				begin := time.Now()
				set(x)
				// Up again, or not, as with a password that the router has not.
				eventually(t, "reset", func() bool {
					st := s.sessionStatus(x.Name)
					return st.State == Established && st.Since.After(begin) || st.LastError != ""
				})
				for _, was := range before {
					if is := s.sessionStatus(was.Name); is.State != Established || is.Since != was.Since ||
						is.Flaps != 0 {
						t.Errorf("session %s: %+v", was.Name, is)
					}
				}
			})
		}
		for neighbor, says := range frrSeen(r) {
			for _, w := range []string{`"connectionsEstablished":1`, `"connectionsDropped":0`} {
				if !strings.Contains(says, w) {
					t.Errorf("afterwards the router has for %s:\n%s", neighbor, says)
				}
			}
		}
		if st := s.sessionStatus("tor1"); !upWithBFD(s) || st.BFD.Since != before[0].BFD.Since {
			t.Errorf("BFD: %+v, before %+v", st.BFD, before[0].BFD)
		}
	})
}

// frrSeen is the router's view of its neighbours.
func frrSeen(r *frr) map[string]string {
	says := map[string]string{}
	for _, neighbor := range []string{"10.0.0.11", "fd00::2"} {
		says[neighbor] = strings.ReplaceAll(r.vtysh("-c", "show bgp neighbors "+neighbor+" json"), " ", "")
	}
	return says
}
