package lab

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// An entry that expires during the deletion is no error, and entries to other destinations
// stay.
func TestDeleteConntrackConcurrently(t *testing.T) {
	for _, to := range []struct{ deleted, kept, from netip.Addr }{
		{netip.MustParseAddr("192.0.2.8"), netip.MustParseAddr("192.0.2.80"), netip.MustParseAddr("203.0.113.8")},
		{netip.MustParseAddr("2001:db8:2::8"), netip.MustParseAddr("2001:db8:2::80"),
			netip.MustParseAddr("2001:db8:113::8")},
	} {
		t.Run(to.deleted.String(), func(t *testing.T) {
			n := labWithoutSpeakers(t).Namespace("n1")
			t.Cleanup(func() { await(t, n.DeleteConntrack(to.kept)) })
			const number = 5000
			await(t, n.addConntrack(to.from, to.deleted, number))
			await(t, n.addConntrack(to.from, to.kept, 3))
			// Each deletes entries that the other has listed.
			var both errgroup.Group
			for range 2 {
				both.Go(func() error { return n.DeleteConntrack(to.deleted) })
			}
			await(t, both.Wait())
			for dst, want := range map[netip.Addr]int{to.deleted: 0, to.kept: 3} {
				entries, err := n.conntrack(dst)
				await(t, err)
				if len(entries) != want {
					t.Errorf("%d entries to %s: want %d", len(entries), dst, want)
				}
			}
		})
	}
}

// addConntrack adds entries of closed connections, from the source ports 1 to number.
func (n *Namespace) addConntrack(from, to netip.Addr, number int) error {
	h, err := netlink.NewHandleAt(n.handle, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	for i := range number {
		there := netlink.IPTuple{
			Protocol: unix.IPPROTO_TCP, SrcIP: net.IP(from.AsSlice()), SrcPort: uint16(i + 1),
			DstIP: net.IP(to.AsSlice()), DstPort: 80,
		}
		back := there
		back.SrcIP, back.SrcPort, back.DstIP, back.DstPort = there.DstIP, there.DstPort, there.SrcIP, there.SrcPort
		err := h.ConntrackCreate(netlink.ConntrackTable, inetFamily(to), &netlink.ConntrackFlow{
			FamilyType: uint8(inetFamily(to)), Forward: there, Reverse: back, TimeOut: 120,
			ProtoInfo: &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_TIME_WAIT},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
