package speaker

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// The uplinks follow the kernel: default routes of both families, with several next hops,
// the node's own addresses, and an interface that is created again.
func TestUplinkWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, router := nstest.Node(t), nstest.New(t, "router")
		for _, name := range []string{"eth0", "eth1", "eth2", "pod1"} {
			nstest.Link(t, node, name, router, name)
		}
		node.Addr("eth0", "10.0.0.2/24")
		node.Addr("eth1", "10.0.1.2/24", "fd00:1::2/64")
		node.Route("0.0.0.0/0", "10.0.0.1", "")
		own := []netip.Addr{netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("127.0.0.1")}
		o := newUplinkWatch(nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
		defer o.stop()
		want := func(when, names string) {
			t.Helper()
			awaitUplinks(t, o, own, when, names)
		}
		if got := o.names(own); !slices.Equal(got, []string{"eth0"}) {
			t.Fatalf("at first %q", got)
		}
		node.Route("::/0", "fd00:1::1", "")
		want("a default route of IPv6", "eth0 eth1")
		node.Addr("eth2", "10.0.2.2/24")
		want("the node's address", "eth0 eth1 eth2")
		unlink(t, "eth2")
		want("an interface went", "eth0 eth1")
		node.Down("eth0")
		want("a route went with its interface", "eth1")
		own = []netip.Addr{netip.MustParseAddr("10.0.1.2")}
		want("the Node has another address", "eth1")
	})
}

// Named uplinks stay as named. An interface that comes back is a change, since it is
// another one.
func TestNamedUplinks(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, router := nstest.Node(t), nstest.New(t, "router")
		nstest.Link(t, node, "eth0", router, "eth0")
		o := newUplinkWatch([]string{"eth1", "eth0", "eth1"}, slog.New(slog.NewTextHandler(t.Output(), nil)))
		defer o.stop()
		for range 2 {
			if got := o.names(nil); !slices.Equal(got, []string{"eth0", "eth1"}) {
				t.Fatal(got)
			}
			awaitChange(t, o)
			unlink(t, "eth0")
			awaitChange(t, o)
			nstest.Link(t, node, "eth0", router, "eth0")
		}
	})
}

func awaitChange(t *testing.T, o *uplinkWatch) {
	t.Helper()
	select {
	case <-o.changed:
	case <-time.After(30 * time.Second):
		t.Fatal("no change reported")
	}
}

func awaitUplinks(t *testing.T, o *uplinkWatch, own []netip.Addr, when, names string) {
	t.Helper()
	end := time.After(30 * time.Second)
	for {
		got := o.names(own)
		if strings.Join(got, " ") == names {
			return
		}
		select {
		case <-o.changed:
		case <-end:
			t.Fatalf("%s: %q; want %q", when, got, names)
		}
	}
}

func unlink(t *testing.T, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil {
		t.Fatal(err)
	}
}
