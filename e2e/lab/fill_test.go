package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Entries of others survive.
func TestFillAndEmptyConntrack(t *testing.T) {
	_ = options(t) // for what the machine lacks
	n, err := NewNamespace(t.Context(), fmt.Sprintf("ff-fill%d", os.Getpid()))
	await(t, err)
	t.Cleanup(func() {
		n.Close()
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", "netns", "delete",
			n.Name).CombinedOutput(); err != nil {
			t.Errorf("ip netns delete: %v: %s", err, out)
		}
	})
	own := netip.MustParseAddr("10.0.0.2")
	addEntry(t, n, own)
	await(t, n.FillConntrack(0, 90))
	await(t, n.FillConntrack(90, 100))
	if got, most := sysctl(t, n, "nf_conntrack_count"), sysctl(t, n, "nf_conntrack_max"); got != most {
		t.Errorf("%s of %s entries: want as many", got, most)
	}
	await(t, n.EmptyConntrack())
	if left, err := n.conntrack(own); err != nil || len(left) != 1 {
		t.Errorf("%v, %v: want the other entry", left, err)
	}
	if got := sysctl(t, n, "nf_conntrack_count"); got != "1" {
		t.Errorf("%s entries: want 1", got)
	}
}

func addEntry(t *testing.T, n *Namespace, dst netip.Addr) {
	t.Helper()
	h, err := netlink.NewHandleAt(n.handle, unix.NETLINK_NETFILTER)
	await(t, err)
	defer h.Close()
	from := netip.MustParseAddr("10.0.0.1").AsSlice()
	await(t, h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET,
		&netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600,
			Forward: netlink.IPTuple{
				Protocol: unix.IPPROTO_UDP, SrcIP: from, DstIP: dst.AsSlice(), SrcPort: 1, DstPort: 2,
			},
			Reverse: netlink.IPTuple{
				Protocol: unix.IPPROTO_UDP, SrcIP: dst.AsSlice(), DstIP: from, SrcPort: 2, DstPort: 1,
			}}))
}

func sysctl(t *testing.T, n *Namespace, name string) string {
	t.Helper()
	out, err := n.Run(t.Context(), "cat", "/proc/sys/net/netfilter/"+name)
	await(t, err)
	return strings.TrimSpace(out)
}
