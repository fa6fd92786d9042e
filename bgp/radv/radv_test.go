package radv

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv6"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// next waits for a change of w.
func next(t *testing.T, w *Watch) {
	t.Helper()
	select {
	case <-w.Changed():
	case <-time.After(time.Minute):
		t.Fatal("nothing has changed")
	}
}

// local waits for the link-local address of an interface.
func local(t *testing.T, name string) linkEnd {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		here, err := inspect(name)
		if err == nil {
			return here
		}
		if time.Since(begin) > time.Minute {
			t.Fatal(err)
		}
	}
}

// Both ends of a link discover each other, and detect when the other end goes down.
func TestBothEndsDiscoverEachOther(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Node(t)
		nstest.Link(t, node, "left", node, "right")
		left, right := local(t, "left"), local(t, "right")
		ends := map[*Watch]netip.Addr{
			Start(t.Context(), "left"):  right.local.WithZone("left"),
			Start(t.Context(), "right"): left.local.WithZone("right"),
		}
		for w, want := range ends {
			got, link, err := w.Router()
			for ; err != nil; got, link, err = w.Router() {
				next(t, w)
			}
			if got != want || link.Err() != nil {
				t.Errorf("the router on %s is %s (%v), want %s", w.name, got, link.Err(), want)
			}
		}
		node.Down("left")
		for w := range ends {
			for got, _, err := w.Router(); err == nil; got, _, err = w.Router() {
				t.Logf("%s still has %s", w.name, got)
				next(t, w)
			}
		}
	})
}

// The advertisement offers no default router, and a forwarded advertisement is ignored.
func TestAdvertisement(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Node(t)
		nstest.Link(t, node, "left", node, "right")
		left, right := local(t, "left"), local(t, "right")
		other, err := listen("right", right)
		must(t, err)
		defer other.Close()
		w := Start(t.Context(), "left")

		m, control, from, err := other.ReadFrom()
		must(t, err)
		ra, ok := m.(*ndp.RouterAdvertisement)
		if !ok || ra.RouterLifetime != 0 || control.HopLimit != 255 || from.WithZone("") != left.local.WithZone("") {
			t.Fatalf("received %#v from %s with hop limit %d", m, from, control.HopLimit)
		}
		if i := slices.IndexFunc(ra.Options, func(o ndp.Option) bool {
			a, ok := o.(*ndp.LinkLayerAddress)
			return ok && a.Direction == ndp.Source && slices.Equal(a.Addr, left.mac[:])
		}); i < 0 {
			t.Errorf("options %v", ra.Options)
		}

		// The first of two is ignored. A solicitation is answered like an advertisement.
		node.Addr("right", "fe80::53/64")
		near := netip.MustParseAddr("fe80::53%left")
		ours, err := listen("left", left)
		must(t, err)
		found, answer, done := make(chan netip.Addr, 10), make(chan struct{}, 1), make(chan error, 1)
		go func() { done <- ours.receive(answer, func(a netip.Addr) { found <- a }) }()
		send := func(m ndp.Message, hopLimit int, from netip.Addr, to netip.Addr) {
			t.Helper()
			must(t, other.WriteTo(m, &ipv6.ControlMessage{HopLimit: hopLimit, Src: from.AsSlice(),
				IfIndex: right.index}, to))
		}
		send(other.advertisement(), 64, right.local, allNodes)
		send(other.advertisement(), ndp.HopLimit, near, allNodes)
		if got := <-found; got != near {
			t.Errorf("accepted %s, which was forwarded", got)
		}
		<-answer
		send(&ndp.RouterSolicitation{}, ndp.HopLimit, right.local, allRouters)
		<-answer
		must(t, ours.Close())
		<-done
		for got, _, err := w.Router(); err != nil || got != near; got, _, err = w.Router() {
			next(t, w)
		}
	})
}

// A link that is deleted and created again under the same name is a new link.
func TestLinkRecreated(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Node(t)
		w := Start(t.Context(), "left")
		Start(t.Context(), "right")
		for range 2 {
			nstest.Link(t, node, "left", node, "right")
			want := local(t, "right").local.WithZone("left")
			for got, _, err := w.Router(); err != nil || got != want; got, _, err = w.Router() {
				next(t, w)
			}
			link, err := netlink.LinkByName("left")
			must(t, err)
			must(t, netlink.LinkDel(link))
			for _, _, err := w.Router(); err == nil; _, _, err = w.Router() {
				next(t, w)
			}
		}
	})
}
