package bgp

import (
	"net/netip"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

const frrVRFConfig = `
hostname tor1
router bgp 65001
 bgp router-id 10.255.0.1
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65010
 neighbor 10.0.0.2 password sesame
 neighbor 10.0.0.2 bfd 7 300 300
 neighbor 10.0.0.3 remote-as 65010
 neighbor 10.0.0.3 timers connect 1
 neighbor 10.0.0.3 update-source 10.0.0.21
`

// The router is in a VRF, and one with its address is not: that one must not be spoken
// to. Where the kernel has no VRFs, the router is behind an interface that sessions are
// bound to, while the node's routes lead to the other one; to sessions, both are a device.
func TestFRRDevice(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := startFRRWith(t, frrVRFConfig, "bfdd")
		node := nstest.Node(t)
		r.ns.Addr("eth0", "10.0.0.21/24")
		device := "uplink"
		if node.VRF("red", 100, "uplink") {
			device = "red"
			node.Sysctl("ipv4.udp_l3mdev_accept", "1") // BFD comes in by one socket for all
		}
		t.Logf("sessions are bound to %s", device)
		nowhere := nstest.New(t, "nowhere")
		nstest.Link(t, node, "detour", nowhere, "eth0")
		nowhere.Addr("eth0", "10.0.0.1/32", "10.0.0.21/32")
		node.Route("10.0.0.1/32", "", "detour")
		node.Route("10.0.0.21/32", "", "detour")

		connects, waits := bfdSession("10.0.0.1", "10.0.0.2"), frrSession("10.0.0.3")
		connects.Password, connects.BFD, connects.Device = "sesame", slowBFD, device
		waits.Name, waits.PeerAddress, waits.Passive, waits.Device = "tor2", netip.MustParseAddr("10.0.0.21"), true,
			device
		s := newServer(t, Options{})
		set := func() {
			t.Helper()
			_, err := s.Set(t.Context(), state([]Session{connects, waits}, routes("192.0.2.1/32")))
			must(t, err)
		}
		set()
		eventually(t, "the session that we open, with BFD", func() bool { return upWithBFD(s) })
		eventually(t, "the session that the router opens",
			func() bool { return s.sessionStatus("tor2").State == Established })
		eventually(t, "a route by each", func() bool { return r.hops("192.0.2.1/32") == "10.0.0.2 10.0.0.3" })

		// On the node's routes no BGP speaker answers.
		connects.Device, connects.BFD = "", BFD{}
		set()
		eventually(t, "no session by the node's routes", func() bool {
			st := s.sessionStatus("tor1")
			return st.State != Established && st.LastError != ""
		})
	})
}
