package neighbour

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/internal/kernel/hwaddr"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// A host answers as long as its kernel is there, with its own hardware address.
func TestWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		here, there := nstest.Node(t), nstest.New(t, "host")
		nstest.Link(t, here, "eth0", there, "eth0")
		here.Addr("eth0", "192.0.2.1/24", "2001:db8::1/64")
		there.Addr("eth0", "192.0.2.2/24", "2001:db8::2/64")
		mac := macOf(t, there)
		w := New(slog.New(slog.DiscardHandler))
		run(t, here, w)
		var hosts []Host
		for _, a := range []string{"192.0.2.2", "2001:db8::2"} {
			hosts = append(hosts, Host{"eth0", netip.MustParseAddr(a), mac})
		}
		absent, forged, elsewhere := hosts[0], hosts[0], hosts[0]
		absent.Addr, forged.MAC, elsewhere.Interface = netip.MustParseAddr("192.0.2.3"), hwaddr.MAC{2, 2, 2, 2, 2, 2},
			"eth9"
		w.Set(append(hosts, absent, elsewhere))
		awaitSilent(t, w, absent, elsewhere)
		expectAnswers(t, w, hosts...)
		// Another host answers for the address.
		w.Set([]Host{forged})
		awaitSilent(t, w, forged)
		w.Set(hosts)
		there.Down("eth0")
		awaitSilent(t, w, hosts...)
		// A silent host remains silent until a call without it.
		there.Up("eth0")
		there.Addr("eth0", "2001:db8::2/64") // the kernel deleted it
		w.Set(hosts)
		if w.Answers(hosts[0]) {
			t.Error("a silent host answers again")
		}
		w.Set(nil)
		w.Set(append(hosts[:2:2], absent))
		awaitSilent(t, w, absent)
		expectAnswers(t, w, hosts...)
	})
}

// run runs a Watch in a namespace.
func run(t *testing.T, ns *nstest.NS, w *Watch) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ns.Do(func() { w.Run(ctx) })
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

func macOf(t *testing.T, ns *nstest.NS) (mac hwaddr.MAC) {
	ns.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		mac, _ = hwaddr.Of(link.Attrs().HardwareAddr)
	})
	return mac
}

func awaitSilent(t *testing.T, w *Watch, hosts ...Host) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for _, h := range hosts {
		for w.Answers(h) {
			select {
			case <-w.Changed():
			case <-limit:
				t.Fatalf("%v still answers", h)
			}
		}
	}
}

// expectAnswers checks hosts when another one has just become silent, after as many requests.
func expectAnswers(t *testing.T, w *Watch, hosts ...Host) {
	t.Helper()
	for _, h := range hosts {
		if !w.Answers(h) {
			t.Errorf("%v does not answer", h)
		}
	}
}
