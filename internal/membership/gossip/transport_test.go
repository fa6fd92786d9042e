package gossip

import (
	"io"
	"log"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Packets arrive unchanged, from the sender's listening address, and use no more memory than
// their length.
func TestTransport(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		all := func(netip.Addr) bool { return true }
		quiet := log.New(io.Discard, "", 0)
		a, b := netip.MustParseAddrPort("127.0.0.2:7874"), netip.MustParseAddrPort("127.0.0.3:7874")
		one, err := listenSockets(a, all, quiet)
		if err != nil {
			t.Fatal(err)
		}
		defer one.Shutdown()
		two, err := listenSockets(b, all, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := listenSockets(b, all, quiet); err == nil ||
			!strings.Contains(err.Error(), "is the node's InternalIP an address of this machine, and the port free?") {
			t.Errorf("a port twice: %v", err)
		}
		for _, text := range []string{"first", strings.Repeat("x", 60000), "last"} {
			if _, err := one.WriteTo([]byte(text), b.String()); err != nil {
				t.Fatal(err)
			}
			select {
			case p := <-two.PacketCh():
				if string(p.Buf) != text || cap(p.Buf) > len(text)+8192 || p.From.String() != a.String() ||
					time.Since(p.Timestamp) > time.Hour {
					t.Errorf("%d bytes in %d from %s, want %d from %s", len(p.Buf), cap(p.Buf), p.From, len(text), a)
				}
			case <-time.After(time.Minute):
				t.Fatal("no packet")
			}
		}
		ours, err := one.DialTimeout(b.String(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		theirs := <-two.StreamCh()
		defer theirs.Close()
		if from := netip.MustParseAddrPort(theirs.RemoteAddr().String()); from.Addr() != a.Addr() {
			t.Errorf("connected from %s", from)
		}
		// A packet that is not read does not block Shutdown.
		if _, err := one.WriteTo([]byte("late"), b.String()); err != nil {
			t.Fatal(err)
		}
		if err := two.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := two.Shutdown(); err != nil {
			t.Errorf("the second time: %v", err)
		}
		again, err := listenSockets(b, all, quiet)
		if err != nil {
			t.Fatal(err)
		}
		again.Shutdown()
	})
}
